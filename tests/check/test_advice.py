"""Advice that is tried: what a message says is done, and nothing else, and the check is silent."""

from dataclasses import dataclass

import pytest
import torch
from bases import Text, cached, einsum, fused, given, heads, kernel, padded, separate
from registry import CODES, codes

from attention_check import check_attention
from attention_check.rules import RULES


@dataclass(frozen=True)
class Advice:
    """A planted fault, the words of the message, and the change that they name."""

    planted: Text
    said: str
    old: str | tuple
    new: str | tuple
    causal: bool | None = None
    dtype: torch.dtype | None = None
    by_class: bool = False

    @property
    def mended(self):
        text, pairs = self.planted, [(self.old, self.new)]
        if isinstance(self.old, tuple):
            pairs = zip(self.old, self.new, strict=True)
        for old, new in pairs:
            text = text.but(old, new)
        return text

    def judged(self, text):
        thing = text.kind if self.by_class else text.make
        thing = thing(24, 4).to(self.dtype) if self.dtype else thing
        return check_attention(thing, causal=self.causal)


SPLIT = ".view(b, t, self.num_heads, self.head_dim).transpose(1, 2)"
CUT_LAYERS = "nn.Linear(n, n) for n in (d_model // h,) * 3 + (d_model,)"
ADVICE = {
    "crash": Advice(
        fused.but("B, T, C = x.size()", "B, T, C = 3, *x.shape[1:]"),
        "Read the batch size from x.shape",
        "3, *x.shape[1:]",
        "x.shape",
    ),
    "global-state": Advice(
        separate.but("b, t, d =", "torch.manual_seed(0)\n        b, t, d ="),
        "Call manual_seed outside of the module",
        "torch.manual_seed(0)\n        ",
        "",
    ),
    "length": Advice(
        separate.but("[:t, :t]", ""), "mask[:tokens, :tokens]", "mask.bool()", "mask.bool()[:t, :t]"
    ),
    "width": Advice(
        separate.but("d_model, num_heads, dropout=0.1", "d_in, d_out, num_heads")
        .but("self.d_model, self.num_heads = d_model", "self.num_heads = num_heads #")
        .but("d_model // num_heads", "d_out // num_heads")
        .but("nn.Linear(d_model, d_model, bias", "nn.Linear(d_in, d_out, bias")
        .but("nn.Linear(d_model, d_model)", "nn.Linear(d_out, d_out)")
        .but("nn.Dropout(dropout)", "nn.Dropout(0.1)"),
        "Merge the heads to num_heads * head_dim",
        "view(b, t, d)",
        "view(b, t, self.num_heads * self.head_dim)",
        by_class=True,
    ),
    "nan": Advice(
        separate.but(".triu(1)", ".triu(0)"),
        "Hide above the diagonal only: triu(1)",
        ".triu(0)",
        ".triu(1)",
    ),
    "input-changed": Advice(
        separate.but("b, t, d =", "x += 1.0\n        b, t, d ="),
        "Write x = x + ... instead",
        "x += 1.0",
        "x = x + 1.0",
    ),
    "batch-mixed": Advice(
        separate.but("W_query(x)", "W_query(x - x.mean(0))"),
        "Keep each sentence to itself",
        "x.mean(0)",
        "x.mean(2, keepdim=True)",
    ),
    "not-repeatable": Advice(
        separate.but("self.out_proj(context)", "nn.Linear(d, d)(context)").but(
            "        self.out_proj = nn.Linear(d_model, d_model)\n", ""
        ),
        "Create layers in __init__",
        ("nn.Linear(d, d)(context)", "        self.dropout = nn"),
        (
            "self.out_proj(context)",
            "        self.out_proj = nn.Linear(d_model, d_model)\n        self.dropout = nn",
        ),
    ),
    "dropout-in-eval": Advice(
        kernel.but("self.dropout if self.training else 0.0", "self.dropout"),
        "dropout_p=self.dropout if self.training else 0.0",
        "p = self.dropout",
        "p = self.dropout if self.training else 0.0",
    ),
    "dropout-unused": Advice(
        separate.but("        weights = self.dropout(weights)\n", ""),
        "weights = self.dropout(weights)",
        "        context = (",
        "        weights = self.dropout(weights)\n        context = (",
    ),
    "split-by-view": Advice(
        separate.but(SPLIT, ".view(b, self.num_heads, t, self.head_dim)"),
        "Use .view(batch, tokens, 4, 6), then .transpose(1, 2)",
        ".view(b, self.num_heads, t, self.head_dim)",
        SPLIT,
    ),
    "input-cut": Advice(
        given.but("nn.Linear(d_model, d_model) for _ in range(4)", CUT_LAYERS).but(
            "lin(x).view(n, -1, self.h, self.d_k)", "lin(x.view(n, -1, self.h, self.d_k))"
        ),
        "Project the whole token with Linear(24, 24), then split the result",
        ("(d_model // h,)", "lin(x.view(n, -1, self.h, self.d_k))"),
        ("(d_model,)", "lin(x).view(n, -1, self.h, self.d_k)"),
    ),
    "merge-by-view": Advice(
        separate.but("(weights @ values).transpose(1, 2)", "weights @ values"),
        "context.transpose(1, 2).reshape(batch, tokens, d_model)",
        "context.contiguous().view(b, t, d)",
        "context.transpose(1, 2).reshape(b, t, d)",
    ),
    "heads-attend-heads": Advice(
        given.but(".transpose(1, 2)\n", "\n").but(".transpose(1, 2).contiguous()", ""),
        "Put the heads before the tokens: .transpose(1, 2) after the split, and back before",
        ("view(n, -1, self.h, self.d_k)\n", "x = x.view"),
        ("view(n, -1, self.h, self.d_k).transpose(1, 2)\n", "x = x.transpose(1, 2).reshape"),
    ),
    "softmax-axis": Advice(
        separate.but("dim=-1", "dim=-2"), "Use dim=-1 in the softmax", "dim=-2", "dim=-1"
    ),
    "softmax-twice": Advice(
        einsum.but("sim.softmax(dim=-1)", "sim.softmax(dim=-1).softmax(dim=-1)"),
        "Take it once",
        ".softmax(dim=-1).softmax(dim=-1)",
        ".softmax(dim=-1)",
    ),
    "not-normalised": Advice(
        separate.but(" / self.head_dim**0.5, dim=-1)", ", dim=-1) / self.head_dim**0.5"),
        "Divide the scores by √head_dim *before* it",
        "softmax(scores, dim=-1) / self.head_dim**0.5",
        "softmax(scores / self.head_dim**0.5, dim=-1)",
    ),
    "wrong-pair": Advice(
        separate.but("@ keys", "@ values"),
        "scores = queries @ keys.mT",
        "queries @ values.transpose(2, 3)",
        "queries @ keys.mT",
    ),
    "wrong-values": Advice(
        separate.but("weights @ values", "weights @ keys"),
        "context = weights @ values",
        "weights @ keys",
        "weights @ values",
    ),
    "one-for-all": Advice(
        fused.but("@ v", "@ v[:, :, :1].expand_as(v)"),
        "without an index on the tokens' axis",
        "[:, :, :1].expand_as(v)",
        "",
    ),
    "attention-unused": Advice(
        separate.but("return self.out_proj(context)", "self.out_proj(context)\n        return x"),
        "What out_proj gives is thrown away: return it",
        "self.out_proj(context)\n        return x",
        "return self.out_proj(context)",
    ),
    "heads-alike": Advice(
        heads.but(
            "[Head(d_model, d_model // num_heads) for _ in range(num_heads)]",
            "[Head(d_model, d_model // num_heads)] * num_heads",
        ),
        "Make each anew: nn.ModuleList([Head(...) for _ in range(num_heads)])",
        "[Head(d_model, d_model // num_heads)] * num_heads",
        "[Head(d_model, d_model // num_heads) for _ in range(num_heads)]",
    ),
    "no-effect": Advice(
        heads.but(
            "        out = torch.cat([h(x) for h in self.heads], dim=-1)",
            "        outs = []\n"
            "        for head in self.heads:\n"
            "            outs = [head(x)]\n"
            "        out = torch.cat(outs, dim=-1)",
        ).but("nn.Linear(d_model, d_model)", "nn.Linear(d_model // num_heads, d_model)"),
        "keep each result, outs.append(head(x)), and join them: torch.cat(outs, dim=-1)",
        ("outs = [head(x)]", "nn.Linear(d_model // num_heads, d_model)"),
        ("outs.append(head(x))", "nn.Linear(d_model, d_model)"),
    ),
    "future-visible": Advice(
        separate.but("masked_fill_(", "masked_fill("),
        "use masked_fill_",
        "masked_fill(",
        "masked_fill_(",
    ),
    "mask-off-by-one": Advice(
        separate.but(".triu(1)", ".triu(2)"), "triu(diagonal=1)", "triu(2)", "triu(diagonal=1)"
    ),
    "past-hidden": Advice(
        kernel.but("is_causal=True", "attn_mask=torch.ones(tokens, tokens).triu(1).bool()"),
        "Hide where column > row. In scaled_dot_product_attention True means keep",
        "triu(1).bool()",
        "triu(1).bool().logical_not()",
    ),
    "future-hidden": Advice(
        separate, "leave it out", "scores.masked_fill_(", "scores.masked_fill(", causal=False
    ),
    "mask-argument": Advice(
        padded.but("hidden | padding_mask", "padding_mask"),
        "combine them with | where True = hidden",
        "hidden = padding_mask",
        "hidden = hidden | padding_mask",
    ),
    "nan-gradient": Advice(
        padded.but("(scores.softmax(-1) @ v)", "(scores.softmax(-1) @ v).nan_to_num()"),
        "Fill such rows of the scores with 0 before the softmax",
        'masked_fill(hidden, float("-inf"))',
        'masked_fill(hidden, float("-inf")).masked_fill(hidden.all(-1, keepdim=True), 0)',
    ),
    "scale": Advice(
        separate.but("self.head_dim**0.5", "d**0.5"),
        "Each head has 6 numbers: divide by √6",
        "d**0.5",
        "6**0.5",
    ),
    "distance-bias": Advice(
        fused.but(
            "att = F.softmax(",
            "att = att + 0.5 * (torch.arange(T)[:, None] - torch.arange(T))\n"
            "        att = F.softmax(",
        ),
        "scores - slopes * (row - column)",
        "att + 0.5 *",
        "att - 0.5 *",
    ),
    "rotary": Advice(
        separate.but("queries @ keys", "rotary(queries) @ keys"),
        "Turn both, by the same angles",
        "@ keys.transpose",
        "@ rotary(keys).transpose",
    ),
    "unused-layer": Advice(
        separate.but("self.out_proj(context)", "context"),
        "or remove it",
        "        self.out_proj = nn.Linear(d_model, d_model)\n",
        "",
    ),
    "layers-alike": Advice(
        heads.but(
            "out = torch.cat([h(x) for h in self.heads], dim=-1)",
            "out = torch.cat([h(x) for h in self.heads], dim=-1)\n"
            "        out = out + self.after[1](torch.relu(self.after[0](out)))",
        ).but(
            "self.proj = nn.Linear(d_model, d_model)",
            "self.proj = nn.Linear(d_model, d_model)\n"
            "        self.after = nn.ModuleList([nn.Linear(d_model, d_model)] * 2)",
        ),
        "Make each anew",
        "nn.ModuleList([nn.Linear(d_model, d_model)] * 2)",
        "nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(2)])",
    ),
    "detached": Advice(
        separate.but("self.W_key(x)", "self.W_key(x).detach()"), "Remove it there", ".detach()", ""
    ),
    "not-registered": Advice(
        heads.but("nn.ModuleList([Head", "[Head").but("num_heads)])", "num_heads)]"),
        "Use nn.ModuleList",
        "[Head(d_model, d_model // num_heads) for _ in range(num_heads)]",
        "nn.ModuleList(Head(d_model, d_model // num_heads) for _ in range(num_heads))",
    ),
    "not-a-buffer": Advice(
        separate.but(
            'self.register_buffer("mask", torch.ones(8, 8).triu(1))',
            "mask = self.mask = torch.ones(8, 8).triu(1)",
        ),
        "Write self.register_buffer('mask', mask, persistent=False)",
        "mask = self.mask = torch.ones(8, 8).triu(1)",
        "mask = torch.ones(8, 8).triu(1)\n"
        "        self.register_buffer('mask', mask, persistent=False)",
    ),
    "beginning-changes": Advice(
        einsum.but("triu(1)", "triu(1).tril(6)"),
        "Hide by position alone, where column > row",
        "torch.ones(n, n, dtype=torch.bool, device=x.device).triu(1).tril(6)",
        "torch.arange(n) > torch.arange(n)[:, None]",
    ),
    "modes-differ": Advice(
        separate.but("queries @ keys", "(queries * (2 if self.training else 1)) @ keys"),
        "Do the same in both",
        "(queries * (2 if self.training else 1))",
        "queries",
    ),
    "dropout-lost": Advice(
        kernel.but("p = self.dropout if", "self.dropout = p = self.dropout if"),
        "Leave it as it is",
        "self.dropout = p",
        "p",
    ),
    "dropout-on-scores": Advice(
        einsum.but("        attn = self.drop(attn)\n", "").but(
            "sim.softmax(dim=-1)", "self.drop(sim).softmax(dim=-1)"
        ),
        "Drop weights, after the softmax",
        "self.drop(sim).softmax(dim=-1)",
        "self.drop(sim.softmax(dim=-1))",
    ),
    "own-dtype": Advice(
        separate.but("-torch.inf", "-1e9"),
        "Fill with -torch.inf or torch.finfo(scores.dtype).min",
        "-1e9",
        "torch.finfo(scores.dtype).min",
        dtype=torch.half,
    ),
    "key-length": Advice(
        given.but("view(n, -1, self.h, ", "view(n, tokens, self.h, ").but(
            "n = query.size(0)", "n, tokens = query.shape[:2]"
        ),
        "Read the number of keys from the keys: keys.shape[1]",
        "view(n, tokens, self.h",
        "view(n, x.shape[1], self.h",
    ),
    "other-heads": Advice(
        given.but("range(4)", "range(h)").but("self.linears[-1]", "self.linears[3]"),
        "Make as many as forward uses",
        "range(h)",
        "range(4)",
    ),
    "token-by-token": Advice(
        cached.but(
            "torch.ones(past + t, past + t).tril()[past:]", "torch.ones(t, past + t).tril()"
        ),
        "mask[kept : kept + tokens, : kept + tokens]",
        "torch.ones(t, past + t).tril()",
        "torch.ones(past + t, past + t).tril()[past : past + t, : past + t]",
    ),
}


def test_each_code_has_advice_that_is_tried():
    assert list(ADVICE) == [rule.code for rule in RULES if rule.code in CODES]


@pytest.mark.parametrize("code", ADVICE)
def test_what_the_message_names_mends_it(code):
    advice = ADVICE[code]
    report = advice.judged(advice.planted)
    assert codes(report) == [code], report
    assert advice.said in report.findings[0].message, report
    mended = advice.judged(advice.mended)
    assert mended.ok, mended
