"""From scores to weights: planted faults, and what looks like them."""

import math

import torch
import torch.nn.functional as F
from bases import Plain, TwoWay, einsum, fused, heads, separate, transposed
from registry import correct, fault
from torch import nn

from attention_course import causal_mask

fault("softmax-axis")(separate.but("dim=-1", "dim=-2"))
fault("softmax-axis", "Columns sum to one", "dim=-1")(fused.but("dim=-1", "dim=2"))
fault("softmax-axis")(heads.but("wei, dim=-1", "wei, dim=1"))
fault("softmax-axis")(einsum.but("sim.softmax(dim=-1)", "sim.softmax(dim=1)"))
fault("softmax-axis")(transposed.but("dim=-1", "dim=0").but('float("-inf")', "-1e9"))
fault("softmax-twice")(fused.but("self.attn_dropout(att)", "self.attn_dropout(att.softmax(-1))"))
fault("softmax-twice")(einsum.but("sim.softmax(dim=-1)", "sim.softmax(dim=-1).softmax(dim=-1)"))
fault("not-normalised")(
    separate.but(" / self.head_dim**0.5, dim=-1)", ", dim=-1) / self.head_dim**0.5")
)
fault("not-normalised")(
    fused.but(
        '        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))\n', ""
    ).but("dropout(att)", "dropout(att * self.bias[:, :, :T, :T])")
)
fault("not-normalised")(heads.but("F.softmax(wei, dim=-1)", "wei").but('float("-inf")', "0"))
fault("not-normalised")(
    einsum.but("        sim = sim.masked_fill(future, -torch.finfo(sim.dtype).max)\n", "").but(
        "drop(attn)", "drop(attn.masked_fill(future, 0.0))"
    )
)


@fault("softmax-axis", "queries and keys together")
class DividedByTheWholeSum(Plain):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        return scores.exp() / scores.exp().sum()


@fault("softmax-axis", "The softmax runs along the last axis")
class TurnedWeights(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        weights = self.soften(self.hide(self.scores(q, k)))
        return self.o(self.merge(torch.einsum("bhij,bhid->bhjd", weights, v)))


@fault("softmax-twice", "Take it once")
class SoftenedTwice(Plain):
    def soften(self, scores):
        return scores.softmax(-1).softmax(-1)


class Unsoftened(Plain):
    def hide(self, scores):
        return scores


@fault("not-normalised", "negative, down to", "log_softmax gives")
class Logarithms(Unsoftened):
    def soften(self, scores):
        return scores.log_softmax(-1)


@fault("not-normalised", "negative, down to", "no softmax")
class SharesOfTheSum(Unsoftened):
    def soften(self, scores):
        return scores / scores.sum(-1, keepdim=True)


@fault("not-normalised", "negative, down to", "no softmax")
class UnitLength(Unsoftened):
    def soften(self, scores):
        return F.normalize(scores, dim=-1)


@fault("not-normalised", "divided by other sums than those of its rows", "keepdim=True")
class DividedByOtherSums(TwoWay):
    """The sums of the rows lie along the columns."""

    def soften(self, scores):
        powers = (scores - scores.amax()).exp()
        return powers / powers.sum(-1).unsqueeze(-2)


@fault("not-normalised", "changed after the softmax")
class FilledAfter(Plain):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        return scores.softmax(-1).masked_fill(causal_mask(scores.shape[-1]), -1e9)


@fault("not-normalised", "set to zero after the softmax")
class ZeroedAfterByHand(Plain):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        shares = scores.exp()
        shares = shares / shares.sum(dim=-1, keepdim=True)
        return shares * torch.ones(scores.shape[-2:]).tril()


@correct("softmax-axis")
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


@correct("softmax-axis", "one-for-all")
class FewerKeys(Plain):
    """Linformer: learned sums over the tokens, of the first rows of a table."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.sums = nn.Parameter(torch.randn(33, 7))

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        k, v = (self.sums[: x.shape[1]].T @ part for part in (k, v))
        return self.o(self.merge(self.scores(q, k).softmax(-1) @ v))


@fault("scale", "not divided at all")
class FewerKeysUndivided(FewerKeys):
    def scores(self, q, k):
        return q @ k.mT


@correct("softmax-twice")
class AttentionTwice(Plain):
    def forward(self, x):
        return super().forward(super().forward(x))


@correct("not-normalised", "softmax-twice")
class Differential(Plain):
    """The difference of two softmaxes: rows sum below one."""

    def soften(self, scores):
        return scores.softmax(-1) - 0.3 * (scores / 2).softmax(-1)


@correct("not-normalised", "softmax-twice")
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


@correct("not-normalised")
class RectifiedKernel(Plain):
    def scores(self, q, k):
        return F.relu(q) @ F.relu(k).mT

    def hide(self, scores):
        return scores.tril()

    def soften(self, scores):
        return scores / scores.sum(-1, keepdim=True).clamp_min(1e-12)


@correct("not-normalised")
class SoftmaxByHand(Plain):
    def soften(self, scores):
        raised = torch.exp(scores - scores.amax(-1, keepdim=True))
        return raised / raised.sum(-1, keepdim=True)


@correct("not-normalised")
class Renormalised(Plain):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        weights = scores.softmax(-1) * (~causal_mask(scores.shape[-1]))
        return weights / weights.sum(-1, keepdim=True)


@correct("not-normalised")
class Sink(Plain):
    """One more place in each softmax, for no token: rows of weights sum below one."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.sinks = nn.Parameter(torch.zeros(num_heads))

    def soften(self, scores):
        sink = self.sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)
        return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


@correct("not-normalised")
class OneMore(Plain):
    """exp(s) / (1 + Σ exp(s)): rows sum below one."""

    def soften(self, scores):
        raised = scores.exp()
        return raised / (1 + raised.sum(-1, keepdim=True))


@correct("not-normalised", "softmax-axis")
class ByBlocks(Plain):
    """The softmax summed up block by block, as the fast kernels do."""

    def start(self, q):
        """The largest score so far, the sum of what is raised, and that of weighted values."""
        top = torch.full((*q.shape[:3], 1), -torch.inf)
        return top, torch.zeros_like(top), torch.zeros_like(q)

    def shrunk(self, total, out, shrink):
        return total * shrink, out * shrink

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        tokens = x.shape[1]
        top, total, out = self.start(q)
        for start in range(0, tokens, 2):
            block = slice(start, start + 2)
            scores = q @ k[:, :, block].mT / math.sqrt(self.head_dim)
            scores = scores.masked_fill(causal_mask(tokens)[:, block], -torch.inf)
            new = torch.maximum(top, scores.amax(-1, keepdim=True))
            raised, shrink = torch.exp(scores - new), torch.exp(top - new)
            total, out = self.shrunk(total, out, shrink)
            total, out = total + raised.sum(-1, keepdim=True), out + raised @ v[:, :, block]
            top = new
        return self.o(self.merge(out / total))


@correct("not-normalised")
class TokenByToken(Plain):
    """One query at a time, in Python loops."""

    axis = -1

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        rows = []
        for t in range(x.shape[1]):
            scores = (q[:, :, t : t + 1] * k[:, :, : t + 1]).sum(-1) / self.head_dim**0.5
            weights = torch.softmax(scores, dim=self.axis).unsqueeze(-1)
            rows.append((weights * v[:, :, : t + 1]).sum(2))
        return self.o(self.merge(torch.stack(rows, dim=2)))


# --- no queries meet keys ---------------------------------------------------------------------


class LearnedQueries(nn.Module):
    """A score of each token for each head; all tokens get the sum of the head's values."""

    axis = 1

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads, self.score = num_heads, nn.Linear(d_model, num_heads)
        self.value, self.out = nn.Linear(d_model, d_model), nn.Linear(d_model, d_model)

    def weigh(self, scores):
        return scores.softmax(self.axis)

    def meet(self, weights, v):
        return torch.einsum("bth,bthd->bhd", weights, v)

    def forward(self, x):
        v = self.value(x).unflatten(-1, (self.heads, -1))
        return x + self.out(self.meet(self.weigh(self.score(x)), v).flatten(1)[:, None])


@fault("softmax-axis", "over the heads, not over the 5", "Use dim=1")
class LearnedQueriesOverHeads(LearnedQueries):
    axis = -1


@fault("softmax-axis", "over the batch", "One sentence sees another", "Use dim=2")
class LearnedQueriesOverTheBatch(LearnedQueries):
    axis = 0

    def weigh(self, scores):
        return super().weigh(scores.mT)

    def meet(self, weights, v):
        return (weights.unsqueeze(2) @ v.transpose(1, 2)).squeeze(2)


@fault("softmax-axis", "over one number, not over the 5")
class OneQueryAlone(LearnedQueries):
    """A softmax over the axis of an only query."""

    def weigh(self, scores):
        return scores.unsqueeze(1).softmax(1)

    def meet(self, weights, v):
        return (weights.squeeze(1)[..., None] * v).sum(dim=1, keepdim=False)


@fault("softmax-axis", "over the heads")
class TokenByTokenOverHeads(TokenByToken):
    axis = 1


@fault("softmax-axis", "over the queries, not over the 5", "Use dim=3")
class AdditiveHeadsOverQueries(Plain):
    """tanh(q + k) · v for each head, the future hidden; each column sums to one."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.vector = nn.Parameter(torch.randn(self.head_dim))

    def scores(self, q, k):
        return torch.tanh(q[..., None, :] + k[..., None, :, :]) @ self.vector

    def soften(self, scores):
        return scores.softmax(-2)


# --- no line makes the weights ----------------------------------------------------------------

_BY_DERIVATIVE = "By how much the context moves with each value, the rows of weights sum to"


@fault("not-normalised", _BY_DERIVATIVE)
class TotalNeverRescaled(ByBlocks):
    def shrunk(self, total, out, shrink):
        return total, out * shrink


@fault("not-normalised", _BY_DERIVATIVE)
class ContextNeverRescaled(ByBlocks):
    def shrunk(self, total, out, shrink):
        return total * shrink, out


class Linear(TwoWay):
    """Positive features of queries and keys; keys meet values first."""

    def features(self, q):
        return F.elu(q) + 1

    def total(self, q, k):
        return q @ k.sum(-2, keepdim=True).mT

    def context(self, q, k, v):
        return q @ (k.mT @ v) / self.total(q, k)

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.o(self.merge(self.context(self.features(q), self.features(k), v)))


@fault("not-normalised", _BY_DERIVATIVE)
class LinearByItsOwnKey(Linear):
    def total(self, q, k):
        return (q * k).sum(-1, keepdim=True)


@fault("not-normalised", "sum to 5, 5, 5, 5 and 5")
class LinearByTheMean(Linear):
    def total(self, q, k):
        return q @ k.mean(-2, keepdim=True).mT


@fault("not-normalised", _BY_DERIVATIVE)
class LinearByTheRoot(Linear):
    """Three operands, the last of them what it is divided by."""

    def context(self, q, k, v):
        sums = torch.einsum("bhkd,bhke->bhde", k, v)
        return torch.einsum("bhqd,bhde,bhq->bhqe", q, sums, 1 / self.total(q, k)[..., 0].sqrt())


@fault("not-normalised", "the raw scores meet the values")
class ThreeOperands(TwoWay):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        context = torch.einsum("bhqd, bhkd, bhke -> bhqe", q / self.head_dim**0.5, k, v)
        return self.o(self.merge(context))


@fault("not-normalised", "the raw scores meet the values")
class ThreeOperandsBehindDots(TwoWay):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.o(self.merge(torch.einsum("...qd,...kd,...ke->...qe", q, k * 6**-0.5, v)))
