"""Layers, parameters and buffers: planted faults, and what looks like them."""

import torch
import torch.nn.functional as F
from bases import Plain, einsum, fused, heads, kernel, separate
from registry import correct, fault
from torch import nn

from attention_course import causal_mask

from .roles import FusedHeadLeftZero, LastHeadOnly

fault("unused-layer", "out_proj")(separate.but("self.out_proj(context)", "context"))
fault("unused-layer")(kernel.but("self.to_out(out)", "out"))
fault("unused-layer")(heads.but("return self.proj(out)", "self.proj(out)\n        return out"))
fault("detached")(separate.but("self.W_key(x)", "self.W_key(x).detach()"))
fault("detached")(fused.but("dim=2)", "dim=2)\n        q = q.data"))
fault("detached")(einsum.but("drop(attn)", "drop(attn).detach()"))
fault("not-registered", "self.heads", "nn.ModuleList")(
    heads.but("nn.ModuleList([Head", "[Head").but("num_heads)])", "num_heads)]")
)
fault("not-registered")(
    separate.but(
        "W_value = nn.Linear(d_model, d_model, bias=False)", "W_value = nn.Linear(d_model, d_model)"
    ).but("self.W_value", "GLOBAL['v']")
)
fault("not-registered")(
    einsum.but(
        "self.wv = nn.Parameter(torch.randn(heads, dim, dim // heads) * 0.1)",
        "self.wv = torch.randn(heads, dim, dim // heads) * 0.1",
    )
)
fault("not-a-buffer", "self.mask", "register_buffer")(
    separate.but(
        'register_buffer("mask", torch.ones(8, 8).triu(1))', "mask = torch.ones(8, 8).triu(1)"
    )
)
fault("not-a-buffer")(
    heads.but(
        'register_buffer("tril", torch.tril(torch.ones(8, 8)))',
        "tril = torch.tril(torch.ones(8, 8))",
    )
)
fault("not-a-buffer")(
    fused.but(
        'self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))',
        "self.bias = torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8)",
    )
)


@fault("unused-layer", "heads.1, heads.2 and heads.3 are never called")
class ReturnInTheLoop(LastHeadOnly):
    def forward(self, x):
        for head in self.heads:
            return self.o(head(x))


@fault("detached", "q.weight and k.weight, but no gradient reaches them")
class TwoDetached(Plain):
    def scores(self, q, k):
        return super().scores(q.detach(), k.detach())


@fault("not-a-buffer", "is a trainable nn.Parameter")
class MaskIsTrained(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.seen = nn.Parameter(torch.ones(17, 17).tril())

    def hide(self, scores):
        tokens = scores.shape[-1]
        return scores.masked_fill(self.seen[:tokens, :tokens] == 0, -torch.inf)


@fault("not-a-buffer", "self.register_buffer('seen', mask")
class AddedMaskIsTrained(MaskIsTrained):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.seen = nn.Parameter(torch.full((17, 17), -1e9).triu(1))

    def hide(self, scores):
        return scores + self.seen[: scores.shape[-1], : scores.shape[-1]]


@correct("not-a-buffer")
class FrozenMask(Plain):
    """The mask is a parameter that is not trained: it moves with the module."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.keep = nn.Parameter(torch.ones(8, 8).tril(), requires_grad=False)

    def hide(self, scores):
        tokens = scores.shape[-1]
        return scores.masked_fill(self.keep[:tokens, :tokens] == 0, -torch.inf)


@correct("not-a-buffer")
class OwnLayer(nn.Module):
    """A mask made at the first call and kept on the input's device."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.inner, self.hidden = Plain(d_model, num_heads), None
        self.inner.hide = self.hide

    def hide(self, scores):
        if self.hidden is None or self.hidden.shape[-1] != scores.shape[-1]:
            self.hidden = causal_mask(scores.shape[-1], scores.device)
        return scores.masked_fill(self.hidden, -torch.inf)

    def forward(self, x):
        return self.inner(x)


@correct("not-registered")
class AlsoInAList(Plain):
    """A plain list of layers that are registered by their names."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.projections = [self.q, self.k, self.v]

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in self.projections)
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


@correct("unused-layer")
class WeightsAlone(Plain):
    """A layer's weight is used, and the layer never called."""

    def forward(self, x):
        q, k, v = (F.linear(x, layer.weight, layer.bias) for layer in (self.q, self.k, self.v))
        q, k, v = self.split(q), self.split(k), self.split(v)
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


@correct("detached", "softmax-axis")
class SteadySoftmax(Plain):
    """The largest score is taken off without a gradient."""

    def soften(self, scores):
        raised = (scores - scores.detach().amax(-1, keepdim=True)).exp()
        return raised / raised.sum(-1, keepdim=True)


@correct("unused-layer", "scale", silent=True)
class Gain(Plain):
    """A gain, one number, on the output: no other call reads what it gives."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.gain * super().forward(x)


@fault("unused-layer", "gain is never called")
class GainForgotten(Gain):
    def forward(self, x):
        return Plain.forward(self, x)


@fault("scale", "You divide by √24 (d_model)")
class GainAndWrongScale(Gain):
    def scores(self, q, k):
        return q @ k.mT / (self.num_heads * self.head_dim) ** 0.5


@fault("detached", "depends on columns 0 to 5 of qkv, but no gradient")
class OneHeadDetached(FusedHeadLeftZero):
    """The queries of one head of four: 6 of the 72 columns of a fused weight do not learn."""

    def merge(self, x):
        return Plain.merge(self, x)

    def scores(self, q, k):
        return super().scores(torch.cat([q[:, :1].detach(), q[:, 1:]], dim=1), k)


# --- one layer in several places ------------------------------------------------------------


class Stacked(nn.Module):
    depth = 3

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.layers = nn.ModuleList(self.made(d_model, num_heads))

    def made(self, d_model, num_heads):
        return [Plain(d_model, num_heads) for _ in range(self.depth)]

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x


correct("layers-alike", silent=True)(Stacked)


@fault("layers-alike", "layers holds 1 layer for 3 places")
class StackedOne(Stacked):
    def made(self, d_model, num_heads):
        return [Plain(d_model, num_heads)] * self.depth


@fault("layers-alike", "Make each anew")
class InARow(nn.Sequential):
    def __init__(self, d_model, num_heads):
        super().__init__(*[Plain(d_model, num_heads)] * 2)


@correct("layers-alike", silent=True)
class OneLayerInALoop(Plain):
    """Said in the code: the layer is applied twice."""

    def forward(self, x):
        return super().forward(super().forward(x))


@correct("not-a-buffer", silent=True)
class BroughtInEachCall(Plain):
    """A plain table, of which each call brings what it needs to the device of its input."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.hidden = causal_mask(64)

    def hide(self, scores):
        tokens = scores.shape[-1]
        return scores.masked_fill(self.hidden[:tokens, :tokens].to(scores.device), -torch.inf)
