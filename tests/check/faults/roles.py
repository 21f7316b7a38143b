"""Which input and which layer plays which part: planted faults, and what looks like them."""

import copy

import torch
import torch.nn.functional as F
from bases import Plain, TwoWay, einsum, fused, heads, kernel, separate, transposed
from registry import correct, fault
from torch import nn

from attention_course import CausalHead, causal_mask

fault("wrong-pair", "W_key changes nothing", "values")(separate.but("@ keys", "@ values"))
fault("wrong-pair")(fused.but("q @ k", "k @ k"))
fault("wrong-pair")(heads.but("q @ k", "q @ q"))
fault("wrong-pair")(einsum.but('"bhie,bhje->bhij", q, k)', '"bhie,bhje->bhij", q, v)'))
fault("wrong-pair")(kernel.but("attention(q, k, v,", "attention(k, k, v,"))
fault("wrong-values")(separate.but("weights @ values", "weights @ keys"))
fault("wrong-values")(transposed.but("torch.bmm(w, v)", "torch.bmm(w, k)"))
fault("wrong-values")(fused.but("y = att @ v", "y = att @ k"))
fault("wrong-values")(kernel.but("attention(q, k, v,", "attention(q, k, q,"))
fault("one-for-all", "All rows of the queries")(
    separate.but("queries @", "queries[:, :, -1:].expand_as(queries) @")
)
fault("one-for-all", "All rows of the values")(fused.but("@ v", "@ v[:, :, :1].expand_as(v)"))
fault("attention-unused", "changing W_query, W_key and W_value changes nothing")(
    separate.but("return self.out_proj(context)", "self.out_proj(context)\n        return x")
)
fault("attention-unused", "changing c_attn changes nothing")(
    fused.but("self.c_proj(y)", "self.c_proj(x)")
)
correct("wrong-pair")(
    separate.but("queries @ keys", "keys @ queries")
)  # the same function, with two names swapped

fault("wrong-values", "Give both one letter: 'bhij,bhje->bhie'")(
    einsum.but('"bhij,bhje->bhie", attn', '"bhij,bhke->bhie", attn')
)
fault("wrong-pair", "Give both one letter: 'bhie,bhje->bhij'")(
    einsum.but("bhie,bhje->bhij", "bhie,bhjd->bhij")
)
fault("wrong-values", "the diagonal alone")(
    fused.but("y = att @ v", "y = att.diagonal(dim1=-2, dim2=-1)[..., None] * v")
)


# --- several inputs -------------------------------------------------------------------------


@correct("wrong-pair", note="two-way")
class Given(Plain):
    """forward(query, key, value) for three inputs."""

    def hide(self, scores):
        return scores

    def forward(self, query, key, value):
        q, k, v = self.split(self.q(query)), self.split(self.k(key)), self.split(self.v(value))
        return self.o(self.merge(self.soften(self.scores(q, k)) @ v))


@fault("wrong-pair", "Changing key alone changes nothing")
class KeysOfTheQueries(Given):
    def forward(self, query, key, value):
        return super().forward(query, query, value)


@fault("wrong-values", "Changing value alone changes nothing")
class ValuesOfTheQueries(Given):
    def forward(self, value, key, query):
        return super().forward(query, key, query)


@fault("wrong-pair", "query stands where")
class RolesSwapped(Given):
    def scores(self, q, k):
        return super().scores(k, q)


@correct("wrong-pair")
class Looking(Plain):
    """Queries of x, keys and values of a context; a mask that is 0 hides."""

    def forward(self, x, context, mask=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(context)), self.split(self.v(context))
        scores = self.scores(q, k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.o(self.merge(self.soften(scores) @ v))


@fault("wrong-pair", "Changing context alone changes nothing")
class ContextIgnored(Looking):
    def forward(self, x, context):
        return super().forward(x, x)


@fault("wrong-pair", "Changing x alone changes nothing")
class InputIgnored(Looking):
    def forward(self, x, encoder_output):
        return super().forward(encoder_output, encoder_output)


@fault("wrong-pair", "The queries are made of context")
class QueriesOfTheContext(Looking):
    def forward(self, x, context):
        return super().forward(context, x)


@fault("crash", "mat1 and mat2")
class ContextTwiceAsWide(Looking):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.k, self.v = nn.Linear(2 * d_model, d_model), nn.Linear(2 * d_model, d_model)


@correct("crash", "wrong-pair")
class ContextOfItsOwnWidth(Looking):
    def __init__(self, d_model, num_heads, width=10):
        super().__init__(d_model, num_heads)
        self.k, self.v = nn.Linear(width, d_model), nn.Linear(width, d_model)


@correct("wrong-pair")
class LatentsLook(Looking):
    def forward(self, x, latents):
        return super().forward(latents, x)


@correct("wrong-pair")
class QuestionIsSeen(Looking):
    def forward(self, question, context):
        return super().forward(context, question)


@correct("wrong-values")
class ValuesApart(Plain):
    """Keys of one input, values of another, as in a regression by kernels."""

    def forward(self, x, y):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(y))
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


@fault("wrong-pair", "The keys are made of x")
class KeysOfTheInput(ValuesApart):
    def forward(self, x, context):
        return super().forward(x, context)


@fault("wrong-values", "The values are made of x")
class ValuesOfTheInput(Plain):
    def forward(self, x, encoder_output):
        q, k = self.split(self.q(x)), self.split(self.k(encoder_output))
        return self.o(self.merge(self.soften(self.scores(q, k)) @ self.split(self.v(x))))


@correct("wrong-values")
class PlacesForQueriesAndKeys(ValuesApart):
    def forward(self, x, encoding):
        return super().forward(x + encoding, x)


@correct("wrong-pair")
class DecoderBlock(nn.Module):
    """Causal by itself, with a memory that is seen whole."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.own, self.cross = Looking(d_model, num_heads), Looking(d_model, num_heads)

    def forward(self, x, memory):
        x = x + self.own(x, x, ~causal_mask(x.shape[1]))
        return x + self.cross(x, memory)


@fault("wrong-pair", "Changing memory alone changes nothing")
class MemoryIgnored(DecoderBlock):
    def forward(self, x, memory):
        x = x + self.own(x, x)
        return x + self.cross(x, x)


@fault("mask-off-by-one", "Position 0 sees position 1")
class DecoderOneOff(DecoderBlock):
    def forward(self, x, memory):
        x = x + self.own(x, x, torch.ones(x.shape[1], x.shape[1]).tril(1))
        return x + self.cross(x, memory)


@correct("wrong-pair")
class MemoryFirst(DecoderBlock):
    def forward(self, memory, x):
        return super().forward(x, memory)


@correct("wrong-pair")
class WithMemory(nn.Module):
    """A decoder's block: causal by itself, then all of a second input."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.own, self.cross = Plain(d_model, num_heads), TwoWay(d_model, num_heads)

    def forward(self, x, memory):
        x = x + self.own(x)
        cross = self.cross
        q, k, v = cross.q(x), cross.k(memory), cross.v(memory)
        weights = cross.soften(cross.scores(cross.split(q), cross.split(k)))
        return x + cross.o(cross.merge(weights @ cross.split(v)))


@correct("unused-layer", "wrong-pair")
class OptionalMemory(nn.Module):
    """A decoder block that leaves its cross-attention out where there is no memory."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.own = Plain(d_model, num_heads)
        self.cross = nn.MultiheadAttention(d_model, num_heads, 0.1, batch_first=True)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, memory=None):
        x = x + self.own(x)
        return x if memory is None else x + self.drop(self.cross(x, memory, memory)[0])


@correct("wrong-pair")
class ContextOrInput(OptionalMemory):
    def forward(self, x, context=None):
        x = x + self.own(x)
        context = x if context is None else context
        return x + self.drop(self.cross(x, context, context)[0])


# --- layers that are the same, and heads that are -------------------------------------------


@correct("wrong-pair", "heads-alike")
class SameAtStart(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.k, self.v = copy.deepcopy(self.q), copy.deepcopy(self.q)


@correct("wrong-pair")
class NoBias(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads, bias=False)


@correct("wrong-pair", note="one-projection")
class OneLayerForBoth(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.k = self.q


@correct("wrong-values", "wrong-pair", note="one-projection")
class OneProjection(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        del self.k, self.v

    def forward(self, x):
        q = self.split(self.q(x))
        return self.o(self.merge(self.soften(self.scores(q, q)) @ q))


@correct("heads-alike", "no-effect")
class Grouped(nn.Module):
    """Fewer keys and values than queries, each shared by a group of heads."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads, self.kv, self.d = num_heads, max(num_heads // 2, 1), d_model // num_heads
        self.wq = nn.Linear(d_model, self.heads * self.d, bias=False)
        self.wk = nn.Linear(d_model, self.kv * self.d, bias=False)
        self.wv = nn.Linear(d_model, self.kv * self.d, bias=False)
        self.wo = nn.Linear(self.heads * self.d, d_model, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.heads, self.d).transpose(1, 2)
        k = self.wk(x).view(b, t, self.kv, self.d).transpose(1, 2)
        v = self.wv(x).view(b, t, self.kv, self.d).transpose(1, 2)
        k, v = (p.repeat_interleave(self.heads // self.kv, dim=1) for p in (k, v))
        return self.wo(
            F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
        )


class Head(nn.Module):
    def __init__(self, d_model, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, width) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@fault("heads-alike", "one and the same module", "4 heads of 4")
class OneHeadManyTimes(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(d_model, d_model // num_heads)] * num_heads)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], dim=-1))


@fault("no-effect", "heads.0, heads.1 and heads.2 have no effect")
class LastHeadOnly(nn.Module):
    def __init__(self, d_model, num_heads, dropout=0.1):
        super().__init__()
        size = d_model // num_heads
        self.heads = nn.ModuleList(
            [CausalHead(d_model, size, dropout=dropout) for _ in range(num_heads)]
        )
        self.o = nn.Linear(size, d_model)

    def forward(self, x):
        for head in self.heads:
            context = head(x)
        return self.o(context)


@fault("heads-alike", "heads.0, heads.1 and heads.2 have no effect")
class LateIndex(LastHeadOnly):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.o = nn.Linear(d_model, d_model)

    def forward(self, x):
        calls = [lambda x: self.heads[i](x) for i in range(len(self.heads))]  # noqa: B023
        return self.o(torch.cat([call(x) for call in calls], dim=-1))


class Sliced(Plain):
    """The heads as slices of the columns; `cut` says which, for queries, keys and values."""

    def cut(self, i):
        mine = slice(i * self.head_dim, (i + 1) * self.head_dim)
        return mine, mine, mine

    def forward(self, x):
        made = self.q(x), self.k(x), self.v(x)
        contexts = []
        for i in range(self.num_heads):
            q, k, v = (t[..., part] for t, part in zip(made, self.cut(i), strict=True))
            contexts.append(self.soften(self.hide(self.scores(q, k))) @ v)
        return self.o(torch.cat(contexts, dim=-1))


@fault("no-effect", "Columns 9 to 23 of q, k and v have")
class OverlappingSlices(Sliced):
    def cut(self, i):
        return (slice(i, i + self.head_dim),) * 3


@fault("no-effect", "Columns 6 to 23 of q have")
class OneSliceOfQueries(Sliced):
    def cut(self, i):
        return slice(self.head_dim), *super().cut(i)[1:]


@fault("heads-alike", "Columns 6 to 23 of q, k and v have no effect")
class OneSlice(Sliced):
    def cut(self, i):
        return (slice(self.head_dim),) * 3


@correct("heads-alike", "one-for-all", "no-effect")
class MultiQuery(Plain):
    """One head of keys and values for all heads of queries."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.k, self.v = (nn.Linear(d_model, self.head_dim) for _ in range(2))

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.k(x)[:, None], self.v(x)[:, None]
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


# --- rows that are the same -----------------------------------------------------------------


@fault("one-for-all", "All rows of the queries are the same")
class OneQueryForAll(Plain):
    def scores(self, q, k):
        return super().scores(q[:, :, -1:].expand_as(q), k)


@fault("one-for-all", "All rows of the values are the same")
class OneValueForAll(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        v = v[:, :, :1].expand_as(v)
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


@correct("one-for-all")
class OneQueryOfItsOwn(Plain):
    """A learned query, the same for all rows."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.asked = nn.Parameter(torch.randn(d_model))

    def forward(self, x):
        asked = self.split(self.q(self.asked.expand_as(x)))
        k, v = self.split(self.k(x)), self.split(self.v(x))
        return self.o(self.merge(self.soften(self.hide(self.scores(asked, k))) @ v))


@correct("one-for-all")
class AveragedQueries(Plain):
    """A class token's view: global + local"""

    def hide(self, scores):
        return scores

    def scores(self, q, k):
        return super().scores(q + q.mean(2, keepdim=True), k)


# --- diagonals, and letters of an einsum ------------------------------------------------------


class Met(TwoWay):
    """Weights and values meet in a method of their own."""

    def meet(self, weights, v):
        return weights @ v

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.o(self.merge(self.meet(self.soften(self.scores(q, k)), v)))


@fault("wrong-values", "no value of another")
class DiagonalByIndex(Met):
    def meet(self, weights, v):
        at = torch.arange(v.shape[-2])
        return weights[..., at, at].unsqueeze(-1) * v


@fault("wrong-values", "no value of another")
class DiagonalEmbedded(Met):
    def meet(self, weights, v):
        return weights.diagonal(dim1=-2, dim2=-1).diag_embed() @ v


@fault("wrong-values", "by einsum 'bhii,bhie->bhie'")
class DiagonalOfCausal(Met):
    hide = Plain.hide

    def soften(self, scores):
        return super().soften(self.hide(scores))

    def meet(self, weights, v):
        return torch.einsum("bhii, bhie -> bhie", weights, v)


@fault("wrong-values", "Give both one letter: '...qk,...kd->...qd'")
class SummedApartBehindDots(Met):
    def meet(self, weights, v):
        return torch.einsum("...qk,...ld->...qd", weights, v)


@fault("wrong-pair", "Give both one letter: '...qd,...kd->...qk'")
class WidthsApartBehindDots(Met):
    def scores(self, q, k):
        return torch.einsum("...qd,...ke->...qk", q, k) / self.head_dim**0.5


@fault("no-effect", "Give its axes two letters: 'btd,ed->bte'")
class DiagonalOfAWeight(Met):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        del self.q
        self.wq = nn.Parameter(torch.randn(d_model, d_model))

    def q(self, x):
        return torch.einsum("btd,dd->btd", x, self.wq)


@fault("no-effect", "Give both one letter: 'btd,hde->bhte'")
class WeightSummedApart(DiagonalOfAWeight):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.wq = nn.Parameter(torch.randn(num_heads, d_model, self.head_dim))

    def q(self, x):
        return torch.einsum("btd,hce->bhte", x, self.wq).transpose(1, 2).flatten(2)


@correct("wrong-values", "not-normalised")
class OthersAlone(Met):
    """A token takes nothing of itself: its own weight goes to the others."""

    def meet(self, weights, v):
        own = torch.einsum("bhii->bhi", weights)[..., None]
        return (weights @ v - own * v) / (1 - own)


@correct("wrong-values")
class DiagonalKept(Met):
    """How far each token looks at itself, for a plot."""

    def meet(self, weights, v):
        self.own = weights.diagonal(dim1=-2, dim2=-1).mean()
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)


@correct("wrong-values", "wrong-pair")
class SumOfTheHeads(Met):
    """The values serve all heads, whose contexts are added: one letter stands in one operand."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.v = nn.Linear(d_model, d_model)

    def meet(self, weights, v):
        whole = v.transpose(1, 2).flatten(2)
        return self.split(torch.einsum("bhqk,bkd->bqd", weights, whole))


@correct("no-effect", "input-cut")
class OneNumberForEach(DiagonalOfAWeight):
    """A weight for each number, and a whole matrix in front."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.gain = nn.Parameter(torch.ones(d_model))

    def q(self, x):
        return torch.einsum("d,btd->btd", self.gain, torch.einsum("ed,btd->bte", self.wq, x))


# --- scores by position -----------------------------------------------------------------------


class ByDistance(TwoWay):
    """A learned vector for each distance meets the queries, and is taken by pair."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.far = nn.Parameter(torch.randn(65, self.head_dim))

    def taken(self, far, tokens):
        at = torch.arange(tokens)
        places = at - at[:, None] + tokens - 1
        return far.gather(-1, places.expand(*far.shape[:2], tokens, tokens))

    def scores(self, q, k):
        tokens = q.shape[-2]
        far = q @ self.far[33 - tokens : 32 + tokens].mT
        return super().scores(q, k) + self.taken(far, tokens) / self.head_dim**0.5


correct("wrong-pair", "future-visible")(ByDistance)


@fault("wrong-pair", "holds scores of query", "gather(-1, places)")
class ByDistanceOneRowOn(ByDistance):
    def taken(self, far, tokens):
        return super().taken(far, tokens).roll(1, dims=-2)


@fault("wrong-pair", "holds scores of quer")
class ByDistanceViewedShort(ByDistance):
    """The columns that are too many are cut from the buffer, not from each row."""

    def taken(self, far, tokens):
        return far.flatten(-2)[..., : tokens**2].unflatten(-1, (tokens, tokens))


@fault("wrong-pair", "holds scores of quer")
class ByDistanceTurned(ByDistance):
    def taken(self, far, tokens):
        return super().taken(far, tokens).mT


@correct("wrong-pair")
class TwoBiases(ByDistance):
    """One bias of the queries for the keys, one for the distances, as in Transformer-XL."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.u, self.w = (nn.Parameter(torch.randn(num_heads, 1, self.head_dim)) for _ in range(2))
        del self.q, self.k, self.v
        self.qkv = nn.Linear(d_model, 3 * d_model)

    def taken(self, far, tokens):
        rows = F.pad(far, (0, 1)).flatten(-2)[..., :-tokens]
        return rows.unflatten(-1, (tokens, 2 * tokens - 1))[..., tokens - 1 :]

    def scores(self, q, k):
        tokens = q.shape[-2]
        far = (q + self.w) @ self.far[33 - tokens : 32 + tokens].mT
        return ((q + self.u) @ k.mT + self.taken(far, tokens)) / self.head_dim**0.5

    def forward(self, x):
        q, k, v = map(self.split, self.qkv(x).chunk(3, dim=-1))
        return self.o(self.merge(self.soften(self.scores(q, k)) @ v))


@correct("wrong-pair")
class BothByDistance(ByDistance):
    """Keys have scores by distance too, which stand in the columns."""

    def scores(self, q, k):
        tokens = q.shape[-2]
        far = k @ self.far[33 - tokens : 32 + tokens].mT
        return super().scores(q, k) + self.taken(far, tokens).mT / self.head_dim**0.5


@correct("wrong-pair", note="one-projection")
class OneProjectionByDistance(ByDistance):
    """Queries and keys are the same numbers."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        del self.k

    def forward(self, x):
        q, v = self.split(self.q(x)), self.split(self.v(x))
        return self.o(self.merge(self.soften(self.scores(q, q)) @ v))


@correct("wrong-pair", "future-visible")
class CausalByDistance(ByDistance):
    def scores(self, q, k):
        hidden = torch.full((q.shape[-2],) * 2, -torch.inf).triu(1)
        return super().scores(q, k) + hidden


@correct("wrong-pair")
class AverageByDistance(ByDistance):
    """Each query has a part of the mean of all."""

    def scores(self, q, k):
        return super().scores(q + q.mean(-2, keepdim=True), k)


# --- what has no effect ---------------------------------------------------------------------


@fault("no-effect", "Columns 18 to 23 of q, k and v have")
class HeadLeftZero(Plain):
    def merge(self, x):
        return super().merge(torch.cat([x[:, :-1], torch.zeros_like(x[:, -1:])], dim=1))


@fault("no-effect", "Columns 18 to 23, 42 to 47 and 66 to 71 of qkv have")
class FusedHeadLeftZero(HeadLeftZero):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        del self.q, self.k, self.v
        self.qkv = nn.Parameter(torch.randn(d_model, 3 * d_model))

    def forward(self, x):
        q, k, v = (self.split(part) for part in (x @ self.qkv).chunk(3, dim=-1))
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


@fault("no-effect", "Columns 6 to 23 of q and k have")
class WeightsOfOneHead(Plain):
    def soften(self, scores):
        return scores[:, :1].softmax(-1)


class CutShort(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.o = nn.Linear(num_heads * self.head_dim, d_model)

    def split(self, x):
        return super().split(x[..., : self.num_heads * self.head_dim])


fault("no-effect", "23 columns are not a whole number of heads of 5")(CutShort(23, 4))


@fault("no-effect", "Columns 6 to 11 of v have")
class OneGroupOfValues(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.v = nn.Linear(d_model, d_model // 2)

    def forward(self, x):
        q, k = self.split(self.q(x)), self.split(self.k(x))
        v = self.v(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)[:, :1]
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


@fault("no-effect", "Heads 1 to 3 of q, k and v have")
class OneHeadOfEach(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        shape = num_heads, d_model, d_model // num_heads
        self.q, self.k, self.v = (nn.Parameter(torch.randn(shape)) for _ in range(3))
        self.o = nn.Linear(shape[-1], d_model)

    def forward(self, x):
        q, k, v = (x[:, None] @ weight for weight in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(context[:, 0])


@fault("no-effect", "second has no effect on the output")
class SecondDropped(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.second = Plain(d_model, num_heads)

    def forward(self, x):
        x = x + super().forward(x)
        self.second(x)
        return x


@fault("attention-unused", "What o gives is thrown away")
class Dropped(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(0.1)

    def soften(self, scores):
        return self.drop(scores.softmax(-1))

    def forward(self, x):
        super().forward(x)
        return x


@fault("attention-unused", "changing q, k and v changes nothing")
class TimesZero(Dropped):
    def forward(self, x):
        return x + 0.0 * Plain.forward(self, x)


@correct("no-effect", "unused-layer", "softmax-twice")
class ChosenValues(Plain):
    """Of many layers for the values, one by token: most have no effect on a given input."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.router = nn.Linear(d_model, 31)
        self.v = nn.ModuleList([nn.Linear(d_model, d_model) for _ in range(31)])

    def forward(self, x):
        shares = self.router(x).softmax(-1)
        chosen = shares * F.one_hot(shares.argmax(-1), 31)
        v = sum(layer(x) * chosen[..., n, None] for n, layer in enumerate(self.v))
        q, k, v = (self.split(part) for part in (self.q(x), self.k(x), v))
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


@correct("no-effect", "unused-layer")
class Experts(Plain):
    """Each token takes the output layer that a router chooses for it."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.router = nn.Linear(d_model, 16)
        self.experts = nn.ModuleList(nn.Linear(d_model, d_model) for _ in range(16))

    def forward(self, x):
        context = super().forward(x)
        chances = self.router(context).softmax(-1)
        most, chosen = chances.max(-1)
        out = torch.zeros_like(context)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                out[mine] = expert(context[mine]) * most[mine, None]
        return out


@correct("no-effect")
class HeadSwitches(Plain):
    """Heads switched off for good, as in pruning."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.register_buffer("kept", (torch.arange(num_heads) > 1).float())

    def merge(self, x):
        return super().merge(x * self.kept[:, None, None])


@correct("no-effect", "detached")
class HardGates(Plain):
    """Learned gates, 0 or 1 by head: which heads are off is a matter of the numbers."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.gates = nn.Parameter(torch.linspace(-1, 1, num_heads))

    def merge(self, x):
        hard = (self.gates > 0).float() + self.gates - self.gates.detach()
        return super().merge(x * hard[:, None, None])


@correct("no-effect")
class SecondResult(Plain):
    """A second attention, for a result beside the first."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.other = Plain(d_model, num_heads)

    def forward(self, x):
        return super().forward(x), self.other(x)


@correct("attention-unused", "no-effect")
class SideLoss(SecondResult):
    """A second attention for a loss that is kept for the trainer."""

    def forward(self, x):
        self.loss = self.other(x).square().mean()
        return Plain.forward(self, x)


@correct("attention-unused", "no-effect")
class HelpInTraining(SecondResult):
    def forward(self, x):
        result, other = super().forward(x)
        return result + other if self.training else result


@correct("attention-unused")
class GateAtZero(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return x + self.gate * super().forward(x)


@fault("wrong-pair")
class CrossOfTheInput(DecoderBlock):
    def forward(self, x, memory):
        x = x + self.own(x, x, ~causal_mask(x.shape[1]))
        return x + self.cross(x, x)


@fault("future-visible")
class CrossTurned(DecoderBlock):
    """A memory may look in its turn: what is wrong is that the input sees itself whole."""

    def forward(self, x, memory):
        x = x + self.own(x, x, ~causal_mask(x.shape[1]))
        return x + self.cross(memory, x)
