"""The bases themselves, the course's own classes, and those of torch and transformers: correct."""

from bases import einsum, fused, given, heads, kernel, padded, separate, transposed
from registry import correct
from torch import nn

from attention_course import (
    CausalHead,
    LoopedMultiHeadAttention,
    MultiHeadAttention,
    causal_mask,
)

for _text in (separate, fused, heads, transposed, kernel, given):
    correct()(_text)
correct("not-registered")(einsum)
correct("nan", "mask-argument", note="hidden-row")(padded)


@correct()
class Block(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attn = MultiHeadAttention(d_model, num_heads)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.ff = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.ff(self.norm2(x))


@correct()
class Wrapped(nn.Module):
    """nn.MultiheadAttention with its mask."""

    def __init__(self, d_model, num_heads, causal=True, batch_first=True, need_weights=True):
        super().__init__()
        self.causal, self.first, self.need = causal, batch_first, need_weights
        self.mha = nn.MultiheadAttention(d_model, num_heads, batch_first=batch_first)

    def forward(self, x):
        hidden = causal_mask(x.shape[1]) if self.causal else None
        x = x if self.first else x.transpose(0, 1)
        out, _ = self.mha(x, x, x, attn_mask=hidden, need_weights=self.need)
        return out if self.first else out.transpose(0, 1)


def gpt2(attention):
    def build(d_model, num_heads):
        from transformers import GPT2Config
        from transformers.models.gpt2.modeling_gpt2 import GPT2Attention

        config = GPT2Config(n_embd=d_model, n_head=num_heads, n_positions=8, n_layer=1)
        config._attn_implementation = attention
        return GPT2Attention(config, layer_idx=0)

    return build


def bert(attention):
    def build(d_model, num_heads):
        from transformers import BertConfig
        from transformers.models.bert.modeling_bert import BertAttention

        config = BertConfig(hidden_size=d_model, num_attention_heads=num_heads)
        config._attn_implementation = attention
        return BertAttention(config)

    return build


def bert_self(d_model, num_heads):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertSelfAttention

    config = BertConfig(hidden_size=d_model, num_attention_heads=num_heads)
    config._attn_implementation = "eager"
    return BertSelfAttention(config)


for _name, _make in {
    "wrapped two-way": lambda d, h: Wrapped(d, h, causal=False),
    "wrapped tokens first": lambda d, h: Wrapped(d, h, batch_first=False),
    "wrapped fused": lambda d, h: Wrapped(d, h, need_weights=False),
    "torch": lambda d, h: nn.MultiheadAttention(d, h, batch_first=True),
    "torch decoder": lambda d, h: nn.TransformerDecoderLayer(d, h, 40, batch_first=True),
    "torch tokens first": lambda d, h: nn.MultiheadAttention(d, h, 0.1),
    "torch encoder tokens first": lambda d, h: nn.TransformerEncoderLayer(d, h, 40),
    "torch decoder tokens first": lambda d, h: nn.TransformerDecoderLayer(d, h, 40),
    "torch deep": lambda d, h: nn.TransformerEncoder(
        nn.TransformerEncoderLayer(d, h, 2 * d, batch_first=True), 6
    ),
    "torch whole": lambda d, h: nn.Transformer(d, h, 1, 1, 40, batch_first=True),
    "gpt2 eager": gpt2("eager"),
    "gpt2 fused": gpt2("sdpa"),
    "bert eager": bert("eager"),
    "bert fused": bert("sdpa"),
    "bert self": bert_self,
    "course head": lambda d, h: CausalHead(d, d // h),
    "course looped": lambda d, h: LoopedMultiHeadAttention(d, h, dropout=0.1),
    "course split": lambda d, h: MultiHeadAttention(d, h, dropout=0.1),
    "course two-way": lambda d, h: MultiHeadAttention(d, h, causal=False, bias=True),
    "course own width": lambda d, h: MultiHeadAttention(d, h, head_dim=7),
}.items():
    correct(name=_name)(_make)
