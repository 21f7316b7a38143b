"""Two ways to ask the same question: planted faults, and what looks like them."""

import torch
import torch.nn.functional as F
from bases import Plain, Text, TwoWay, einsum, fused, given, heads, kernel, separate
from bases import transposed as tokens_first
from registry import correct, fault
from torch import nn

from attention_course import causal_mask, rotary

# --- a longer sentence and its beginning ----------------------------------------------------

fault("beginning-changes", "In a sentence of 8 tokens position 0 sees tokens after position 4")(
    kernel.but("is_causal=True", "is_causal=tokens <= 6")
)
fault("beginning-changes", "position 0 sees tokens after position 4", "column > row")(
    einsum.but("triu(1)", "triu(1).tril(6)")
)
fault("beginning-changes", "position 2 sees tokens after position 4")(
    tokens_first.but(
        'torch.full((t, t), float("-inf"), device=x.device).triu(1)',
        'F.pad(torch.full((4, 4), float("-inf")).triu(1), (0, t - 4, 0, t - 4))'
        ' + torch.full((t, t), float("-inf")).triu(1 if t < 8 else 4)',
    )
)


@fault("beginning-changes", "In a sentence of 12 tokens", "sees tokens after position 4")
class MaskAnewInEachChunk(Plain):
    """Rows go in chunks where they fit, and a chunk sees the whole of itself."""

    chunk = None

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.chunk = 6

    def hide(self, scores):
        at = torch.arange(scores.shape[-1])
        if len(at) % self.chunk == 0:
            at = at // self.chunk
        return scores.masked_fill(at > at[:, None], -torch.inf)


@fault("beginning-changes", "position 3 does not see position 0")
class WindowOfAShare(Plain):
    """The window grows with the sentence, and is cut at three tokens where that is long."""

    def hide(self, scores):
        at = torch.arange(scores.shape[-1])
        far = at[:, None] - at
        return scores.masked_fill((far < 0) | (far > (9 if len(at) < 8 else 2)), -torch.inf)


@correct("beginning-changes", silent=True)
class WindowOfSixTokens(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.window = 6

    def hide(self, scores):
        at = torch.arange(scores.shape[-1])
        far = at[:, None] - at
        return scores.masked_fill((far < 0) | (far >= self.window), -torch.inf)


@correct("beginning-changes", silent=True)
class ChunkByChunk(Plain):
    """Queries in chunks of four, to save memory; each with its rows of the mask."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.chunk_size = 4

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        hidden, parts = causal_mask(x.shape[1]), []
        for rows, looking in zip(
            hidden.split(self.chunk_size), q.split(self.chunk_size, 2), strict=True
        ):
            scores = self.scores(looking, k).masked_fill(rows, -torch.inf)
            parts.append(scores.softmax(-1) @ v)
        return self.o(self.merge(torch.cat(parts, dim=2)))


@correct("beginning-changes", note="beginning-changes")
class PlacesFromTheEnd(Plain):
    """Places are counted from the last token: all rows change, and no other token is seen."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.table = nn.Parameter(torch.randn(99, d_model))

    def forward(self, x):
        return super().forward(x + self.table[: x.shape[1]].flip(0))


@fault("beginning-changes", "In a sentence of 12 tokens")
class SharesAndChunks(MaskAnewInEachChunk):
    """Places depend on the number of tokens at any length, and the mask at some."""

    def forward(self, x):
        return super().forward(x + (torch.arange(x.shape[1]) / x.shape[1])[:, None])


# --- training and evaluation ----------------------------------------------------------------

fault("modes-differ", "training and evaluation mode give different weights")(
    separate.but("queries @ keys", "(queries * (2 if self.training else 1)) @ keys")
)
fault("modes-differ")(
    einsum.but(
        "        sim = sim.masked",
        "        sim = sim.tanh() if self.training else sim\n        sim = sim.masked",
    )
)
fault("modes-differ")(
    heads.but(
        "dim=-1)\n        wei = self",
        "dim=-1)\n        if self.training:\n            wei = F.normalize(wei**2, 1, -1)\n"
        "        wei = self",
    )
)


@fault("modes-differ", "Do the same in both")
class NormedInTraining(TwoWay):
    def places(self, x):
        return F.normalize(x, dim=-1) if self.training else x


@correct("modes-differ")
class NoiseInTraining(TwoWay):
    """Noise on the scores, as a regulariser; evaluation goes without."""

    def scores(self, q, k):
        scores = super().scores(q, k)
        return scores + torch.randn_like(scores) if self.training else scores


@correct("modes-differ", silent=True)
class DropsKeysInTraining(Plain):
    """Some keys are hidden in training, at random."""

    def hide(self, scores):
        lost = torch.rand(scores.shape) < 0.3 if self.training else torch.zeros(scores.shape) > 0
        return super().hide(scores.masked_fill(lost, -1e4))


@correct("modes-differ")
class SpectralNorm(TwoWay):
    """The largest singular value is estimated further with each call in training mode."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.q = nn.utils.parametrizations.spectral_norm(self.q)


@correct("modes-differ", "dropout-lost", silent=True)
class KernelInEvaluation(Plain):
    """Written out where dropout is at work, and one call of the kernel elsewhere."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        if self.training:
            return super().forward(x)
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)))

    def soften(self, scores):
        return self.drop(super().soften(scores))


# --- dropout --------------------------------------------------------------------------------

fault("dropout-lost", "after one call in evaluation mode", "self.training else 0.0")(
    kernel.but(
        "p = self.dropout if self.training else 0.0",
        "self.dropout = p = self.dropout if self.training else 0.0",
    )
)
fault("dropout-lost", "changes the module's own rate or layer")(
    separate.but(
        "weights = self.dropout(weights)",
        "self.dropout.p *= self.training\n        weights = self.dropout(weights)",
    )
)
fault("dropout-lost", "Leave it as it is")(
    einsum.but(
        "attn = self.drop(attn)",
        "self.drop = self.drop if self.training else nn.Identity()\n        attn = self.drop(attn)",
    )
)


@correct("dropout-lost", silent=True)
class RateForTheCall(Plain):
    """The rate of the call is kept beside that of the module."""

    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__(d_model, num_heads)
        self.dropout, self.now = dropout, 0.0

    def soften(self, scores):
        self.now = self.dropout if self.training else 0.0
        return F.dropout(super().soften(scores), self.now)


@correct("dropout-lost", silent=True)
class RateOfTheEpoch(Plain):
    """The rate falls with each call in training mode, and evaluation leaves it alone."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(0.1)

    def soften(self, scores):
        if self.training:
            self.drop.p *= 0.999
        return self.drop(super().soften(scores))


fault("dropout-on-scores", "NaN comes out", "0 * -inf is NaN", "after the softmax")(
    separate.but("        weights = self.dropout(weights)\n", "").but(
        "scores / self.head_dim", "self.dropout(scores) / self.head_dim"
    )
)
fault("dropout-on-scores", "sees position", "exp(0) = 1", "after the softmax")(
    einsum.but("        attn = self.drop(attn)\n", "").but("sim.softmax", "self.drop(sim).softmax")
)
fault("dropout-on-scores", "NaN comes out")(
    tokens_first.but("        w = self.p(w)\n", "").but(
        "device=x.device).triu(1)", "device=x.device).triu(1)\n        s = self.p(s)"
    )
)
fault("dropout-on-scores", "position 0 sees position")(
    heads.but("        wei = self.drop(wei)\n", "").but(
        '        wei = wei.masked_fill(self.tril[:T, :T] == 0, float("-inf"))',
        "        wei = wei + self.drop((self.tril[:T, :T] - 1) * 1e9)",
    )
)


class Dropping(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(0.1)


@fault("nan", "In training mode, with dropout, NaN comes out; without dropout the numbers are")
class SharesOfNothing(Dropping):
    """Weights are made to add up to 1 after dropout: where all are dropped, that is 0 / 0."""

    def soften(self, scores):
        weights = self.drop(super().soften(scores))
        return weights / weights.sum(-1, keepdim=True)


@correct("dropout-on-scores", silent=True)
class DropsQueriesAndKeys(Dropping):
    def places(self, x):
        return self.drop(x)


@correct("dropout-on-scores", silent=True)
class DropsTheInput(Dropping):
    def forward(self, x):
        return super().forward(self.drop(x))


@correct("dropout-on-scores", note="dropout-on-scores")
class DropsTheLearnedBias(Dropping):
    """A bias for each head and place, of which dropout leaves a part: nothing is hidden by it."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.bias = nn.Parameter(torch.randn(num_heads, 64))

    def scores(self, q, k):
        tokens = q.shape[-2]
        return super().scores(q, k) + self.drop(self.bias[:, None, :tokens])


# --- the module's own type ------------------------------------------------------------------


def as_given(dtype, thing):
    """A module of a type of its own, under the name of its style."""
    made = (thing.make if isinstance(thing, Text) else thing)(24, 4).to(dtype)
    made.style = getattr(thing, "style", thing.__name__ if isinstance(thing, type) else "")
    return made


fault("own-dtype", "in float16, a call fails", "torch.finfo(scores.dtype).min")(
    as_given(torch.half, separate.but("-torch.inf", "-1e9"))
)
fault("own-dtype", "in float64, a call fails", "x.new_zeros")(
    as_given(
        torch.double,
        tokens_first.but('float("-inf"), device', 'float("-inf"), dtype=torch.float, device').but(
            "o = torch.bmm(w, v)", "o = torch.bmm(w.float(), v)"
        ),
    )
)
fault("own-dtype", "in bfloat16, a call fails")(
    as_given(
        torch.bfloat16,
        fused.but("F.softmax(att, dim=-1)", "F.softmax(att, dim=-1, dtype=torch.float32)"),
    )
)


class SoftmaxInFloat(Plain):
    """Weights in float32, and back to the type of the values."""

    def soften(self, scores):
        return scores.float().softmax(-1).to(scores.dtype)


class LargeQueries(TwoWay):
    """Queries are made large, and the factor is taken out of the scores."""

    def scores(self, q, k):
        return super().scores(1e5 * q, k) / 1e5


class LargeQueriesInFloat(LargeQueries):
    def scores(self, q, k):
        return super().scores(q.float(), k.float()).to(k.dtype)


class TableInFloat(TwoWay):
    """The table of places stays in float32, whatever the weights are in."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.register_buffer("table", torch.randn(99, d_model))

    def to(self, dtype):
        super().to(dtype)
        self.table = self.table.float()
        return self

    def placed(self, x):
        return x + self.table[: x.shape[1]]

    def forward(self, x):
        return super().forward(self.placed(x))


class TableInFloatTaken(TableInFloat):
    def placed(self, x):
        return super().placed(x).to(x.dtype)


fault("own-dtype", "in float16, a call fails", "Take the type of what is there")(
    as_given(torch.half, TableInFloat)
)


class NormInFloat(TwoWay):
    """All in half precision, save a norm that is kept in float32."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.norm = nn.LayerNorm(d_model)

    def to(self, dtype):
        super().to(dtype)
        self.norm.float()
        return self

    def forward(self, x):
        return super().forward(self.norm(x.float()).to(x.dtype))


class WeightsBeyondNumbers(TwoWay):
    """Weights that nobody has filled as yet: they are no numbers in any type."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        nn.init.constant_(self.o.weight, torch.inf)


fault("own-dtype", "in float16, NaN or infinity comes out", "sum in float32")(
    as_given(torch.half, LargeQueries)
)
for _dtype in (torch.half, torch.bfloat16, torch.double):
    for _kind in (
        SoftmaxInFloat,
        LargeQueriesInFloat,
        TableInFloatTaken,
        NormInFloat,
        WeightsBeyondNumbers,
    ):
        _name = f"{_kind.__name__} in {str(_dtype).removeprefix('torch.')}"
        correct("own-dtype", name=_name, silent=_kind is SoftmaxInFloat)(as_given(_dtype, _kind))


# --- keys of another number of tokens -------------------------------------------------------

fault("key-length", "With 5 queries, 7 keys and values fail", "keys.shape[1]")(
    given.but("view(n, -1, self.h, self.d_k)", "view(n, length, self.h, self.d_k)").but(
        "n = query.size(0)", "n, length = query.shape[:2]"
    )
)


class FromContext(Plain):
    def forward(self, x, context):
        q, k, v = self.split(self.q(x)), self.split(self.k(context)), self.split(self.v(context))
        return self.o(self.merge(self.soften(self.hide(self.scores(self.places(q), k))) @ v))

    def hide(self, scores):
        return scores


@fault("key-length", "7 keys and values fail")
class BiasOfTheQueries(FromContext):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.bias = nn.Parameter(torch.randn(64))

    def hide(self, scores):
        return scores + self.bias[: scores.shape[-2]]


@correct("key-length")
class FromAnyContext(FromContext):
    pass


@correct("key-length", note="key-length")
class RefusesOtherLengths(FromContext):
    def forward(self, x, context):
        if x.shape != context.shape:
            raise ValueError("x and context are of two translations of one length")
        return super().forward(x, context)


@correct("key-length")
class NoMoreThanSixTokens(FromContext):
    """A table of places for both: one number of tokens for any input, and no more."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.max_len, self.places_of = 6, nn.Embedding(6, d_model)

    def forward(self, x, context):
        return super().forward(
            x + self.places_of(torch.arange(x.shape[1])),
            context + self.places_of(torch.arange(context.shape[1])),
        )


@correct("key-length")
class BesideEachToken(FromContext):
    """The context gives one vector more for each token, and is not attended to by itself."""

    def forward(self, x, context):
        both = x + torch.sigmoid(context)
        return super().forward(both, both)


# --- another number of heads ----------------------------------------------------------------


@fault("other-heads", "It works with 4 heads and fails with 2", "Make as many as forward uses")
class ProjectionsCountedByHeads(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads, self.scale = num_heads, (d_model // num_heads) ** -0.5
        self.layers = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(num_heads))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in self.layers[:3])
        weights = (q @ k.mT * self.scale).softmax(-1)
        return self.layers[3]((weights @ v).transpose(1, 2).flatten(2))


fault("other-heads", "fails with 2", "The number of layers is the number of heads")(
    given.but("range(4)", "range(h)").but("self.linears[-1]", "self.linears[3]")
)


@fault("other-heads", "fails with 2", "The number of stacked matrices is the number of heads")
class MatricesCountedByHeads(TwoWay):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        del self.q, self.k, self.v, self.o
        self.stack = nn.Parameter(torch.randn(num_heads, d_model, d_model))

    def made(self, x):
        return x @ self.stack[0], x @ self.stack[1], x @ self.stack[2]

    def forward(self, x):
        q, k, v = map(self.split, self.made(x))
        return self.o(self.merge(self.soften(self.scores(q, k)) @ v))

    def o(self, x):
        return x @ self.stack[3]


@fault("other-heads", "stacked matrices")
class MatricesCountedByHeadsAtOnce(MatricesCountedByHeads):
    def made(self, x):
        return torch.einsum("btd,nde->nbte", x, self.stack[:3])

    def o(self, x):
        return x @ self.stack[-1]


@correct("other-heads")
class AMatrixForEachHead(MatricesCountedByHeads):
    """Stacks as long as there are heads, and all of it used."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        shape = num_heads, d_model, d_model // num_heads
        self.stacks = nn.ParameterList(torch.randn(shape) for _ in range(3))
        self.stack = nn.Parameter(torch.randn(4, d_model, d_model))

    def split(self, x):
        return x

    def made(self, x):
        return (x[:, None] @ matrices for matrices in self.stacks)

    def o(self, x):
        return x @ self.stack.sum(0)


@correct("other-heads", note="other-heads")
class FourMatricesForHeads(AMatrixForEachHead):
    """A matrix for each head, all of them used; four heads are asked for."""

    def merge(self, x):
        first, second, third, *others = x.unbind(1)
        return torch.cat([first, second, third, others[0], *others[1:]], dim=-1)


@correct("other-heads")
class ALayerForEachHead(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        part = d_model // num_heads
        self.q, self.k, self.v = (
            nn.ModuleList(nn.Linear(d_model, part) for _ in range(num_heads)) for _ in range(3)
        )
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x):
        made = ([layer(x) for layer in layers] for layers in (self.q, self.k, self.v))
        heads = (F.scaled_dot_product_attention(*one) for one in zip(*made, strict=True))
        return self.o(torch.cat([*heads], dim=-1))


@correct("other-heads", note="other-heads")
class TwoKeysForFourHeads(ALayerForEachHead):
    """Two layers of keys and values, each for two of the four heads."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.k, self.v = self.k[:2], self.v[:2]

    def forward(self, x):
        near = (nn.ModuleList([*layers, *layers]) for layers in (self.k, self.v))
        k, v = near
        made = ([layer(x) for layer in layers] for layers in (self.q, k, v))
        heads = (F.scaled_dot_product_attention(*one) for one in zip(*made, strict=True))
        return self.o(torch.cat([*heads], dim=-1))


@correct("other-heads", note="other-heads")
class FourGroupsOfHeads(ALayerForEachHead):
    """Heads in four groups that share a temperature: four, eight or more of them, and all used."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.sharp = nn.Parameter(torch.ones(4, 1, 1, 1))

    def forward(self, x):
        made = ([layer(x) for layer in layers] for layers in (self.q, self.k, self.v))
        q, k, v = (torch.stack(list(parts), dim=1).unflatten(1, (4, -1)) for parts in made)
        context = F.scaled_dot_product_attention(q * self.sharp, k, v)
        return self.o(context.flatten(1, 2).transpose(1, 2).flatten(2))


@correct("other-heads", note="other-heads")
class FourHeadsTalking(TwoWay):
    """Weights are mixed by a matrix of four heads by four."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.mix = nn.Parameter(torch.eye(4))

    def scores(self, q, k):
        return torch.einsum("bhij,hg->bgij", super().scores(q, k), self.mix)


@correct("other-heads")
class AThirdOfAHeadTurned(Plain):
    """Of any width of a head, an even number of places near a third."""

    def places(self, x):
        turned = x.shape[-1] // 3 // 2 * 2
        return torch.cat([rotary(x[..., :turned]), x[..., turned:]], dim=-1)
