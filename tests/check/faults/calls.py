"""What goes wrong with a call as a whole: planted faults, and what looks like them."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from bases import Plain, einsum, fused, heads, kernel, separate, transposed
from registry import correct, fault
from torch import nn

from attention_course import causal_mask

fault("crash")(separate.but("keys.transpose(2, 3)", "keys"))
fault("crash")(fused.but("view(B, T, C)", "view(B, T, C + 1)"))
fault("crash")(heads.but("dim=-1)\n        return self.proj", "dim=1)\n        return self.proj"))
fault("crash")(einsum.but('"bhie,bhje->bhij"', '"bhie,bhie->bhij"').but("q, k)", "q, k[:, :, 1:])"))
fault("length", "works for 8 tokens", "fails for 5", "mask[:tokens, :tokens]")(
    separate.but("[:t, :t]", "")
)
fault("length")(fused.but("[:, :, :T, :T]", ""))
fault("length")(heads.but("[:T, :T]", ""))
fault("nan", "Row 0 is NaN")(separate.but(".triu(1))", ".triu(0))"))
fault("nan", "Row 4, the last")(fused.but(":T] == 0", ":T] == 1"))
fault("nan")(einsum.but("dim=-1", "dim=1").but("-torch.finfo(sim.dtype).max", "-torch.inf"))
fault("nan")(
    transposed.but(
        'torch.full((t, t), float("-inf"), device=x.device).triu(1)',
        'torch.ones(t, t).triu(1) * float("-inf")',
    )
)
fault("not-repeatable")(
    separate.but("self.out_proj(context)", "nn.Linear(d, d)(self.out_proj(context))")
)
fault("not-repeatable")(
    heads.but(
        "self.value(x)\n",
        "nn.Linear(self.key.out_features, self.key.out_features)(self.value(x))\n",
    )
)
fault("not-repeatable")(transposed.but("self.k_proj(x)", "nn.Linear(e, e)(self.k_proj(x))"))
fault("dropout-in-eval")(separate.but("self.dropout(weights)", "F.dropout(weights, 0.2)"))
fault("dropout-in-eval")(kernel.but("self.dropout if self.training else 0.0", "self.dropout"))
fault("dropout-in-eval")(einsum.but("self.drop(attn)", "F.dropout(attn, p=0.1, training=True)"))
fault("dropout-unused")(separate.but("        weights = self.dropout(weights)\n", ""))
fault("dropout-unused")(fused.but("self.resid_dropout(self.c_proj(y))", "self.c_proj(y)"))
fault("dropout-unused")(heads.but("        wei = self.drop(wei)\n", ""))
fault("input-changed")(separate.but("b, t, d = x.shape", "b, t, d = x.shape\n        x += 1.0"))
fault("input-changed")(fused.but("B, T, C = x.size()", "B, T, C = x.size()\n        x.mul_(2)"))
fault("input-changed")(einsum.but("n = x.shape[1]", "n = x.shape[1]\n        x[:, 0] = 0"))
fault("global-state", "seed")(separate.but("b, t, d =", "torch.manual_seed(0)\n        b, t, d ="))
fault("global-state", "default dtype")(
    fused.but("x.size()", "x.size()\n        torch.set_default_dtype(torch.float64)")
)
fault("batch-mixed")(
    transposed.but("x = x.transpose(0, 1)\n", "x = x\n")
    .but("(o).transpose(0, 1)", "(o)")
    .but('        s = s + torch.full((t, t), float("-inf"), device=x.device).triu(1)\n', "")
)
fault("batch-mixed", "depends on its place in the batch", "x.shape[1], not x.shape[0]")(
    separate.but(
        "b, t, d = x.shape",
        "x = x + torch.arange(len(x))[:, None, None]\n        b, t, d = x.shape",
    )
)
fault("batch-mixed", "or a sum over the first axis")(
    separate.but("W_query(x)", "W_query(x - x.mean(0))")
)

# --- modules that misbehave -----------------------------------------------------------------


def misbehaving(act):
    class Odd(Plain):
        def forward(self, x):
            return act(self, x, super().forward)

    return Odd


def _raise(self, x, forward):
    raise RuntimeError("nothing works")


def _default_dtype(self, x, forward):
    torch.set_default_dtype(torch.float64)
    return forward(x)


def _seed(self, x, forward):
    torch.manual_seed(1)
    return forward(x)


def _no_training(self, x, forward):
    if self.training:
        raise RuntimeError("not in training")
    return forward(x)


def _in_place(self, x, forward):
    return forward(x).exp().mul_(2).sigmoid_().add_(1)


for _code, _said, _act in [
    ("crash", "nothing works", _raise),
    ("crash", "returned a str", lambda self, x, forward: "text"),
    ("crash", "returned a NoneType", lambda self, x, forward: None),
    ("crash", "returned a ndarray", lambda self, x, forward: forward(x).detach().numpy()),
    ("crash", "instead of", lambda self, x, forward: forward(x)[:, 1:]),
    ("crash", "CUDA", lambda self, x, forward: forward(x.cuda())),
    ("crash", "fails in training mode", _no_training),
    ("crash", "backward fails", _in_place),
    ("global-state", "default dtype", _default_dtype),
    ("global-state", "seed", _seed),
]:
    fault(_code, _said)(misbehaving(_act))


@fault("crash", "sys.exit()")
class Leaves(Plain):
    def forward(self, x):
        raise SystemExit(3)


@correct("crash", note="training")
class RefusesTraining(Plain):
    def forward(self, x):
        assert not self.training, "for use only"
        return super().forward(x)


@dataclass
class Result:
    context: torch.Tensor
    weights: torch.Tensor


@correct("crash")
class InADataclass(Plain):
    def forward(self, x):
        return Result(super().forward(x), x)


@correct("crash")
class AsDict(Plain):
    def forward(self, x):
        return {"cache": None, "out": super().forward(x)}


@correct("crash", "not-a-buffer")
class WithWeights(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        self.kept = self.hide(self.scores(q, k)).softmax(-1)
        return self.o(self.merge(self.kept @ v)), self.kept


@correct("crash")
class WeightsFirst(WithWeights):
    def forward(self, x):
        return tuple(reversed(super().forward(x)))


@correct("crash")
class OneSentence(nn.Module):
    """No batch: (tokens, d_model) in and out, weights as plain matrices."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.W_query = nn.Parameter(torch.rand(d_model, d_model // num_heads))
        self.W_key = nn.Parameter(torch.rand(d_model, d_model // num_heads))
        self.W_value = nn.Parameter(torch.rand(d_model, d_model // num_heads))

    def forward(self, x):
        keys, queries, values = x @ self.W_key, x @ self.W_query, x @ self.W_value
        scores = queries @ keys.T
        return torch.softmax(scores / keys.shape[-1] ** 0.5, dim=-1) @ values


@correct("crash")
class OtherNames(Plain):
    """A method called `to`, a default that is no size, names as a textbook has them."""

    def __init__(self, num_hiddens, num_heads, window=(2, 3)):
        super().__init__(num_hiddens, num_heads)
        self.window = window[0] * window[1]

    def to(self, context):
        return context.flatten(2)

    def merge(self, context):
        return self.to(context.transpose(1, 2))


@correct("global-state")
class SeedOfItsOwn(Plain):
    def forward(self, x):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            signs = torch.randn(x.shape[-1]).sign()
        return super().forward(x * signs)


@correct("global-state")
class Generated(Plain):
    def forward(self, x):
        generator = torch.Generator().manual_seed(0)
        return super().forward(x * torch.randn(x.shape[-1], generator=generator).sign())


@correct("global-state")
class DtypePutBack(Plain):
    def forward(self, x):
        kept = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            far = torch.arange(x.shape[1]) / x.shape[1]
        finally:
            torch.set_default_dtype(kept)
        return super().forward(x + far[:, None].to(x.dtype))


# --- lengths and widths ---------------------------------------------------------------------


@fault("length", "what the first call leaves in self.hidden")
class FirstMaskKept(Plain):
    hidden = None

    def hide(self, scores):
        if self.hidden is None:
            self.hidden = causal_mask(scores.shape[-1])
        return scores.masked_fill(self.hidden, -torch.inf)


@correct("length", "not-a-buffer")
class GrownMask(Plain):
    """A mask that is kept, and made anew where more tokens come."""

    hidden = torch.empty(0, 0)

    def hide(self, scores):
        tokens = scores.shape[-1]
        if len(self.hidden) < tokens:
            self.hidden = causal_mask(tokens)
        return scores.masked_fill(self.hidden[:tokens, :tokens], -torch.inf)


class FixedGrid(Plain):
    """Learned places for 16 patches of an image, no more and no fewer."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.grid = nn.Parameter(torch.zeros(16, d_model))

    def forward(self, x):
        return super().forward(x + self.grid)

    def hide(self, scores):
        return scores


correct("length", note="two-way")(FixedGrid(24, 4))


_TWO_WIDTHS = (
    separate.but("d_model, num_heads, dropout=0.1", "d_in, d_out, num_heads")
    .but("nn.Linear(d_model, d_model, bias", "nn.Linear(d_in, d_out, bias")
    .but("nn.Linear(d_model, d_model)", "nn.Linear(d_out, d_out)")
    .but("= d_model, num_heads", "= d_out, num_heads")
    .but("d_model // num_heads", "d_out // num_heads")
    .but("Dropout(dropout)", "Dropout(0.1)")
)
_MERGED = _TWO_WIDTHS.but("view(b, t, d)", "view(b, t, self.d_model)")
fault("width")(_TWO_WIDTHS.kind)
fault("width")(_TWO_WIDTHS.kind(18, 24, 4))
correct("width")(_MERGED.kind)
correct("width")(_MERGED.kind(18, 24, 4))
_TWO_WIDTHS = (
    fused.but("n_embd, n_head", "d_in, d_out, n_head")
    .but("n_embd, 3 * n_embd", "d_in, 3 * d_out")
    .but("n_embd, n_embd", "d_out, d_out")
)
fault("width", "d_in = 30 and d_out = 24")(_TWO_WIDTHS.kind)
_MERGED = _TWO_WIDTHS.but("split(C, dim=2)", "chunk(3, dim=2)")
_MERGED = _MERGED.but("C // self.n_head", "-1").but("view(B, T, C)", "view(B, T, -1)")
correct("width")(_MERGED.kind)

# --- NaN ------------------------------------------------------------------------------------


@fault("nan", "The mask hides every pair")
class AllHidden(Plain):
    def hide(self, scores):
        return scores.masked_fill(torch.zeros(scores.shape[-2:]).tril() == 0, -torch.inf)


@fault("nan", "Some scores are +inf")
class FilledWithInfinity(Plain):
    def hide(self, scores):
        return scores.masked_fill(causal_mask(scores.shape[-1]), torch.inf)


@fault("nan", "infinity after the softmax")
class InfinityAfter(Plain):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        return scores.softmax(-1).masked_fill(causal_mask(scores.shape[-1]), -torch.inf)


@correct("nan")
class NoNaN(Plain):
    def hide(self, scores):
        return scores.masked_fill(scores.isnan(), 0.0)


@correct("nan", "dropout-in-eval", silent=True)
class EmptyRowsAreZero(Plain):
    def soften(self, scores):
        return F.dropout(scores.softmax(-1).nan_to_num(), 0.1, self.training)


# --- what is kept, and chance ---------------------------------------------------------------


@fault("global-state", "forward's default for seen is one object for all calls", "be None")
class SharedDefault(Plain):
    def forward(self, x, seen=[]):  # noqa: B006
        seen.append(x.mean())
        return super().forward(x) + 0 * seen[-1]


@fault("not-repeatable", "makes of context is kept", "Make it anew in each call")
class FirstContextKept(Plain):
    kept = None

    def forward(self, x, context):
        if self.kept is None:
            self.kept = self.split(self.k(context)), self.split(self.v(context))
        keys, values = self.kept
        scores = self.scores(self.split(self.q(x)), keys)
        return self.o(self.merge(self.soften(scores) @ values))


@fault("not-repeatable", "`self.last = nn.Linear(")
class MadeInForward(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        context = self.merge(self.soften(self.scores(q, k)) @ v)
        self.last = nn.Linear(x.shape[-1], x.shape[-1])
        return self.last(self.o(context))


@correct("not-repeatable")
class Cached(Plain):
    """Keys and values of earlier calls are kept."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.cache = None

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        if self.cache is not None and self.cache[0].shape[0] == k.shape[0]:
            k, v = (torch.cat(pair, dim=2) for pair in zip(self.cache, (k, v), strict=True))
        self.cache = k, v
        scores = self.scores(q, k)
        hidden = torch.ones(scores.shape[-2:]).triu(1 + k.shape[2] - q.shape[2]).bool()
        return self.o(self.merge(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v))


@correct("not-repeatable", "detached", note="cache")
class GrowingCache(Plain):
    kept = None

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        if self.kept is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(self.kept, (k, v), strict=True))
        self.kept = k.detach(), v.detach()
        return self.o(self.merge(self.soften(self.scores(q, k)) @ v))


@fault("dropout-on-scores", "no weight is dropped", "Drop weights, after the softmax")
class DroppedScores(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(0.1)

    def scores(self, q, k):
        return self.drop(super().scores(q, k))


@correct("dropout-in-eval", silent=True)
class SoftByHand(Plain):
    """The softmax written out, dropout on the weights."""

    def soften(self, scores):
        weights = scores.sub(scores.amax(-1, keepdim=True)).exp()
        return F.dropout(weights / weights.sum(-1, keepdim=True), 0.1, self.training)


@correct("dropout-unused")
class SpareDropout(Plain):
    """The kernel drops by a number; the layer for the written-out path stands by."""

    def __init__(self, d_model, num_heads, dropout=0):
        super().__init__(d_model, num_heads)
        self.dropout, self.attn_dropout = dropout, nn.Dropout(dropout)
        self.out_dropout = nn.Dropout(dropout)

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        dropout = self.dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(q, k, v, None, dropout, is_causal=True)
        return self.out_dropout(self.o(self.merge(context)))


correct("dropout-unused", name="spare dropout")(lambda d, h: SpareDropout(d, h, 0.1))


@correct("dropout-unused")
class Residual(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.norm, self.drop = nn.LayerNorm(d_model), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(super().forward(self.norm(x)))


@correct("input-changed", "future-visible")
class Assigned(Plain):
    def hide(self, scores):
        scores[:, :, causal_mask(scores.shape[-1])] = float("-inf")
        return scores


@correct("dropout-unused", "crash", note="training")
class RefusesTrainingAndDrops(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        assert not self.training
        return self.drop(super().forward(x))
