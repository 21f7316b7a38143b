"""Modules of kinds that are met in the wild, and that the check misjudges or once did.

Three or more of each kind, with the right verdict. What is judged wrongly as yet is `open`: it
must fail, so that whoever mends the check hears of it and takes the word away.
"""

import copy
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from bases import Plain, TwoWay
from faults.weights import AdditiveHeadsOverQueries, ByBlocks, LearnedQueries, Linear
from torch import nn

from attention_check import check_attention
from attention_course import causal_mask

CASES = []


@dataclass(frozen=True)
class Case:
    """A module and the right verdict.

    codes: what may be found, "" where nothing may, and None where the module is to be refused.
    said: words of the finding, or of the refusal; unsaid: words that would be untrue.
    """

    module: object
    codes: str | None
    said: tuple
    unsaid: str

    def judge(self):
        if self.codes is None:
            with pytest.raises(ValueError, match=self.said[0]):
                check_attention(self.module)
            return
        report = check_attention(self.module)
        if not self.codes:
            assert report.ok, report
            return
        found = [finding for finding in report.findings if finding.code in self.codes.split()]
        assert found, report
        assert all(words in str(found[0]) for words in self.said), report
        assert not self.unsaid or self.unsaid not in str(report), report


def wrong(codes, *said, unsaid="", open=False, given=None):
    """Register a class: one of these codes must be found. given: what to make of it first."""

    def register(kind):
        module = given(kind) if given else kind
        marks = [pytest.mark.xfail(strict=True)] if open else []
        CASES.append(pytest.param(Case(module, codes, said, unsaid), id=kind.__name__, marks=marks))
        return kind

    return register


def right(**how):
    """Register a class in which nothing may be found."""
    return wrong("", **how)


def refused(said, **how):
    """Register a class that takes something else: a sentence must say so."""
    return wrong(None, said, **how)


class Fused(nn.Module):
    """Queries, keys and values of one layer; `attend` is left to a variant."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads = num_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def split(self, x):
        return (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))

    def merge(self, context):
        return self.out(context.transpose(1, 2).flatten(2))

    def scores(self, q, k):
        return q @ k.mT / q.shape[-1] ** 0.5

    def attend(self, q, k, v):
        return self.scores(q, k).softmax(-1) @ v

    def forward(self, x):
        return self.merge(self.attend(*self.split(x)))


# --- additive attention: the softmax runs over another axis than the tokens -------------------


@wrong("softmax-axis")
class FastAdditive(nn.Module):
    axis = -1  # the heads

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads, self.root = num_heads, (d_model // num_heads) ** 0.5
        self.q, self.k, self.out = (nn.Linear(d_model, d_model) for _ in range(3))
        self.w_q, self.w_k = nn.Linear(d_model, num_heads), nn.Linear(d_model, num_heads)

    def pooled(self, weigh, x):
        weights = (weigh(x) / self.root).softmax(self.axis)  # (batch, tokens, heads)
        return (x.unflatten(-1, (self.heads, -1)) * weights[..., None]).sum(1, keepdim=True)

    def forward(self, x):
        q, k = self.q(x), self.k(x)
        keys = (k.unflatten(-1, (self.heads, -1)) * self.pooled(self.w_q, q)).flatten(2)
        pooled = self.pooled(self.w_k, keys)
        return self.out((pooled * q.unflatten(-1, (self.heads, -1))).flatten(2)) + q


@right()
class FastAdditiveOverTokens(FastAdditive):
    axis = 1


@wrong("softmax-axis")
class AdditiveOverTheBatch(nn.Module):
    axis = 0

    def __init__(self, d_model, num_heads=1):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, n) for n in (d_model, d_model, 1))

    def forward(self, x):
        scores = self.v(torch.tanh(self.q(x)[:, :, None] + self.k(x)[:, None])).squeeze(-1)
        return scores.softmax(self.axis) @ x


@wrong("softmax-axis")
class AdditiveOverTheQueries(AdditiveOverTheBatch):
    axis = 1


@right()
class AdditiveOverTheKeys(AdditiveOverTheBatch):
    axis = 2


@wrong("softmax-axis")
class PoolOverItsOneColumn(nn.Module):
    """One score for each token; over an axis of one, each weight is 1."""

    axis = -1

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.score, self.value = nn.Linear(d_model, 1), nn.Linear(d_model, d_model)

    def forward(self, x):
        pooled = (self.score(x).softmax(self.axis) * self.value(x)).sum(1, keepdim=True)
        return x + pooled


@right()
class PoolOverTokens(PoolOverItsOneColumn):
    axis = 1


right()(LearnedQueries)


@right()
class AdditiveHeads(AdditiveHeadsOverQueries):
    def soften(self, scores):
        return scores.softmax(-1)


@right()
class SoftmaxFeatures(Plain):
    """Linear attention whose features are softmaxes, divided by what they sum to."""

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        q, k = q.softmax(-1), k.softmax(-1)
        return self.o(self.merge(q @ (k.mT @ v) / (q @ k.sum(-2, keepdim=True).mT)))


@right()
class Clusters(LearnedQueries):
    """Tokens are shared out among clusters, added up, and get their clusters' sums back."""

    axis = -1

    def forward(self, x):
        shares = self.weigh(self.score(x))
        return x + self.out(shares @ (shares.mT @ self.value(x)))


@right()
class PoolWithASink(LearnedQueries):
    """One more place in the softmax, for no token."""

    def weigh(self, scores):
        sink = torch.zeros_like(scores[:, :1])
        return torch.cat([scores, sink], dim=1).softmax(1)[:, :-1]


@right()
class HalfAPool(LearnedQueries):
    def weigh(self, scores):
        return 0.5 * super().weigh(scores)


# --- no line makes the weights ----------------------------------------------------------------

right()(Linear)


@right()
class LinearOfThree(Linear):
    def context(self, q, k, v):
        sums = torch.einsum("bhkd,bhke->bhde", k, v)
        return torch.einsum("bhqd,bhde,bhq->bhqe", q, sums, 1 / self.total(q, k)[..., 0])


@right()
class LinearCausal(Linear):
    def context(self, q, k, v):
        sums = torch.einsum("bhkd,bhke->bhkde", k, v).cumsum(2)
        total = (q * k.cumsum(2)).sum(-1, keepdim=True)
        return torch.einsum("bhqd,bhqde->bhqe", q, sums) / total


@right()
class NeverDivided(Linear):
    """The norm behind it takes care of the size, by design."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.norm = nn.LayerNorm(self.head_dim)

    def context(self, q, k, v):
        return self.norm(q @ (k.mT @ v))


@right()
class GatedLinear(Linear):
    """A gate for each number of the context."""

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        context = self.context(self.features(q), self.features(k), v)
        return self.o(self.merge(context) * torch.sigmoid(2 + x).square() * 3)


@right()
class LinearAndItsOwn(Linear):
    """Each token's own value once more."""

    def context(self, q, k, v):
        return super().context(q, k, v) + v


@right()
class Signed(Linear):
    """Features below zero too, divided by the size of their sum, or by 1: as in an mLSTM."""

    def features(self, q):
        return 2 * q

    def total(self, q, k):
        return super().total(q, k).abs().clamp_min(1)


@right()
class BlocksWithASink(ByBlocks):
    """An entry for no token, with score 0."""

    def start(self, q):
        top, total, out = super().start(q)
        return torch.zeros_like(top), total + 1, out


@right()
class BlocksByLogarithms(TwoWay):
    """The contexts of two blocks, joined by the logarithms of their sums."""

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        parts, sums = [], []
        for block in (slice(2), slice(2, None)):
            scores = self.scores(q, k[:, :, block])
            parts.append(scores.softmax(-1) @ v[:, :, block])
            sums.append(scores.logsumexp(-1, keepdim=True))
        shares = torch.stack(sums).softmax(0)
        return self.o(self.merge((shares * torch.stack(parts)).sum(0)))


# --- images and grids -------------------------------------------------------------------------


@refused("axes|grid|image")
class AlongTheThirdAxis(nn.Module):
    """(batch, rows, columns, width), along the rows: with three axes that is the batch."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads = num_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def turn(self, x):
        return x.transpose(-3, -2)

    def forward(self, x):
        parts = self.qkv(self.turn(x)).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.turn(self.out(y.transpose(-3, -2).flatten(-2)))


@refused("axes|grid|image")
class AlongTheRowsMoved(AlongTheThirdAxis):
    def turn(self, x):
        return x.movedim(-3, -2)


@refused("axes|grid|image")
class AlongTheFrames(nn.Module):
    """(batch, frames, patches, width), by einsum over whatever stands before."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, x):
        scores = torch.einsum("...ipd,...jpd->...pij", self.q(x), self.k(x)) / x.shape[-1] ** 0.5
        return torch.einsum("...pij,...jpd->...ipd", scores.softmax(-1), self.v(x))


@refused("axes|channels|image")
class Image(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.norm, self.heads = self.first(d_model, num_heads), num_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def first(self, d_model, num_heads):
        return nn.GroupNorm(num_heads, d_model)

    def forward(self, x):
        y = self.norm(x)
        b, c, h, w = y.shape
        parts = self.qkv(y.flatten(2).mT).chunk(3, -1)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return x + self.out(y).mT.reshape(b, c, h, w)


@refused("axes|channels|image")
class ImageBatchNorm(Image):
    def first(self, d_model, num_heads):
        return nn.BatchNorm2d(d_model)


@refused("axes|channels|image")
class ImageConvolved(Image):
    def first(self, d_model, num_heads):
        return nn.Conv2d(d_model, d_model, 1)


# --- layers whose result is lost --------------------------------------------------------------


@wrong("unused-layer no-effect", "w_skip")
class BareParameterInside(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.inner = self.wrapped(d_model, num_heads)

    def wrapped(self, d_model, num_heads):
        return Skip(d_model, num_heads)

    def forward(self, x):
        return self.inner(x)


class Skip(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads, shape = num_heads, (d_model, d_model)
        self.w_q, self.w_k, self.w_v = (nn.Parameter(torch.randn(shape)) for _ in range(3))
        self.w_skip = nn.Parameter(torch.randn(shape))

    def forward(self, x):
        parts = x @ self.w_q, x @ self.w_k, x @ self.w_v
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        context = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        return context + x @ self.w_v


@wrong("unused-layer no-effect", "w_skip")
class BareParameterTwiceInside(BareParameterInside):
    def wrapped(self, d_model, num_heads):
        return BareParameterInside(d_model, num_heads)


@wrong("unused-layer no-effect", "w_skip")
class BareParameterInAList(BareParameterInside):
    def wrapped(self, d_model, num_heads):
        return nn.Sequential(nn.LayerNorm(d_model), Skip(d_model, num_heads))


@wrong("unused-layer no-effect", "dense")
class DenseThrownAway(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.attn = nn.MultiheadAttention(d_model, num_heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(d_model), nn.LayerNorm(d_model)
        self.dense, self.drop = nn.Linear(d_model, d_model), nn.Dropout(0.1)

    def after(self, x):
        y = torch.relu(self.dense(x))
        y = self.drop(x)
        return y

    def forward(self, x):
        x = self.norm1(x + self.attn(x, x, x)[0])
        return self.norm2(x + self.after(x))


@right()
class DenseKept(DenseThrownAway):
    def after(self, x):
        return self.drop(torch.relu(self.dense(x)))


@wrong("unused-layer no-effect", "dense")
class GateThrownAway(DenseThrownAway):
    def after(self, x):
        gate = torch.sigmoid(self.dense(x))
        gate = torch.sigmoid(x)
        return self.drop(x * gate)


@wrong("unused-layer no-effect", "dense")
class DenseInPlaceOfACopy(DenseThrownAway):
    def after(self, x):
        F.gelu(self.dense(x)).add(x)
        return self.drop(x)


@wrong("other-heads", "heads")
class LayersCountedByHeads(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads = num_heads
        linear = nn.Linear(d_model, d_model)
        self.layers = nn.ModuleList(copy.deepcopy(linear) for _ in range(num_heads))

    def last(self):
        return self.layers[-1]

    def forward(self, query, key, value):
        parts = (f(x) for f, x in zip(self.layers, (query, key, value), strict=False))
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        context = F.scaled_dot_product_attention(q, k, v)
        return self.last()(context.transpose(1, 2).flatten(2))


@wrong("other-heads", "heads")
class LayersCountedByHeadsFromTheFront(LayersCountedByHeads):
    def last(self):
        return self.layers[3]


@wrong("other-heads", "heads")
class ParametersCountedByHeads(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads, self.w = num_heads, nn.Parameter(torch.randn(num_heads, d_model, d_model))

    def forward(self, x):
        q, k, v = ((x @ w).unflatten(-1, (self.heads, -1)).transpose(1, 2) for w in self.w[:3])
        context = F.scaled_dot_product_attention(q, k, v)
        return context.transpose(1, 2).flatten(2) @ self.w[-1]


# --- a flag, a mask or a cache that works alone, or not at all --------------------------------


@wrong("future-visible mask-argument", "causal")
class FlagWithoutEffect(Fused):
    def mask(self, scores):
        scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
        return scores

    def forward(self, x, causal=False):
        q, k, v = self.split(x)
        scores = self.scores(q, k)
        scores = self.mask(scores) if causal else scores
        return self.merge(scores.softmax(-1) @ v)


@wrong("future-visible mask-argument", "causal")
class FlagThatAddsZeros(FlagWithoutEffect):
    def mask(self, scores):
        return scores + torch.zeros(scores.shape[-2:]).triu(1)


@wrong("future-visible mask-argument", "is_causal")
class FlagThatIsNeverRead(Fused):
    def forward(self, x, is_causal=False):
        return super().forward(x)


@wrong("future-visible mask-argument", "causal")
class CausalLostWithPadding(Fused):
    """The kernel is causal where it gets no mask."""

    def forward(self, x, attn_mask=None):
        q, k, v = self.split(x)
        if attn_mask is not None and attn_mask.dtype == torch.bool and attn_mask.dim() == 4:
            attn_mask = torch.zeros(attn_mask.shape).masked_fill(~attn_mask, -torch.inf)
        elif attn_mask is not None:
            attn_mask = attn_mask.to(x.dtype)
        causal = attn_mask is None
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=causal))


@wrong("future-visible mask-argument")
class CausalLostWithKeyPadding(Fused):
    def forward(self, x, key_padding_mask=None):
        q, k, v = self.split(x)
        if key_padding_mask is None:
            return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        kept = ~key_padding_mask[:, None, None]
        return self.merge(F.scaled_dot_product_attention(q, k, v, kept))


@wrong("future-visible mask-argument")
class CausalLostWithAttentionMask(Fused):
    def forward(self, x, attention_mask=None):
        q, k, v = self.split(x)
        if attention_mask is None:
            hidden = torch.full((x.shape[1], x.shape[1]), -1e9).triu(1)
        else:
            hidden = (1 - attention_mask[:, None, None].float()) * -1e9
        return self.merge((self.scores(q, k) + hidden).softmax(-1) @ v)


CACHES = "token-by-token"


@wrong(CACHES, "cache")
class CausalFromTheFirstKey(Fused):
    """With a cache a new token sees the first key alone."""

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def forward(self, x, cache=None):
        q, k, v = self.split(x)
        if cache is not None:
            k, v = torch.cat([cache[0], k], 2), torch.cat([cache[1], v], 2)
        return self.merge(self.attend(q, k, v)), (k, v)


@right()
class CausalToTheLastKey(CausalFromTheFirstKey):
    def attend(self, q, k, v):
        kept = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return F.scaled_dot_product_attention(q, k, v, kept)


@wrong(CACHES, "cache")
class TriangleFromTheFirstKey(CausalFromTheFirstKey):
    def attend(self, q, k, v):
        seen = torch.ones(q.shape[2], k.shape[2]).tril()
        return self.scores(q, k).masked_fill(seen == 0, -torch.inf).softmax(-1) @ v


@wrong(CACHES, "cache")
class PlacesFromZero(CausalToTheLastKey):
    """The places of new tokens begin anew, whatever the cache holds."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.places = nn.Embedding(33, d_model)

    def forward(self, x, cache=None):
        return super().forward(x + self.places.weight[: x.shape[1]], cache)


@wrong(CACHES, "cache")
class CacheInTheModule(CausalFromTheFirstKey):
    cache = None

    def forward(self, x, use_cache=False):
        out, cache = super().forward(x, self.cache if use_cache else None)
        self.cache = cache if use_cache else None
        return out


# --- what is given beside x: a context that may be left out, a flag, two masks ----------------


class Crossed(nn.Module):
    """Looks at x itself, or at a context where there is one."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def looked_at(self, x, context):
        return context, context

    def soften(self, scores, crossed):
        return scores.softmax(-1)

    def forward(self, x, context=None):
        keys, values = (x, x) if context is None else self.looked_at(x, context)
        parts = self.q(x), self.k(keys), self.v(values)
        q, k, v = (p.unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in parts)
        weights = self.soften(q @ k.mT / q.shape[-1] ** 0.5, context is not None)
        return self.o((weights @ v).transpose(1, 2).flatten(2))


right()(Crossed)


@wrong("wrong-values", "With context given", "values are made of x")
class ValuesOfX(Crossed):
    def looked_at(self, x, context):
        return context, x


@wrong("wrong-pair", "With context given")
class KeysOfX(Crossed):
    def looked_at(self, x, context):
        return x, context


@wrong("wrong-pair", "Changing context alone changes nothing")
class ContextForgotten(Crossed):
    def looked_at(self, x, context):
        return x, x


@wrong("softmax-axis", "With context given")
class OtherAxisForAContext(Crossed):
    def soften(self, scores, crossed):
        return scores.softmax(-2 if crossed else -1)


@wrong("key-length", "With context given", unsaid="not judged")
class LengthOfX(Crossed):
    def forward(self, x, context=None):
        out = super().forward(x, context)
        return out if context is None else out + 0 * context.mean(-1, keepdim=True)


@right()
class BlockWithAMemory(nn.Module):
    """The second attention, its layers and its dropout run where there is a memory."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.own, self.other = (Crossed(d_model, num_heads) for _ in range(2))
        self.norm, self.drop = nn.LayerNorm(d_model), nn.Dropout(0.1)

    def forward(self, x, memory=None):
        x = x + self.own(x)
        return x if memory is None else x + self.drop(self.other(self.norm(x), memory))


@wrong("unused-layer", "norm")
class BlockWithAnIdleNorm(BlockWithAMemory):
    def forward(self, x, memory=None):
        x = x + self.own(x)
        return x if memory is None else x + self.drop(self.other(x, memory))


@wrong("dropout-unused", "drop")
class BlockWithAnIdleDropout(BlockWithAMemory):
    def forward(self, x, memory=None):
        x = x + self.own(x)
        return x if memory is None else x + self.other(self.norm(x), memory)


@wrong("future-visible", "With causal=True")
class FlagForTheWrongSide(Fused):
    def hidden(self, scores):
        return torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-1)

    def forward(self, x, causal=False):
        q, k, v = self.split(x)
        scores = self.scores(q, k)
        if causal:
            scores = scores.masked_fill(self.hidden(scores).mT & self.hidden(scores), -torch.inf)
            scores = scores + self.hidden(scores).mT.float()
        return self.merge(scores.softmax(-1) @ v)


@right()
class FlagThatHides(FlagForTheWrongSide):
    def forward(self, x, causal=False):
        q, k, v = self.split(x)
        scores = self.scores(q, k)
        if causal:
            scores = scores.masked_fill(self.hidden(scores).mT, -torch.inf)
        return self.merge(scores.softmax(-1) @ v)


@wrong("scale", "With fast=True")
class FlagWithoutScale(Fused):
    def forward(self, x, fast=False):
        q, k, v = self.split(x)
        scores = q @ k.mT if fast else self.scores(q, k)
        return self.merge(scores.softmax(-1) @ v)


@right()
class TwoMasks(Fused):
    """Pairs, True = hidden, and padding, True = padding."""

    def both(self, pairs, padding):
        return pairs | padding

    def forward(self, x, attn_mask=None, key_padding_mask=None):
        q, k, v = self.split(x)
        scores, hidden = self.scores(q, k), torch.zeros(1, dtype=torch.bool)
        padding = None if key_padding_mask is None else key_padding_mask[:, None, None]
        if attn_mask is not None and padding is not None:
            hidden = self.both(attn_mask, padding)
        elif attn_mask is not None or padding is not None:
            hidden = padding if attn_mask is None else attn_mask
        return self.merge(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v)


@wrong("mask-argument", "together")
class OnlyPaddingOfTwo(TwoMasks):
    def both(self, pairs, padding):
        return padding


@wrong("mask-argument", "together")
class WhereBothHide(TwoMasks):
    def both(self, pairs, padding):
        return pairs & padding


@wrong("mask-argument", "together", "fails")
class TwoMasksDoNotFit(TwoMasks):
    def both(self, pairs, padding):
        return torch.cat([pairs, padding], 1)


@right()
class PairsInPlaceOfTheCausal(Fused):
    """As the kernel wants it: a mask for all pairs, or the causal one."""

    def forward(self, x, attn_mask=None):
        q, k, v = self.split(x)
        causal = attn_mask is None
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=causal))


# --- the diagonal of the weights, and letters of einsum ---------------------------------------


@wrong("wrong-values attention-unused no-effect past-hidden", "diagonal")
class DiagonalByEinsum(Fused):
    """No token gets the values of another."""

    def attend(self, q, k, v):
        return torch.einsum("bhtt,bhtd->bhtd", self.scores(q, k).softmax(-1), v)


@wrong("wrong-values attention-unused no-effect past-hidden", "diagonal")
class DiagonalTaken(Fused):
    def attend(self, q, k, v):
        return self.scores(q, k).softmax(-1).diagonal(dim1=-2, dim2=-1)[..., None] * v


@wrong("wrong-values attention-unused no-effect past-hidden", "diagonal")
class DiagonalByAProduct(Fused):
    def attend(self, q, k, v):
        return (self.scores(q, k).softmax(-1) * torch.eye(q.shape[2])) @ v


LETTERS = "no-effect unused-layer wrong-pair wrong-values attention-unused past-hidden"


@wrong(LETTERS, "einsum", unsaid="input-cut")
class DoubledLetter(nn.Module):
    """dd takes the diagonal of a matrix."""

    project, pairs, sums = "dd,btd->btd", "bqhd,bkhd->bhqk", "bhqk,bkhd->bqhd"

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads, shape = num_heads, (d_model, d_model)
        self.wq, self.wk = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(shape))
        self.wv, self.wo = nn.Parameter(torch.randn(shape)), nn.Parameter(torch.randn(shape))

    def forward(self, x):
        made = (torch.einsum(self.project, w, x) for w in (self.wq, self.wk, self.wv))
        q, k, v = (p.unflatten(-1, (self.heads, -1)) for p in made)
        scores = torch.einsum(self.pairs, q, k) / q.shape[-1] ** 0.5
        context = torch.einsum(self.sums, scores.softmax(-1), v).flatten(2)
        return torch.einsum("od,btd->bto", self.wo, context)


@wrong(LETTERS, "einsum")
class SumsApart(DoubledLetter):
    """Weights and values are summed apart: the weights have no effect."""

    project, sums = "ed,btd->bte", "bhqk,blhd->bqhd"


@wrong(LETTERS, "einsum")
class WidthsApart(DoubledLetter):
    """The numbers of queries and of keys are summed apart: no product of vectors."""

    project, pairs = "ed,btd->bte", "bqhd,bkhe->bhqk"


@wrong(LETTERS)
class ValuesOfTheQuery(DoubledLetter):
    """Each token gets its own values, times weights that add up to 1."""

    project, sums = "ed,btd->bte", "bhqk,bqhd->bqhd"


@right()
class LettersRight(DoubledLetter):
    project = "ed,btd->bte"


# --- dropout ----------------------------------------------------------------------------------


@wrong("nan dropout-on-scores", "training")
class DroppedBeforeTheSoftmax(Fused):
    """A hidden score that is dropped is 0 · -inf, in training alone."""

    fill = -torch.inf

    def __init__(self, d_model, num_heads, dropout=0.2):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(dropout)

    def soften(self, scores):
        return self.drop(scores).softmax(-1)

    def attend(self, q, k, v):
        scores = self.scores(q, k).masked_fill(causal_mask(q.shape[2]), self.fill)
        return self.soften(scores) @ v


@wrong("future-visible dropout-on-scores", "training")
class DroppedFiniteFill(DroppedBeforeTheSoftmax):
    """A hidden score that is dropped is 0: the future is seen in training."""

    fill = -1e9


@wrong("nan dropout-on-scores", "training")
class DroppedByTheFunction(DroppedBeforeTheSoftmax):
    def soften(self, scores):
        return F.dropout(scores, self.drop.p, self.training).softmax(-1)


@wrong("future-visible dropout-on-scores", "training")
class DroppedMask(DroppedBeforeTheSoftmax):
    """A pair that is dropped from the mask is seen."""

    def attend(self, q, k, v):
        hidden = torch.full((q.shape[2], q.shape[2]), -1e9).triu(1)
        return (self.scores(q, k) + self.drop(hidden)).softmax(-1) @ v


@right()
class DroppedAfterTheSoftmax(DroppedBeforeTheSoftmax):
    def soften(self, scores):
        return self.drop(scores.softmax(-1))


@wrong("dropout-lost", "evaluation")
class RateLostInEvaluation(Fused):
    """One call in evaluation mode, and training never drops again."""

    def __init__(self, d_model, num_heads, dropout_p=0.1):
        super().__init__(d_model, num_heads)
        self.dropout_p = dropout_p

    def rate(self):
        if not self.training:
            self.dropout_p = 0.0
        return self.dropout_p

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(q, k, v, dropout_p=self.rate(), is_causal=True)


@right()
class RateKept(RateLostInEvaluation):
    def rate(self):
        return self.dropout_p if self.training else 0.0


@wrong("dropout-lost", "evaluation")
class LayerSetToZero(DroppedBeforeTheSoftmax):
    def soften(self, scores):
        if not self.training:
            self.drop.p = 0.0
        return self.drop(scores.softmax(-1))


@wrong("dropout-lost", "evaluation")
class LayerReplaced(DroppedBeforeTheSoftmax):
    def soften(self, scores):
        if not self.training:
            self.drop = nn.Identity()
        return self.drop(scores.softmax(-1))


# --- numbers that a type cannot hold, and gradients -------------------------------------------


def half(kind):
    return kind(24, 4).half()


@wrong("own-dtype", "float16", given=half)
class FilledBeyondHalf(Fused):
    fill = -1e9

    def attend(self, q, k, v):
        scores = self.scores(q, k).masked_fill(causal_mask(q.shape[2]), self.fill)
        return scores.softmax(-1) @ v


@wrong("own-dtype", "float16", given=half)
class FilledWithTheLeastOfFloat(FilledBeyondHalf):
    fill = torch.finfo(torch.float32).min


@wrong("own-dtype", "float16", given=half)
class MaskOfFloatsAdded(Fused):
    def attend(self, q, k, v):
        hidden = torch.zeros(q.shape[2], q.shape[2]).masked_fill(causal_mask(q.shape[2]), -1e9)
        return (self.scores(q, k) + hidden).softmax(-1) @ v


@right(given=lambda kind: kind(24, 4).bfloat16())
class FilledWithinBfloat16(FilledBeyondHalf):
    pass


@right(given=half)
class FilledWithInfinityInHalf(FilledBeyondHalf):
    fill = -torch.inf


@wrong("nan-gradient", "gradient")
class NaNGradients(Fused):
    """Rows of padding are set to 0 in the end; their gradients are NaN in every weight."""

    def clean(self, y, mask):
        return y.masked_fill(~mask, 0)

    def forward(self, x, mask=None):
        mask = torch.ones(x.shape[:2], dtype=torch.bool) if mask is None else mask
        q, k, v = self.split(x)
        both = (mask[:, :, None] & mask[:, None, :])[:, None]
        weights = self.scores(q, k).masked_fill(~both, -torch.inf).softmax(-1)
        return self.clean(self.merge(weights @ v), mask[..., None])


@wrong("nan-gradient", "gradient")
class NaNGradientsWhere(NaNGradients):
    def clean(self, y, mask):
        return torch.where(mask, y, torch.zeros_like(y))


@wrong("nan-gradient", "gradient")
class NaNGradientsToNumbers(NaNGradients):
    def clean(self, y, mask):
        return y.nan_to_num()


# --- heads ------------------------------------------------------------------------------------


@wrong("merge-by-view")
class HeadsFirstInABuffer(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        shape = num_heads, d_model, d_model // num_heads
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(shape) * 0.1) for _ in range(3))
        self.out = nn.Linear(d_model, d_model)

    def hide(self, scores):
        return scores

    def contexts(self, x):
        for wq, wk, wv in zip(self.wq, self.wk, self.wv, strict=True):
            scores = (x @ wq) @ (x @ wk).mT / wq.shape[-1] ** 0.5
            yield self.hide(scores).softmax(-1) @ (x @ wv)

    def collect(self, x):
        heads = torch.zeros(len(self.wq), *x.shape[:2], self.wq.shape[-1])
        for number, context in enumerate(self.contexts(x)):
            heads[number] = context
        return heads

    def forward(self, x):
        return self.out(self.collect(x).reshape(*x.shape[:2], -1))


@wrong("merge-by-view")
class SentencesFirstInABuffer(HeadsFirstInABuffer):
    """Sentences stay apart, tokens do not."""

    def collect(self, x):
        heads = torch.zeros(len(x), len(self.wq), x.shape[1], self.wq.shape[-1])
        for number, context in enumerate(self.contexts(x)):
            heads[:, number] = context
        return heads


@wrong("merge-by-view")
class SentencesFirstCausal(SentencesFirstInABuffer):
    def hide(self, scores):
        return scores.masked_fill(causal_mask(scores.shape[-1]), -torch.inf)


@wrong("merge-by-view")
class HeadsFirstStacked(HeadsFirstInABuffer):
    def collect(self, x):
        return torch.stack([*self.contexts(x)])


@right()
class HeadsLastStacked(HeadsFirstInABuffer):
    def collect(self, x):
        return torch.stack([*self.contexts(x)], dim=2)


@wrong("heads-alike no-effect scale", "split")
class HeadsNeverSplit(nn.Module):
    """num_heads only divides: there is one head, as wide as the model."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.part = d_model // num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def hide(self, scores):
        return scores

    def forward(self, q, k, v):
        scores = self.hide(self.q(q) @ self.k(k).mT / self.part**0.5)
        return self.o(scores.softmax(-1) @ self.v(v))


@wrong("heads-alike no-effect scale", "split")
class HeadsNeverSplitOneInput(HeadsNeverSplit):
    def forward(self, x):
        return super().forward(x, x, x)


@wrong("heads-alike no-effect scale", "split")
class HeadsNeverSplitCausal(HeadsNeverSplitOneInput):
    def hide(self, scores):
        return scores.masked_fill(causal_mask(scores.shape[-1]), -torch.inf)


@right()
class SmallLayersForAllHeads(nn.Module):
    """By design: one small layer, shared by the heads, each on its slice."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads, self.part = num_heads, d_model // num_heads
        self.a, self.b, self.c = (nn.Linear(self.part, self.part, bias=False) for _ in range(3))

    def made(self, x):
        return self.a(x), self.b(x), self.c(x)

    def forward(self, x):
        q, k, v = self.made(x.unflatten(-1, (self.heads, self.part)).transpose(1, 2))
        weights = (q @ k.mT / self.part**0.5).softmax(-1)
        return (weights @ v).transpose(1, 2).flatten(2)


@right()
class SmallFusedLayerForAllHeads(SmallLayersForAllHeads):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        del self.a, self.b, self.c
        self.abc = nn.Linear(self.part, 3 * self.part)

    def made(self, x):
        return self.abc(x).chunk(3, -1)


@right()
class SmallLayersAndANorm(SmallLayersForAllHeads):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.last = nn.LayerNorm(d_model)

    def forward(self, x):
        return self.last(super().forward(x))


# --- what never changes a softmax, and lengths ------------------------------------------------


@right()
class KeyBiasOfEachHead(nn.Module):
    """A bias of the keys moves all scores of a row alike."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        shape = num_heads, d_model, d_model // num_heads
        self.wq, self.wk, self.wv = (nn.Parameter(torch.randn(shape)) for _ in range(3))
        self.bq, self.bk, self.bv = self.biases(num_heads, shape[-1])
        self.wo = nn.Parameter(torch.randn(num_heads, shape[-1], d_model))

    def biases(self, heads, part):
        return (nn.Parameter(torch.randn(heads, 1, part)) for _ in range(3))

    def forward(self, x):
        made = (self.wq, self.bq), (self.wk, self.bk), (self.wv, self.bv)
        q, k, v = (x[:, None] @ w + b for w, b in made)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("bhij,bhjp,hpd->bid", weights, v, self.wo)


@right()
class KeyBiasForAllHeads(KeyBiasOfEachHead):
    def biases(self, heads, part):
        return (nn.Parameter(torch.randn(part)) for _ in range(3))


@right()
class KeyBiasAlone(Fused):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.bias = nn.Parameter(torch.randn(num_heads, 1, d_model // num_heads))

    def attend(self, q, k, v):
        return super().attend(q, k + self.bias, v)


@wrong("key-length", "keys")
class KeysOfTheQueriesLength(nn.Module):
    """Keys and values may be of another length than the queries, and then it fails."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads = num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x, tokens):
        return x.view(len(x), tokens, self.heads, -1).transpose(1, 2)

    def made(self, q, k, v):
        return (self.split(p, q.shape[1]) for p in (self.q(q), self.k(k), self.v(v)))

    def forward(self, q, k, v):
        context = F.scaled_dot_product_attention(*self.made(q, k, v))
        return self.o(context.transpose(1, 2).flatten(2))


@wrong("key-length", "keys")
class ValuesOfTheQueriesLength(KeysOfTheQueriesLength):
    def made(self, q, k, v):
        tokens = q.shape[1], k.shape[1], q.shape[1]
        return map(self.split, (self.q(q), self.k(k), self.v(v)), tokens)


@wrong("key-length", "keys")
class MaskOfTheQueriesLength(KeysOfTheQueriesLength):
    def made(self, q, k, v):
        seen = torch.ones(q.shape[1], q.shape[1], dtype=torch.bool)
        parts = self.q(q), self.k(k), self.v(v)
        return *(self.split(p, p.shape[1]) for p in parts), seen


@right()
class KeysOfTheirOwnLength(KeysOfTheQueriesLength):
    def made(self, q, k, v):
        return (self.split(p, p.shape[1]) for p in (self.q(q), self.k(k), self.v(v)))


@right()
class BiasOfAWindow(Fused):
    """A bias for each pair of a window: only so many tokens, by design."""

    def __init__(self, d_model, num_heads, area=9):
        super().__init__(d_model, num_heads)
        self.table = nn.Parameter(torch.zeros(num_heads, area, area))

    def bias(self):
        return self.table

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        scores = self.scores(q, k) + self.bias()
        scores = scores if mask is None else scores + mask[:, None]
        return self.merge(scores.softmax(-1) @ v)


@right()
class BiasOfDistances(BiasOfAWindow):
    def __init__(self, d_model, num_heads, area=9):
        super().__init__(d_model, num_heads, area)
        self.table = nn.Parameter(torch.randn(2 * area - 1, num_heads))
        self.register_buffer("far", torch.arange(area)[:, None] - torch.arange(area) + area - 1)

    def bias(self):
        return self.table[self.far].permute(2, 0, 1)


@right()
class BiasOfASmallWindow(BiasOfAWindow):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads, area=7)


# --- arguments and tables ---------------------------------------------------------------------


@refused("position_ids")
class PositionsNeeded(Fused):
    """None by default, and needed all the same."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.table = nn.Embedding(64, d_model)

    def places(self, x, position_ids):
        assert position_ids.shape[-1] == x.shape[1]
        return self.table(position_ids)

    def forward(self, x, position_ids=None):
        return super().forward(x + self.places(x, position_ids))


@refused("position_ids")
class PositionsLookedUp(PositionsNeeded):
    def places(self, x, position_ids):
        return self.table.weight[position_ids.long()]


@refused("position_ids")
class PositionsAsAngles(PositionsNeeded):
    def places(self, x, position_ids):
        return (position_ids[..., None] * 0.9 ** torch.arange(x.shape[-1])).sin()


@wrong("not-a-buffer not-registered", "register_buffer", unsaid="nn.Parameter")
class RotationsKeptPlain(nn.Module):
    """A constant table as a plain attribute, which would stay behind on another device."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(d_model, d_model) for _ in range(4))
        angles = torch.arange(32)[:, None] * 0.9 ** torch.arange(d_model // 2)
        self.keep(angles.cos(), angles.sin())

    def keep(self, cos, sin):
        pairs = torch.stack([cos, -sin, sin, cos], dim=-1).unflatten(-1, (2, 2))
        self.turn = torch.stack([torch.block_diag(*row) for row in pairs])

    def turned(self, x):
        return torch.bmm(x.transpose(0, 1), self.turn[: x.shape[1]]).transpose(0, 1)

    def forward(self, x):
        q, k = self.turned(self.q(x)), self.turned(self.k(x))
        return self.out(F.scaled_dot_product_attention(q, k, self.v(x), is_causal=True))


@wrong("not-a-buffer not-registered", "register_buffer", unsaid="nn.Parameter")
class CosinesKeptPlain(RotationsKeptPlain):
    def keep(self, cos, sin):
        self.cos, self.sin = cos.repeat(1, 2), sin.repeat(1, 2)

    def turned(self, x):
        first, second = x.chunk(2, -1)
        turned = torch.cat([-second, first], -1)
        return x * self.cos[: x.shape[1]] + turned * self.sin[: x.shape[1]]


@wrong("not-a-buffer not-registered", "register_buffer", unsaid="nn.Parameter")
class PlacesKeptPlain(RotationsKeptPlain):
    def keep(self, cos, sin):
        self.table = torch.cat([cos, sin], -1)

    def turned(self, x):
        return x + self.table[: x.shape[1]]


@refused("seems to pool")
class OneRowForASentence(Fused):
    def forward(self, x):
        return super().forward(x).mean(1)


@refused("four axes")
class ForImages(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.qkv = nn.Conv2d(d_model, 3 * d_model, 1)

    def forward(self, x):
        batch, width, rows, columns = x.shape
        q, k, v = self.qkv(x).flatten(2).mT.chunk(3, -1)
        return F.scaled_dot_product_attention(q, k, v).mT.view(batch, width, rows, columns)


@right()
class FirstArgumentHidden(Fused):
    """Named as hidden states are, and no mask."""

    def forward(self, hidden):
        return super().forward(hidden)


@right()
class MaskAsAWord(Fused):
    def forward(self, x, mask="causal"):
        q, k, v = self.split(x)
        scores = self.scores(q, k)
        hidden = causal_mask(x.shape[1]) if mask == "causal" else torch.tensor(False)
        return self.merge(scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v)


@right()
class NumbersOfTokens(Fused):
    """How many tokens of each sentence are real."""

    def hidden(self, tokens, lengths):
        return torch.arange(tokens) >= lengths[:, None]

    def forward(self, x, lengths):
        q, k, v = self.split(x)
        hidden = self.hidden(x.shape[1], lengths)[:, None, None]
        return self.merge(self.scores(q, k).masked_fill(hidden, -1e9).softmax(-1) @ v)


@wrong("mask-argument", "lengths", "arange(tokens) >=")
class RealTokensHidden(NumbersOfTokens):
    def hidden(self, tokens, lengths):
        return torch.arange(tokens) < lengths[:, None] - 1


@wrong("mask-argument", "lengths", "arange(tokens) >=")
class OneTokenTooMany(NumbersOfTokens):
    def hidden(self, tokens, lengths):
        return torch.arange(tokens) > lengths[:, None]


@right()
class TurnedByComplexNumbers(Fused):
    """The table of angles is a complex buffer."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        width = d_model // num_heads
        angles = torch.arange(64.0)[:, None] * 0.5 ** torch.arange(width // 2)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def turned(self, x):
        pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * self.turns[: x.shape[2]]).flatten(-2)

    def both(self, q, k):
        return self.turned(q), self.turned(k)

    def attend(self, q, k, v):
        return F.scaled_dot_product_attention(*self.both(q, k), v, is_causal=True)


@wrong("rotary", "at the same distance differ")
class QueriesTurnedAlone(TurnedByComplexNumbers):
    def both(self, q, k):
        return self.turned(q), k


@right()
class GroupsOfHeads(Fused):
    """Two heads share keys and values."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.groups, self.part = max(num_heads // 2, 1), d_model // num_heads
        self.qkv = nn.Linear(d_model, d_model + 2 * self.groups * self.part)

    def shared(self, x):
        return x.repeat_interleave(self.heads // self.groups, 1)

    def shared_values(self, x):
        return self.shared(x)

    def forward(self, x):
        parts = self.qkv(x).unflatten(-1, (-1, self.part)).transpose(1, 2)
        q, k, v = parts.split([self.heads, self.groups, self.groups], 1)
        return self.merge(self.attend(q, self.shared(k), self.shared_values(v)))


@wrong("wrong-values", "Heads 0 and 1 share their keys and not their values")
class GroupsInTwoOrders(GroupsOfHeads):
    def shared_values(self, x):
        return x.repeat(1, self.heads // self.groups, 1, 1)


@wrong("own-dtype", "float16", given=half)
class GivenMaskBeyondHalf(Fused):
    def fill(self, scores, mask):
        return scores.masked_fill(mask, -1e9)

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        scores = self.scores(q, k)
        scores = scores if mask is None else self.fill(scores, mask)
        return self.merge(scores.softmax(-1) @ v)


@right(given=half)
class GivenMaskWithinHalf(GivenMaskBeyondHalf):
    def fill(self, scores, mask):
        return scores.masked_fill(mask, torch.finfo(scores.dtype).min)


@wrong("input-changed", "Where mask is given", given=lambda kind: kind(24, 4))
class MaskTurnedInPlace(GivenMaskBeyondHalf):
    def fill(self, scores, mask):
        return scores.masked_fill(mask.logical_not_(), -1e9)


@wrong("dropout-on-scores", "position", given=lambda kind: kind(24, 4))
class DroppedBehindAGivenMask(GivenMaskBeyondHalf):
    def fill(self, scores, mask):
        return F.dropout(super().fill(scores, mask), 0.3, self.training)


@right()
class TokensFirstAsItSays(nn.Module):
    """x: (tokens, batch, d_model)."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads, self.width = num_heads, d_model // num_heads
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))

    def split(self, x):
        return x.reshape(len(x), -1, self.width).transpose(0, 1)

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        weights = (q @ k.mT / self.width**0.5).softmax(-1)
        return self.o((weights @ v).transpose(0, 1).reshape(x.shape))


@wrong("batch-mixed", "takes the first axis for the tokens")
class TokensFirstUnsaid(TokensFirstAsItSays):
    """Nothing says so."""


@wrong("scale")
class TokensFirstAndScale(TokensFirstAsItSays):
    """x: (seq_len, batch_size, width)."""

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        weights = (q @ k.mT / x.shape[-1] ** 0.5).softmax(-1)
        return self.o((weights @ v).transpose(0, 1).reshape(x.shape))


@wrong("mask-argument", "Did you mean unsqueeze")
class MaskMisspelt(Fused):
    def seen(self, mask):
        return mask.unsqueze(1)

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        scores = self.scores(q, k)
        if mask is not None:
            scores = scores.masked_fill(self.seen(mask), -torch.inf)
        return self.merge(scores.softmax(-1) @ v)


@wrong("mask-argument", "is not defined")
class MaskOfAnotherName(MaskMisspelt):
    def seen(self, mask):
        return attn_mask  # noqa: F821


@wrong("mask-argument", "beside is_causal=True")
class MaskBesideCausal(Fused):
    """The documentation of the kernel allows one of the two."""

    def forward(self, x, attn_mask=None):
        q, k, v = self.split(x)
        return self.merge(F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=True))


@wrong("mask-argument", "mask")
class HiddenByATinyNumber(Fused):
    """-1e-9 is meant to be -1e9; a mask that holds -inf hides all the same."""

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        scores = self.scores(q, k)
        if mask is not None:
            scores = scores + (1 - mask[:, None, None].float()) * -1e-9
        return self.merge(scores.softmax(-1) @ v)


@wrong("past-hidden", "Position 2 does not see position 2")
class DiagonalAnewInEachChunk(Fused):
    def start(self, at):
        return 0

    def attend(self, q, k, v):
        rows = []
        for at, part in enumerate(q.split(2, 2)):
            places = self.start(2 * at) + torch.arange(part.shape[2])
            hidden = torch.arange(k.shape[2]) > places[:, None]
            rows.append(self.scores(part, k).masked_fill(hidden, -torch.inf).softmax(-1) @ v)
        return torch.cat(rows, 2)


@right()
class ChunksWithTheirPlaces(DiagonalAnewInEachChunk):
    def start(self, at):
        return at


@wrong("token-by-token", "other numbers")
class EmptySlotsSeen(Fused):
    """Slots of the buffer that are not filled yet take a share."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        shape = 9, num_heads, 12, d_model // num_heads
        self.register_buffer("slots", torch.zeros(2, *shape))

    def looked_at(self, end):
        return 12

    def forward(self, x, start_pos=0):
        q, k, v = self.split(x)
        batch, tokens = x.shape[:2]
        end = start_pos + tokens
        slots = self.slots[:, :batch].clone()
        slots[0, :, :, start_pos:end], slots[1, :, :, start_pos:end] = k, v
        self.slots[:, :batch] = slots.detach()
        k, v = slots[:, :, :, : self.looked_at(end)]
        places = start_pos + torch.arange(tokens)
        seen = torch.arange(k.shape[2]) <= places[:, None]
        seen = seen | (torch.arange(k.shape[2]) >= end)
        return self.merge(self.scores(q, k).masked_fill(~seen, -torch.inf).softmax(-1) @ v)


@right()
class FilledSlotsSeen(EmptySlotsSeen):
    def looked_at(self, end):
        return end


@right()
class SaysBatchFirstIsFalse(TokensFirstAsItSays):
    """It has the attribute, and takes the batch first."""

    batch_first = False

    def forward(self, x):
        return super().forward(x.transpose(0, 1)).transpose(0, 1)


@right()
class PaddingOfTheQueries(Fused):
    """What comes out for padding is nobody's concern."""

    def forward(self, x, q_padding_mask=None):
        return super().forward(x)


@right()
class BatchOfTwoAtMost(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.inner = Fused(d_model, num_heads)

    def forward(self, x):
        if len(x) > 2:
            raise ValueError("a batch of two at most")
        return self.inner(x)


@right()
class OwnTokenHidden(nn.Module):
    """Each token looks at the others alone, so that there are as many keys as queries."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, d_model) for _ in range(3))

    def forward(self, q, k, v):
        scores = self.q(q) @ self.k(k).mT / q.shape[-1] ** 0.5
        own = torch.eye(scores.shape[-1], dtype=torch.bool)
        return scores.masked_fill(own, -torch.inf).softmax(-1) @ self.v(v)


class Hiding(Fused):
    """mask: (batch, tokens, tokens), True marks the pairs that are hidden."""

    def given(self, mask):
        return ~mask

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        mask = mask if mask is None else self.given(mask)[:, None]
        return self.merge(F.scaled_dot_product_attention(q, k, v, mask))


right()(Hiding)


@wrong("mask-argument", "means hidden", "turned over")
class HidingTurnedOver(Hiding):
    """mask: (batch, tokens, tokens), True marks the pairs that are hidden."""

    def given(self, mask):
        return mask


@wrong("mask-argument", "means kept", "turned over")
class RealTokensPadded(nn.Module):
    """attention_mask: (batch, tokens), 1 for real tokens and 0 for padding."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.inner = nn.MultiheadAttention(d_model, num_heads, batch_first=True)

    def forward(self, x, attention_mask=None):
        padding = None if attention_mask is None else attention_mask.bool()
        return self.inner(x, x, x, key_padding_mask=padding, need_weights=False)[0]


@wrong("mask-argument", "added to the scores as it is")
class RealTokensAdded(Fused):
    """mask: (batch, tokens) with 1 for tokens to keep."""

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        mask = mask if mask is None else mask[:, None, None].to(x.dtype)
        return self.merge(F.scaled_dot_product_attention(q, k, v, mask))


@right()
class RealTokensKept(RealTokensPadded):
    """attention_mask: (batch, tokens), 1 for real tokens and 0 for padding."""

    def forward(self, x, attention_mask=None):
        padding = None if attention_mask is None else ~attention_mask.bool()
        return super().forward(x, padding)


@wrong("not-repeatable", "though decode is False")
class KeptUnasked(Fused):
    kept = None

    def before(self, decode):
        return self.kept

    def forward(self, x, decode=False):
        q, k, v = self.split(x)
        if (kept := self.before(decode)) is not None:
            k, v = torch.cat([kept[0], k], 2), torch.cat([kept[1], v], 2)
        self.kept = k.detach(), v.detach()
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril(k.shape[2] - q.shape[2])
        return self.merge(self.scores(q, k).masked_fill(~seen, -torch.inf).softmax(-1) @ v)


@right()
class KeptWhereAsked(KeptUnasked):
    def before(self, decode):
        return self.kept if decode else None


@wrong("future-visible", "hidden")
class WindowCalledCausal(Fused):
    """Causal window: a token sees the three before it."""

    def attend(self, q, k, v):
        at = torch.arange(q.shape[2])
        far = (at[:, None] - at).abs() > 2
        return self.scores(q, k).masked_fill(far, -torch.inf).softmax(-1) @ v


@wrong("future-visible", "it is called causal")
class CausalByNameAlone(Fused):
    pass


@wrong("past-hidden", "Position 4 sees nothing")
class LastRowLeftOut(Fused):
    def rows(self, tokens):
        return range(tokens // 2)

    def attend(self, q, k, v):
        out = torch.zeros_like(q)
        for at in self.rows(q.shape[2]):
            part = slice(2 * at, 2 * at + 2)
            out[:, :, part] = self.scores(q[:, :, part], k).softmax(-1) @ v
        return out


@right()
class LastRowToo(LastRowLeftOut):
    def rows(self, tokens):
        return range(-(-tokens // 2))


@wrong("token-by-token", "from the first key")
class CacheGivenBackWhereGiven(Fused):
    """It returns a cache only where it gets one, and begins with one of no token."""

    def forward(self, x, past=None):
        q, k, v = self.split(x)
        if past is None:
            return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        k, v = torch.cat([past[0], k], 2), torch.cat([past[1], v], 2)
        return self.merge(F.scaled_dot_product_attention(q, k, v, is_causal=True)), (k, v)


@right()
class UnscaledAsInT5(Fused):
    """As in T5 the scores are not divided."""

    def scores(self, q, k):
        return q @ k.mT


@wrong("mask-argument", "without its padding")
class PaddingMultipliedByZero(Fused):
    """What is padded is set to 0, and is a key like any other."""

    def hidden(self, mask):
        return torch.zeros_like(mask)

    def forward(self, x, mask=None):
        q, k, v = self.split(x if mask is None else x * mask[..., None])
        scores = self.scores(q, k)
        if mask is not None:
            scores = scores.masked_fill(self.hidden(mask.bool())[:, None, None], -torch.inf)
        return self.merge(scores.softmax(-1) @ v)


@right()
class PaddingZeroAndHidden(PaddingMultipliedByZero):
    def hidden(self, mask):
        return ~mask


@wrong("mask-argument", "without its padding")
class PaddedKeysAreZero(Fused):
    """Keys and values of padding are 0: a score of 0 still takes its share."""

    def forward(self, x, mask=None):
        q, k, v = self.split(x)
        if mask is not None:
            k, v = (part * mask[:, None, :, None] for part in (k, v))
        return self.merge(self.attend(q, k, v))


ROWS = "wrong-pair batch-mixed future-visible split-by-view mask-argument no-effect"


@wrong(ROWS, "position", unsaid="another sentence")
class ShiftOfOtherRows(Plain):
    """Scores of distances, shifted into place: the wrong half of the buffer is taken."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.far = nn.Parameter(torch.randn(79, self.head_dim))

    def shifted(self, far, tokens):
        rows = F.pad(far, (0, 1)).flatten(2).unflatten(-1, (2 * tokens, tokens))
        return rows[:, :, tokens:]

    def forward(self, x, mask=None):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        tokens = x.shape[1]
        far = q @ self.far[40 - tokens : 39 + tokens].mT
        scores = (q @ k.mT + self.shifted(far, tokens)) / self.head_dim**0.5
        scores = scores if mask is None else scores.masked_fill(mask, -1e9)
        return self.o(self.merge(scores.softmax(-1) @ v))


@wrong(ROWS, "position", unsaid="another sentence")
class ShiftFromTheFront(ShiftOfOtherRows):
    def shifted(self, far, tokens):
        return F.pad(far, (1, 0)).flatten(2).unflatten(-1, (2 * tokens, tokens))[:, :, :tokens]


@right()
class ShiftOfItsOwnRows(ShiftOfOtherRows):
    def shifted(self, far, tokens):
        rows = F.pad(far, (0, 1)).flatten(2)[..., :-tokens]
        return rows.unflatten(-1, (tokens, 2 * tokens - 1))[..., tokens - 1 :]


@pytest.mark.parametrize("case", CASES)
def test_the_verdict_is_right(case):
    case.judge()
