"""The scale of the scores and rotary positions: planted faults, and what looks like them."""

import math

import torch
import torch.nn.functional as F
from bases import Plain, einsum, fused, given, heads, kernel, separate, transposed
from registry import correct, fault
from torch import nn

from attention_course import causal_mask, rotary

fault("scale", "√24", "6 numbers", "half as large")(separate.but("self.head_dim**0.5", "d**0.5"))
fault("scale", "not divided at all", "√6")(fused.but(" * (1.0 / math.sqrt(k.size(-1)))", ""))
fault("scale")(heads.but("k.shape[-1] ** -0.5", "k.shape[-1] ** 0.5"))
fault("scale")(einsum.but("(dim // heads) ** -0.5", "1 / (dim // heads)"))
fault("scale")(transposed.but("math.sqrt(self.d)", "math.sqrt(t)"))
fault("scale")(kernel.but("is_causal=True", "is_causal=True, scale=width**-0.5"))
fault("scale")(given.but("math.sqrt(self.d_k)", "math.sqrt(query.size(1))"))


@fault("scale", "leave out your factor")
class DividedTwice(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(q / math.sqrt(self.head_dim), k, v)
        return self.o(self.merge(context))


class TurnedAndScaled(Plain):
    """Rotary positions, and the wrong scale given to the fused kernel."""

    def __init__(self, d_model, num_heads, scale):
        super().__init__(d_model, num_heads)
        self.scale = scale

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(
            rotary(q), rotary(k), v, is_causal=True, scale=self.scale
        )
        return self.o(self.merge(context))


fault("scale", "√24")(TurnedAndScaled(24, 4, 24**-0.5))
correct("scale", "rotary")(TurnedAndScaled(24, 4, None))


@correct("scale")
class Normed(Plain):
    def places(self, x):
        return F.normalize(x, dim=-1)

    def scores(self, q, k):
        return 10 * q @ k.mT


@correct("scale")
class LearnedTemperature(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def scores(self, q, k):
        return q @ k.mT * self.temperature


@correct("scale")
class QuarterRoots(Plain):
    def places(self, x):
        return x * self.head_dim**-0.25

    def scores(self, q, k):
        return q @ k.mT


@correct("scale")
class ScaledQueries(Plain):
    def scores(self, q, k):
        q = q / math.sqrt(self.head_dim)
        return torch.einsum("bhqd,bhkd->bhqk", q, k)


@correct("scale", "future-visible")
class MaskFirst(Plain):
    def scores(self, q, k):
        return q @ k.mT

    def hide(self, scores):
        return scores.masked_fill(causal_mask(scores.shape[-1]), -1e9) / math.sqrt(self.head_dim)


@correct("scale", "wrong-pair")
class KeysOfPlaces(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.table = nn.Parameter(torch.randn(33, d_model))

    def scores(self, q, k):
        return super().scores(q, k + self.split(self.table[None, : k.shape[2]]))


fault("rotary", "scores at the same distance differ")(
    separate.but("queries @ keys", "rotary(queries) @ keys")
)
fault("rotary", "scores at the same distance differ")(
    kernel.but("attention(q, k,", "attention(q, rotary(k),")
)


# --- rotary positions -----------------------------------------------------------------------


@correct("rotary")
class Rotary(Plain):
    def places(self, x):
        return rotary(x)


@correct("rotary", silent=True)
class Halves(Plain):
    """Rotary positions with pairs (i, i + head_dim / 2); each method can be got wrong."""

    def angles(self, x):  # (tokens, head_dim / 2)
        tokens, half = x.shape[-2], self.head_dim // 2
        return torch.outer(torch.arange(tokens) / 1.0, 100.0 ** -(torch.arange(half) / half))

    def both(self, angles):
        return torch.cat([angles, angles], dim=-1)

    def turn(self, x):
        first, second = x.chunk(2, dim=-1)
        return torch.cat([-second, first], dim=-1)

    def places(self, x):
        angles = self.both(self.angles(x))
        return x * angles.cos() + self.turn(x) * angles.sin()


@correct("rotary", silent=True)
class AsComplex(Halves):
    def places(self, x):
        angles, pairs = self.angles(x), torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


@fault("rotary", "scores at the same distance differ")
class KeysHeldStill(Halves):
    def scores(self, q, k):
        return super().scores(self.places(q), k)

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


@fault("rotary", "scores at the same distance differ")
class AnglesOfOtherPairs(Halves):
    def both(self, angles):
        return angles.repeat_interleave(2, dim=-1)


@fault("rotary", "scores at the same distance differ")
class NoMinus(Halves):
    def turn(self, x):
        return torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)


@fault("rotary", "turned by the same angle")
class AnglesByHead(Halves):
    def places(self, x):
        return super().places(x.transpose(1, 2)).transpose(1, 2)


@fault("rotary", "turned by the same angle")
class ComplexByHead(AsComplex):
    def places(self, x):
        return super().places(x.transpose(1, 2)).transpose(1, 2)


@fault("length")
class Grid(Halves):
    """Places in a grid of 4 by 4: one pair turns by the row, the others by the column."""

    def angles(self, x):
        row, column = torch.arange(16).div(4, rounding_mode="floor"), torch.arange(16) % 4
        return torch.stack([row, column, 0.1 * column], dim=-1)


@fault("rotary", "The values are turned by position too", "queries and keys alone")
class ValuesToo(Halves):
    def forward(self, x):
        q, k, v = (self.places(self.split(layer(x))) for layer in (self.q, self.k, self.v))
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


fault("rotary", "The values are turned by position too")(
    kernel.but("attention(q, k, v,", "attention(rotary(q), rotary(k), rotary(v),")
)


@correct("rotary", silent=True)
class ValuesTurnedBack(Halves):
    """Each value is turned by its place, each context back by its own: the distance is left."""

    def back(self, x):
        angles = self.both(self.angles(x))
        return x * angles.cos() - self.turn(x) * angles.sin()

    def forward(self, x):
        q, k, v = (self.places(self.split(layer(x))) for layer in (self.q, self.k, self.v))
        return self.o(self.merge(self.back(self.soften(self.hide(self.scores(q, k))) @ v)))


@correct("rotary", silent=True)
class KeptPlaces(Plain):
    """A mask of 0 and 1 and its complement turn nothing."""

    def places(self, x):
        kept = (torch.arange(x.shape[-2]) % 2)[:, None].expand(x.shape[-2:]).float()
        return x * kept + 0.5 * x * (1 - kept)


@correct("rotary", silent=True)
class LearnedPlacesToo(Halves):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.table = nn.Parameter(torch.randn(33, d_model))

    def forward(self, x):
        return super().forward(x + self.table[: x.shape[1]])


@correct("rotary", silent=True)
class PlacesInRows(Halves):
    """Rows of three tokens: the first pair turns by the row, the others by the column."""

    def angles(self, x):
        places = torch.arange(x.shape[-2])
        row, column = places // 3, places % 3
        slower = (column / n for n in range(2, self.head_dim // 2 + 1))
        return torch.stack([row.float(), *slower], dim=-1)


@correct("rotary", "scale", silent=True)
class FactorByPlace(Halves):
    def scores(self, q, k):
        return super().scores(q * torch.arange(2, 2 + q.shape[-2]).log()[:, None], k)


@correct("rotary", silent=True)
class CoarseTables(Halves):
    def both(self, angles):
        return super().both(angles).bfloat16()


# --- a bias by distance ---------------------------------------------------------------------

ALIBI = """
        far = (torch.arange(T)[:, None] - torch.arange(T)).abs()
        att = att {sign} 0.5 ** torch.arange(1, self.n_head + 1)[:, None, None] * far
        att = att.masked_fill("""
fault("distance-bias", "grows by 0.0625 to 0.5", "far tokens are preferred")(
    fused.but("\n        att = att.masked_fill(", ALIBI.format(sign="+"))
)
correct("distance-bias", silent=True)(
    fused.but("\n        att = att.masked_fill(", ALIBI.format(sign="-"))
)


class ByDistance(Plain):
    def bias(self, far):
        return -0.3 * far

    def scores(self, q, k):
        at = torch.arange(q.shape[2])
        return super().scores(q, k) + self.bias((at[:, None] - at).abs())


correct("distance-bias", silent=True)(ByDistance)


@fault("distance-bias", "grows by 0.3 to 0.3")
class ByDistanceTurned(ByDistance):
    def bias(self, far):
        return 0.3 * far


@correct("distance-bias", silent=True)
class LearnedByDistance(ByDistance):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.slope = nn.Parameter(torch.ones(1))

    def bias(self, far):
        return self.slope * far


@correct("distance-bias", silent=True)
class TableOfDistances(ByDistance):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.table = nn.Parameter(torch.randn(40))

    def bias(self, far):
        return self.table[far]
