"""Right attention that a naive checker calls wrong: no finding on any of it."""

import copy
import math

import torch
import torch.nn.functional as F
from planted import make
from torch import nn

from attention_course import (
    CausalHead,
    LoopedMultiHeadAttention,
    MultiHeadAttention,
    causal_mask,
    rotary,
)


class Plain(nn.Module):
    """Four layers and the steps between them, each a method that a variant replaces."""

    def __init__(self, d_model, num_heads, bias=True):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.q = nn.Linear(d_model, d_model, bias=bias)
        self.k = nn.Linear(d_model, d_model, bias=bias)
        self.v = nn.Linear(d_model, d_model, bias=bias)
        self.o = nn.Linear(d_model, d_model, bias=bias)

    def split(self, x):
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).flatten(2)

    def places(self, x):
        return x

    def scores(self, q, k):
        return q @ k.mT / math.sqrt(self.head_dim)

    def hide(self, scores):
        return scores.masked_fill(causal_mask(scores.shape[-1]), -torch.inf)

    def soften(self, scores):
        return scores.softmax(-1)

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        weights = self.soften(self.hide(self.scores(self.places(q), self.places(k))))
        return self.o(self.merge(weights @ v))


class SameAtStart(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.k, self.v = copy.deepcopy(self.q), copy.deepcopy(self.q)


class NoBias(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads, bias=False)


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


class HeadsOfSteps(Plain):
    """Head h sees each 4**h-th token of the past: the last ones see themselves alone."""

    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        steps = 4 ** torch.arange(self.num_heads)[:, None, None]
        back = places[:, None] - places
        return scores.masked_fill((back < 0) | (back % steps != 0), -torch.inf)


class RectifiedKernel(Plain):
    def scores(self, q, k):
        return F.relu(q) @ F.relu(k).mT

    def hide(self, scores):
        return scores.tril()

    def soften(self, scores):
        return scores / scores.sum(-1, keepdim=True).clamp_min(1e-12)


class KeysOfPlaces(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.table = nn.Parameter(torch.randn(33, d_model))

    def scores(self, q, k):
        return super().scores(q, k + self.split(self.table[None, : k.shape[2]]))


class FewerKeys(Plain):
    """Linformer: learned sums over the tokens, of the first rows of a table."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.sums = nn.Parameter(torch.randn(33, 7))

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        k, v = (self.sums[: x.shape[1]].T @ part for part in (k, v))
        return self.o(self.merge(self.scores(q, k).softmax(-1) @ v))


class HeadSwitches(Plain):
    """Heads switched off for good, as in pruning."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.register_buffer("kept", (torch.arange(num_heads) > 1).float())

    def merge(self, x):
        return super().merge(x * self.kept[:, None, None])


class HardGates(Plain):
    """Learned gates, 0 or 1 by head: which heads are off is a matter of the numbers."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.gates = nn.Parameter(torch.linspace(-1, 1, num_heads))

    def merge(self, x):
        hard = (self.gates > 0).float() + self.gates - self.gates.detach()
        return super().merge(x * hard[:, None, None])


class SecondResult(Plain):
    """A second attention, for a result beside the first."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.other = Plain(d_model, num_heads)

    def forward(self, x):
        return super().forward(x), self.other(x)


class SideLoss(SecondResult):
    """A second attention for a loss that is kept for the trainer."""

    def forward(self, x):
        self.loss = self.other(x).square().mean()
        return Plain.forward(self, x)


class HelpInTraining(SecondResult):
    def forward(self, x):
        result, other = super().forward(x)
        return result + other if self.training else result


class GrownMask(Plain):
    """A mask that is kept, and made anew where more tokens come."""

    hidden = torch.empty(0, 0)

    def hide(self, scores):
        tokens = scores.shape[-1]
        if len(self.hidden) < tokens:
            self.hidden = causal_mask(tokens)
        return scores.masked_fill(self.hidden[:tokens, :tokens], -torch.inf)


class OneQueryOfItsOwn(Plain):
    """A learned query, the same for all rows."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.asked = nn.Parameter(torch.randn(d_model))

    def forward(self, x):
        asked = self.split(self.q(self.asked.expand_as(x)))
        k, v = self.split(self.k(x)), self.split(self.v(x))
        return self.o(self.merge(self.soften(self.hide(self.scores(asked, k))) @ v))


class OneLayerForBoth(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.k = self.q


class HeadAxisLast(Plain):
    def split(self, x):
        return x.view(*x.shape[:2], self.head_dim, self.num_heads).permute(0, 3, 1, 2)

    def merge(self, x):
        return x.permute(0, 2, 3, 1).flatten(2)


class HeadsInBatch(Plain):
    def split(self, x):
        return torch.cat(x.chunk(self.num_heads, dim=-1), dim=0)

    def merge(self, x):
        return torch.cat(x.chunk(self.num_heads, dim=0), dim=-1)


class Rotary(Plain):
    def places(self, x):
        return rotary(x)


class Normed(Plain):
    def places(self, x):
        return F.normalize(x, dim=-1)

    def scores(self, q, k):
        return 10 * q @ k.mT


class LearnedTemperature(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def scores(self, q, k):
        return q @ k.mT * self.temperature


class QuarterRoots(Plain):
    def places(self, x):
        return x * self.head_dim**-0.25

    def scores(self, q, k):
        return q @ k.mT


class ScaledQueries(Plain):
    def scores(self, q, k):
        q = q / math.sqrt(self.head_dim)
        return torch.einsum("bhqd,bhkd->bhqk", q, k)


class MaskFirst(Plain):
    def scores(self, q, k):
        return q @ k.mT

    def hide(self, scores):
        return scores.masked_fill(causal_mask(scores.shape[-1]), -1e9) / math.sqrt(self.head_dim)


class Additive(Plain):
    def hide(self, scores):
        return scores + torch.full(scores.shape[-2:], -1e4).triu(1)


class FiniteMinimum(Plain):
    def hide(self, scores):
        keep = torch.ones(scores.shape[-2:]).tril()
        return torch.where(keep == 1, scores, torch.finfo(scores.dtype).min)


class Assigned(Plain):
    def hide(self, scores):
        scores[:, :, causal_mask(scores.shape[-1])] = float("-inf")
        return scores


class TwoWay(Plain):
    def hide(self, scores):
        return scores


class Alibi(Plain):
    def hide(self, scores):
        tokens = scores.shape[-1]
        places = torch.arange(tokens)
        slopes = 2.0 ** -torch.arange(1, self.num_heads + 1)
        bias = (places - places[:, None]) * slopes[:, None, None]
        return super().hide(scores + bias)


class RelativeBias(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.table = nn.Embedding(31, num_heads)

    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        return super().hide(scores + self.table(places - places[:, None] + 15).permute(2, 0, 1))


class SoftmaxByHand(Plain):
    def soften(self, scores):
        raised = torch.exp(scores - scores.amax(-1, keepdim=True))
        return raised / raised.sum(-1, keepdim=True)


class Renormalised(Plain):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        weights = scores.softmax(-1) * (~causal_mask(scores.shape[-1]))
        return weights / weights.sum(-1, keepdim=True)


class Sink(Plain):
    """One more place in each softmax, for no token: rows of weights sum below one."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def soften(self, scores):
        sink = self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


class OneMore(Plain):
    """exp(s) / (1 + Σ exp(s)): rows sum below one."""

    def soften(self, scores):
        raised = scores.exp()
        return raised / (1 + raised.sum(-1, keepdim=True))


class ByBlocks(Plain):
    """The softmax summed up block by block, as the fast kernels do."""

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        tokens = x.shape[1]
        top = torch.full((*q.shape[:3], 1), -torch.inf)
        total, out = torch.zeros_like(top), torch.zeros_like(q)
        for start in range(0, tokens, 2):
            block = slice(start, start + 2)
            scores = q @ k[:, :, block].mT / math.sqrt(self.head_dim)
            scores = scores.masked_fill(causal_mask(tokens)[:, block], -torch.inf)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            raised, shrink = torch.exp(scores - new), torch.exp(top - new)
            total = total * shrink + raised.sum(-1, keepdim=True)
            out, top = out * shrink + raised @ v[:, :, block], new
        return self.o(self.merge(out / total))


class TokenByToken(Plain):
    """One query at a time, in Python loops."""

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        rows = []
        for t in range(x.shape[1]):
            scores = (q[:, :, t : t + 1] * k[:, :, : t + 1]).sum(-1) / self.head_dim**0.5
            weights = torch.softmax(scores, dim=-1).unsqueeze(-1)
            rows.append((weights * v[:, :, : t + 1]).sum(2))
        return self.o(self.merge(torch.stack(rows, dim=2)))


class WithWeights(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        self.kept = self.hide(self.scores(q, k)).softmax(-1)
        return self.o(self.merge(self.kept @ v)), self.kept


class WeightsFirst(WithWeights):
    def forward(self, x):
        return tuple(reversed(super().forward(x)))


class AsDict(Plain):
    def forward(self, x):
        return {"cache": None, "out": super().forward(x)}


class Residual(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.norm, self.drop = nn.LayerNorm(d_model), nn.Dropout(0.1)

    def forward(self, x):
        return x + self.drop(super().forward(self.norm(x)))


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


class FusedKV(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.to_q = nn.Linear(d_model, d_model, bias=False)
        self.to_kv = nn.Linear(d_model, 2 * d_model, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        k, v = self.to_kv(x).chunk(2, dim=-1)
        q, k, v = (p.reshape(b, t, self.h, -1).transpose(1, 2) for p in (self.to_q(x), k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


class BlockOrder(nn.Module):
    """Fused projections as (head, v/k/q, head_dim), an order of its own."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.all = nn.Linear(d_model, 3 * d_model)
        self.end = nn.Linear(d_model, d_model)

    def forward(self, x):
        b, t, d = x.shape
        v, k, q = self.all(x).view(b, t, self.h, 3, d // self.h).permute(3, 0, 2, 1, 4).unbind(0)
        scores = q @ k.mT / (d // self.h) ** 0.5
        scores = scores.masked_fill(causal_mask(t), -torch.inf)
        return self.end((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, t, d))


class SlicesInLoop(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.h = num_heads
        self.a = nn.Linear(d_model, d_model)
        self.b = nn.Linear(d_model, d_model)
        self.c = nn.Linear(d_model, d_model)
        self.d = nn.Linear(d_model, d_model)

    def forward(self, x):
        q, k, v = self.a(x), self.b(x), self.c(x)
        size = x.shape[-1] // self.h
        out = torch.zeros_like(x)
        for n in range(self.h):
            part = slice(n * size, (n + 1) * size)
            scores = q[..., part] @ k[..., part].transpose(1, 2) / size**0.5
            scores = scores + torch.zeros_like(scores).masked_fill(causal_mask(x.shape[1]), -1e9)
            out[..., part] = scores.softmax(-1) @ v[..., part]
        return self.d(out)


class KeysFirst(nn.Module):
    """Scores as keys times queries, softmax over the keys, which are the rows."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.size = d_model // num_heads
        self.query = nn.Linear(d_model, self.size)
        self.key = nn.Linear(d_model, self.size)
        self.value = nn.Linear(d_model, self.size)

    def forward(self, x):
        scores = self.key(x) @ self.query(x).mT / self.size**0.5  # (keys, queries)
        scores = scores.masked_fill(causal_mask(x.shape[1]).T, -torch.inf)
        return scores.softmax(dim=1).mT @ self.value(x)


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


class TokensFirst(Plain):
    def forward(self, x):
        x = x.transpose(0, 1)
        t, b, d = x.shape
        q, k, v = (
            layer(x).reshape(t, b, self.num_heads, -1).permute(1, 2, 0, 3)
            for layer in (self.q, self.k, self.v)
        )
        context = self.hide(self.scores(q, k)).softmax(-1) @ v
        return self.o(context.permute(2, 0, 1, 3).reshape(t, b, d)).transpose(0, 1)


class Windowed(Plain):
    """Each token sees itself and the two before it."""

    def hide(self, scores):
        far = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-3)
        return super().hide(scores.masked_fill(far, -torch.inf))


class WindowBothWays(Plain):
    """Each token sees its neighbours on both sides."""

    def hide(self, scores):
        pairs = torch.ones(scores.shape[-2:], dtype=torch.bool)
        return scores.masked_fill(pairs.triu(2) | pairs.tril(-2), -torch.inf)


class WindowBeyondTheEnd(Plain):
    """A window both ways that is wider than a short input."""

    def hide(self, scores):
        ones = torch.ones(scores.shape[-2:])
        return scores.masked_fill(ones.tril(9) * ones.triu(-9) == 0, -torch.inf)


class DistancesOfTriangles(Plain):
    def hide(self, scores):
        far = torch.ones(scores.shape[-2:]).triu(1).cumsum(1).triu(1)
        return scores - 0.3 * (far + far.mT)


class DistancesOfTwoTriangles(Plain):
    def hide(self, scores):
        later = torch.ones(scores.shape[-2:]).triu(1).cumsum(1).triu(1)
        before = torch.ones(scores.shape[-2:]).tril(-1).cumsum(0).tril(-1)
        return scores - 0.3 * later - 0.3 * before


class EmptyTokensHidden(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        empty = (x.abs().sum(-1) == 0)[:, None, None, :]
        weights = self.soften(self.scores(q, k).masked_fill(empty, -torch.inf))
        return self.o(self.merge(weights @ v))


class EmptyTokensHiddenInTheKernel(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        filled = (x.abs().sum(-1) != 0)[:, None, None, :].expand(-1, 1, x.shape[1], -1)
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, filled)))


class FarIsLessInTheKernel(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        places = torch.arange(x.shape[1])
        bias = -0.3 * (places[:, None] - places).abs()
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, bias)))


class NoNaN(Plain):
    def hide(self, scores):
        return scores.masked_fill(scores.isnan(), 0.0)


class OthersAlone(Plain):
    """Two-way, and no token attends to itself, as in vision with few images."""

    def hide(self, scores):
        return scores.masked_fill(torch.eye(scores.shape[-1]) == 1, -1e9)


class OthersNearby(Plain):
    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        far = (places[:, None] - places).abs()
        return scores.masked_fill((far == 0) | (far > 2), -torch.inf)


class EverySecond(Plain):
    def hide(self, scores):
        tokens = scores.shape[-1]
        hidden = (torch.arange(tokens) % 2 == 1) & (torch.eye(tokens) == 0)
        return scores.masked_fill(hidden, -torch.inf)


class Prefix(Plain):
    def hide(self, scores):
        hidden = causal_mask(scores.shape[-1])
        hidden[:, :3] = False
        return scores.masked_fill(hidden, -torch.inf)


class SymmetricWeight(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.mix = nn.Parameter(torch.randn(d_model, d_model))

    def hide(self, scores):
        return scores

    def forward(self, x):
        return super().forward(x @ (self.mix.triu() + self.mix.triu(1).mT))


class Asked(Plain):
    """The mask is built always and applied where forward is asked for it."""

    def forward(self, x, causal=False):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        scores, hidden = self.scores(q, k), torch.ones(x.shape[1], x.shape[1]).triu(1) == 1
        if causal:
            scores = scores.masked_fill(hidden, -torch.inf)
        return self.o(self.merge(self.soften(scores) @ v))


class AskedWithABuffer(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.register_buffer("seen", torch.ones(9, 9).tril())

    def forward(self, x, use_mask=False):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        scores, tokens = self.scores(q, k), x.shape[1]
        if use_mask:
            scores = scores.masked_fill(self.seen[:tokens, :tokens] == 0, -torch.inf)
        return self.o(self.merge(self.soften(scores) @ v))


class NoDecoder(AskedWithABuffer):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.is_decoder = False

    def forward(self, x):
        return super().forward(x, self.is_decoder)


class BlockThatDoesNotAsk(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.one, self.two = Asked(d_model, num_heads), Asked(d_model, num_heads)

    def forward(self, x):
        x = x + self.one(x)
        return x + self.two(x, False)


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


class Differential(Plain):
    """The difference of two softmaxes: rows sum below one."""

    def soften(self, scores):
        return scores.softmax(-1) - 0.3 * (scores / 2).softmax(-1)


class FrozenMask(Plain):
    """The mask is a parameter that is not trained: it moves with the module."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.keep = nn.Parameter(torch.ones(8, 8).tril(), requires_grad=False)

    def hide(self, scores):
        tokens = scores.shape[-1]
        return scores.masked_fill(self.keep[:tokens, :tokens] == 0, -torch.inf)


class AttentionTwice(Plain):
    def forward(self, x):
        return super().forward(super().forward(x))


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


class ZeroedPadding(TwoWay):
    """Padded keys are hidden, and what comes out for a padded token is set to 0."""

    def forward(self, x, mask=None):
        self.given = None if mask is None else ~mask[:, None, None, :]
        output = super().forward(x)
        return output if mask is None else output * mask[..., None]

    def hide(self, scores):
        scores = super().hide(scores)
        return scores if self.given is None else scores.masked_fill(self.given, -1e9)


class ZeroedPaddingCausal(ZeroedPadding):
    def hide(self, scores):
        return super().hide(scores).masked_fill(causal_mask(scores.shape[-1]), -1e9)


class PaddingForEachHead(TwoWay):
    """(batch · heads) masks, those of one sentence one after another."""

    def forward(self, x, padding_mask=None):
        self.given = padding_mask
        return super().forward(x)

    def hide(self, scores):
        if self.given is None:
            return scores
        hidden = self.given.repeat_interleave(self.num_heads, dim=0)
        return scores.masked_fill(hidden.view(*scores.shape[:2], 1, -1), -torch.inf)


class PaddingAtTheEnd(TwoWay):
    """The mask is read as lengths: what is padded stands behind the rest."""

    def forward(self, x, padding_mask=None):
        self.given = None
        if padding_mask is not None:
            lengths = (~padding_mask).sum(dim=1, keepdim=True)
            self.given = (torch.arange(x.shape[1]) >= lengths)[:, None, None, :]
        return super().forward(x)

    def hide(self, scores):
        return scores if self.given is None else scores.masked_fill(self.given, -torch.inf)


class Looking(Plain):
    """Queries of x, keys and values of a context; a mask that is 0 hides."""

    def forward(self, x, context, mask=None):
        q, k, v = self.split(self.q(x)), self.split(self.k(context)), self.split(self.v(context))
        scores = self.scores(q, k)
        if mask is not None:
            scores = scores.masked_fill(mask == 0, -1e9)
        return self.o(self.merge(self.soften(scores) @ v))


class ContextOfItsOwnWidth(Looking):
    def __init__(self, d_model, num_heads, width=10):
        super().__init__(d_model, num_heads)
        self.k, self.v = nn.Linear(width, d_model), nn.Linear(width, d_model)


class LatentsLook(Looking):
    def forward(self, x, latents):
        return super().forward(latents, x)


class QuestionIsSeen(Looking):
    def forward(self, question, context):
        return super().forward(context, question)


class ValuesApart(Plain):
    """Keys of one input, values of another, as in a regression by kernels."""

    def forward(self, x, y):
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(y))
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


class PlacesForQueriesAndKeys(ValuesApart):
    def forward(self, x, encoding):
        return super().forward(x + encoding, x)


class DecoderBlock(nn.Module):
    """Causal by itself, with a memory that is seen whole."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.own, self.cross = Looking(d_model, num_heads), Looking(d_model, num_heads)

    def forward(self, x, memory):
        x = x + self.own(x, x, ~causal_mask(x.shape[1]))
        return x + self.cross(x, memory)


class SourceMaskForTheInput(DecoderBlock):
    def forward(self, x, memory, src_mask=None):
        x = x + self.own(x, x, src_mask)
        return x + self.cross(x, memory)


class MemoryFirst(DecoderBlock):
    def forward(self, memory, x):
        return super().forward(x, memory)


class DecoderBlockTwoMasks(DecoderBlock):
    def forward(self, x, encoder_output, src_mask=None, tgt_mask=None):
        x = x + self.own(x, x, tgt_mask)
        return x + self.cross(x, encoder_output, src_mask)


class DecoderBlockPadded(DecoderBlock):
    """Causal by itself; what is padding in the memory is said."""

    def forward(self, x, encoder_output, pad_mask=None):
        seen = pad_mask if pad_mask is None else pad_mask[:, None, None, :]
        x = x + self.own(x, x, ~causal_mask(x.shape[1]))
        return x + self.cross(x, encoder_output, seen)


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


class PaddingIsRequired(Plain):
    """forward(x, mask) with a mask (batch, tokens), 1 = keep."""

    def forward(self, x, mask):
        self.padding = mask[:, None, None, :] == 0
        return super().forward(x)

    def hide(self, scores):
        return scores.masked_fill(self.padding, -1e9)


class WindowWithPadding(PaddingIsRequired):
    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        far = (places[:, None] - places).abs() > 1
        return super().hide(scores).masked_fill(far, -1e9)


class TwoMasksRequired(Plain):
    """forward(x, attn_mask, padding_mask): pairs that are added, padding where True = hidden."""

    def forward(self, x, attn_mask, padding_mask):
        self.added, self.padding = attn_mask, padding_mask[:, None, None]
        return super().forward(x)

    def hide(self, scores):
        return (scores + self.added).masked_fill(self.padding, -1e9)


class ThreeMasksRequired(Plain):
    def forward(self, x, key_padding_mask, src_mask, attn_mask):
        self.kept = (attn_mask * src_mask * key_padding_mask[:, None, None]) != 0
        return super().forward(x)

    def hide(self, scores):
        return scores.masked_fill(~self.kept, -1e9)


class MasksOfTwoKinds(Plain):
    """Both required: in one True = hidden, in the other True = keep."""

    def forward(self, x, causal_mask, pad_mask):
        self.hidden = causal_mask | ~pad_mask[:, None, None]
        return super().forward(x)

    def hide(self, scores):
        return scores.masked_fill(self.hidden, -torch.inf)


class PaddedRowsAreZero(PaddingIsRequired):
    def forward(self, x, mask):
        return super().forward(x, mask) * mask.unsqueeze(-1)


class PairsOfThreeInputs(Plain):
    """forward(q, k, v, mask), all required: 1 = keep, 0 = hidden."""

    def forward(self, q, k, v, mask):
        q, k, v = self.split(self.q(q)), self.split(self.k(k)), self.split(self.v(v))
        return self.o(self.merge(self.soften(self.mask(self.scores(q, k), mask)) @ v))

    def mask(self, scores, mask):
        return scores + (1.0 - mask) * -1e9


class PairsOfPadding(Plain):
    """A padding mask of pairs: what comes out for a padded token is nobody's concern."""

    def forward(self, x, mask=None):
        kept = torch.ones(x.shape[:2]) if mask is None else mask
        self.padding = (kept[:, None, :, None] * kept[:, None, None, :]) == 0
        return super().forward(x)

    def hide(self, scores):
        return super().hide(scores).masked_fill(self.padding, -1e9)


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


class ContextOrInput(OptionalMemory):
    def forward(self, x, context=None):
        x = x + self.own(x)
        context = x if context is None else context
        return x + self.drop(self.cross(x, context, context)[0])


class DifferenceOfTwo(nn.Module):
    """Differential attention: one softmax less a part of another, heads in pairs."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads // 2
        self.q, self.k, self.v, self.o = (nn.Linear(d_model, d_model) for _ in range(4))
        self.share = nn.Parameter(torch.tensor(0.7))

    def forward(self, x):
        batch, tokens, d_model = x.shape
        q, k = (
            layer(x).view(batch, tokens, 2 * self.num_heads, self.head_dim).transpose(1, 2)
            for layer in (self.q, self.k)
        )
        v = self.v(x).view(batch, tokens, self.num_heads, 2 * self.head_dim).transpose(1, 2)
        scores = q @ k.mT / math.sqrt(self.head_dim)
        weights = scores.masked_fill(causal_mask(tokens), -torch.inf).softmax(-1)
        weights = weights.view(batch, self.num_heads, 2, tokens, tokens)
        weights = weights[:, :, 0] - self.share * weights[:, :, 1]
        return self.o((weights @ v).transpose(1, 2).reshape(batch, tokens, d_model))


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


VARIANTS = {
    kind.__name__: kind
    for kind in list(globals().values())
    if isinstance(kind, type) and issubclass(kind, nn.Module) and kind.__module__ == __name__
}
CORRECT = {
    **{name: (lambda d, h, kind=kind: kind(d, h)) for name, kind in VARIANTS.items()},
    **{f"base {name}": make(name) for name in (
        "separate", "fused", "heads", "einsum", "transposed", "kernel", "given", "padded"
    )},
    "wrapped two-way": lambda d, h: Wrapped(d, h, causal=False),
    "wrapped tokens first": lambda d, h: Wrapped(d, h, batch_first=False),
    "wrapped fused": lambda d, h: Wrapped(d, h, need_weights=False),
    "spare dropout": lambda d, h: SpareDropout(d, h, 0.1),
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
}  # fmt: skip
