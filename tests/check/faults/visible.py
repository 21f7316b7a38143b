"""Who sees whom: planted faults, and what looks like them."""

import torch
import torch.nn.functional as F
from bases import Plain, TwoWay, einsum, fused, heads, kernel, separate, transposed
from registry import correct, fault
from torch import nn

from attention_course import causal_mask

fault("future-visible", "Position 2 sees position 4", "masked_fill_")(
    separate.but("masked_fill_", "masked_fill")
)
fault("future-visible")(fused.but("        att = att.masked_fill", "        att.masked_fill"))
fault("future-visible", "-1e-09", "too close")(heads.but('float("-inf")', "-1e-9"))
fault("future-visible")(
    einsum.but(".masked_fill(future, -torch.finfo(sim.dtype).max)", " * (~future)")
)
fault("future-visible")(transposed.but("        s = s + torch.full", "        u = s + torch.full"))
fault("future-visible")(kernel.but("is_causal=True", "attn_mask=torch.ones(tokens, tokens).tril()"))
fault("mask-off-by-one", "Position 0 sees position 1")(separate.but(".triu(1))", ".triu(2))"))
fault("mask-off-by-one")(fused.but("ones(8, 8))", "ones(8, 8), 1)"))
fault("mask-off-by-one")(einsum.but(".triu(1)", ".triu(0)"))
fault("past-hidden")(separate.but(".triu(1))", ".tril(-1))"))
fault("past-hidden")(heads.but("torch.tril", "torch.triu"))
fault("past-hidden")(
    kernel.but("is_causal=True", "attn_mask=torch.ones(tokens, tokens).triu(1).bool()")
)

# --- wrong ----------------------------------------------------------------------------------


@fault("future-visible", "holds 0 above the diagonal and 1 below is added")
class AddedMask(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.register_buffer("seen", torch.ones(9, 9).tril())

    def hide(self, scores):
        tokens = scores.shape[-1]
        return scores + self.seen[:tokens, :tokens]


@fault("future-visible", "hides other pairs", causal=True)
class FarPastHidden(Plain):
    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        return scores.masked_fill(places[:, None] - places > 2, -torch.inf)


@fault("future-visible", "the weights hide the future")
class CentredTokens(Plain):
    def forward(self, x):
        return super().forward(x - x.mean(dim=1, keepdim=True))


@fault("future-visible", "such as a shift")
class ShiftedTokens(Plain):
    def forward(self, x):
        return super().forward(F.pad(x[:, 1:], (0, 0, 0, 1)))


@fault("future-visible", "in 3 of 12 heads")
class OneHeadMasked(Plain):
    def hide(self, scores):
        hidden = torch.zeros(scores.shape, dtype=torch.bool)
        hidden[:, 0] = causal_mask(scores.shape[-1])
        return scores.masked_fill(hidden, -torch.inf)


@fault("future-visible", "in 3 of 12 heads")
class ByNumberOfTheHead(Plain):
    def hide(self, scores):
        keys, heads = torch.arange(scores.shape[-1]), torch.arange(self.num_heads)
        return scores.masked_fill(keys > heads[:, None, None], -torch.inf)


@fault("future-visible", "in sentence 0 of 3 and not in the others")
class FirstSentenceMasked(Plain):
    def hide(self, scores):
        hidden = torch.zeros(scores.shape, dtype=torch.bool)
        hidden[0] = causal_mask(scores.shape[-1])
        return scores.masked_fill(hidden, -torch.inf)


@fault("future-visible", "holds -8 above the diagonal")
class ShallowMask(Plain):
    def hide(self, scores):
        return scores + torch.full(scores.shape[-2:], -8.0).triu(1)


@fault("future-visible", "In evaluation mode position 0 sees position 1")
@fault("future-hidden", "In training mode position 0 does not see position 1", causal=False)
class HiddenInTraining(Plain):
    def hide(self, scores):
        return super().hide(scores) if self.training else scores


@fault("future-visible", "In evaluation mode position 0 sees")
class BuiltAndHiddenInTraining(Plain):
    def hide(self, scores):
        hidden = torch.ones(scores.shape[-2:]).triu(1) == 1
        return scores.masked_fill(hidden, -torch.inf) if self.training else scores


@fault("future-visible", "In evaluation mode position 0 sees")
class KernelCausalInTraining(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(q, k, v, is_causal=self.training)
        return self.o(self.merge(context))


@fault("future-visible", "training mode")
class HiddenInEvaluation(Plain):
    def hide(self, scores):
        return scores if self.training else super().hide(scores)


@fault("future-visible", "tril makes scores 0, which does not hide")
class TriangleThrownAway(Plain):
    def hide(self, scores):
        scores.tril()
        return scores


@fault("future-visible", "scores = torch.where(...)")
class WhereThrownAway(Plain):
    def hide(self, scores):
        torch.where(causal_mask(scores.shape[-1]), -torch.inf, scores)
        return scores


@fault("future-visible", "the result of masked_fill is thrown away")
class RowsThrownAway(Plain):
    def hide(self, scores):
        for i, row in enumerate(scores.unbind(2)):
            row.masked_fill(torch.arange(scores.shape[-1]) > i, -torch.inf)
        return scores


@fault("future-visible", "never reaches the softmax")
class BuiltOfTheScores(Plain):
    def hide(self, scores):
        torch.ones_like(scores).triu(1)
        return scores


@fault("future-visible", "hides nothing: it is False for all pairs")
class BeginsAtTheEnd(Plain):
    def hide(self, scores):
        tokens = scores.shape[-1]
        return scores.masked_fill(torch.ones(tokens, tokens).triu(tokens) == 1, -torch.inf)


@fault("future-visible", "hides nothing: it is 0 for all pairs")
class TriangleOfZeros(Plain):
    def hide(self, scores):
        return scores + torch.zeros(scores.shape[-2:]).triu(1)


@fault("future-visible", "True, which means keep, for all pairs")
class KernelKeepsAll(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        keep = torch.ones(x.shape[1], x.shape[1]).triu(x.shape[1]) == 0
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, keep)))


@fault("mask-off-by-one", "No token but token 0 attends to itself")
class FirstRowGivenBack(Plain):
    def hide(self, scores):
        hidden = torch.ones(scores.shape[-2:]).triu() == 1
        hidden[0, 0] = False
        return scores.masked_fill(hidden, -torch.inf)


@fault("past-hidden", "one row of a mask is applied to all rows")
class OneRow(Plain):
    def hide(self, scores):
        return scores.masked_fill(causal_mask(scores.shape[-1])[0], -torch.inf)


class Entrywise(Plain):
    def forward(self, x):
        return self.o((self.q(x) * self.k(x)).softmax(-1) * self.v(x))


fault("past-hidden", "queries @ keys.mT")(Entrywise(24, 4))


@fault("past-hidden", "Each token sees itself alone")
class ItselfAlone(Plain):
    """All others are hidden before the softmax."""

    def hide(self, scores):
        others = ~torch.eye(scores.shape[-1], dtype=torch.bool)
        return scores.masked_fill(others, -torch.inf)

    def soften(self, scores):
        return super().soften(scores).contiguous().clone()


# --- right: the future is hidden ------------------------------------------------------------

correct("future-visible")(Plain)
correct("future-visible", causal=True)(Plain)
fault("future-hidden", "a mask is at work", causal=False)(Plain)
fault("future-hidden", "a mask is at work", causal=False)(separate)
fault("future-hidden", "a mask is at work", causal=False)(kernel)


@correct("future-visible")
class Additive(Plain):
    def hide(self, scores):
        return scores + torch.full(scores.shape[-2:], -1e4).triu(1)


@correct("future-visible")
class FiniteMinimum(Plain):
    def hide(self, scores):
        keep = torch.ones(scores.shape[-2:]).tril()
        return torch.where(keep == 1, scores, torch.finfo(scores.dtype).min)


@correct("future-visible")
class Alibi(Plain):
    def hide(self, scores):
        tokens = scores.shape[-1]
        places = torch.arange(tokens)
        slopes = 2.0 ** -torch.arange(1, self.num_heads + 1)
        bias = (places - places[:, None]) * slopes[:, None, None]
        return super().hide(scores + bias)


@correct("future-visible")
class RelativeBias(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.table = nn.Embedding(31, num_heads)

    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        return super().hide(scores + self.table(places - places[:, None] + 15).permute(2, 0, 1))


@correct("past-hidden")
class Windowed(Plain):
    """Each token sees itself and the two before it."""

    def hide(self, scores):
        far = torch.ones(scores.shape[-2:], dtype=torch.bool).tril(-3)
        return super().hide(scores.masked_fill(far, -torch.inf))


# --- right: the future is seen --------------------------------------------------------------


correct("future-visible", note="two-way")(TwoWay)


@correct("future-visible", "past-hidden", note="two-way")
class EachWay(Plain):
    """Half of the heads see the past, the others the future; each token sees itself in all."""

    def hide(self, scores):
        hidden = causal_mask(scores.shape[-1])
        half = torch.arange(self.num_heads)[:, None, None] < self.num_heads // 2
        return scores.masked_fill(torch.where(half, hidden, hidden.mT), -torch.inf)


@correct("mask-off-by-one", note="others-alone")
class ItselfIfAlone(Plain):
    """A token's own score is lowered, so that it attends to itself where there is no other."""

    def scores(self, q, k):
        return super().scores(q, k) - 5e4 * torch.eye(q.shape[-2])


correct("future-hidden", causal=False)(TwoWay)
fault("future-visible", causal=True)(TwoWay)


@correct("mask-off-by-one", "past-hidden", "future-hidden")
class WindowBothWays(Plain):
    """Each token sees its neighbours on both sides."""

    def hide(self, scores):
        pairs = torch.ones(scores.shape[-2:], dtype=torch.bool)
        return scores.masked_fill(pairs.triu(2) | pairs.tril(-2), -torch.inf)


@correct("mask-off-by-one", note="two-way")
class WindowBeyondTheEnd(Plain):
    """A window both ways that is wider than a short input."""

    def hide(self, scores):
        ones = torch.ones(scores.shape[-2:])
        return scores.masked_fill(ones.tril(9) * ones.triu(-9) == 0, -torch.inf)


@correct("future-visible")
class DistancesOfTriangles(Plain):
    def hide(self, scores):
        far = torch.ones(scores.shape[-2:]).triu(1).cumsum(1).triu(1)
        return scores - 0.3 * (far + far.mT)


@correct("future-visible")
class DistancesOfTwoTriangles(Plain):
    def hide(self, scores):
        later = torch.ones(scores.shape[-2:]).triu(1).cumsum(1).triu(1)
        before = torch.ones(scores.shape[-2:]).tril(-1).cumsum(0).tril(-1)
        return scores - 0.3 * later - 0.3 * before


@correct("future-visible")
class FarIsLessInTheKernel(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        places = torch.arange(x.shape[1])
        bias = -0.3 * (places[:, None] - places).abs()
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, bias)))


@correct("past-hidden")
class EmptyTokensHidden(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        empty = (x.abs().sum(-1) == 0)[:, None, None, :]
        weights = self.soften(self.scores(q, k).masked_fill(empty, -torch.inf))
        return self.o(self.merge(weights @ v))


@correct("past-hidden")
class EmptyTokensHiddenInTheKernel(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        filled = (x.abs().sum(-1) != 0)[:, None, None, :].expand(-1, 1, x.shape[1], -1)
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, filled)))


@correct("mask-off-by-one", note="two-way")
class OthersAlone(Plain):
    """Two-way, and no token attends to itself, as in vision with few images."""

    def hide(self, scores):
        return scores.masked_fill(torch.eye(scores.shape[-1]) == 1, -1e9)


@correct("mask-off-by-one", "past-hidden")
class OthersNearby(Plain):
    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        far = (places[:, None] - places).abs()
        return scores.masked_fill((far == 0) | (far > 2), -torch.inf)


@correct("past-hidden", "future-hidden")
class EverySecond(Plain):
    def hide(self, scores):
        tokens = scores.shape[-1]
        hidden = (torch.arange(tokens) % 2 == 1) & (torch.eye(tokens) == 0)
        return scores.masked_fill(hidden, -torch.inf)


@correct("mask-off-by-one", "future-visible", note="prefix")
class Prefix(Plain):
    def hide(self, scores):
        hidden = causal_mask(scores.shape[-1])
        hidden[:, :3] = False
        return scores.masked_fill(hidden, -torch.inf)


@correct("past-hidden")
class TopThree(Plain):
    def hide(self, scores):
        least = scores.topk(min(3, scores.shape[-1])).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf)


@correct("future-visible")
class SymmetricWeight(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.mix = nn.Parameter(torch.randn(d_model, d_model))

    def hide(self, scores):
        return scores

    def forward(self, x):
        return super().forward(x @ (self.mix.triu() + self.mix.triu(1).mT))


@correct("future-visible")
class Asked(Plain):
    """The mask is built always and applied where forward is asked for it."""

    def forward(self, x, causal=False):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        scores, hidden = self.scores(q, k), torch.ones(x.shape[1], x.shape[1]).triu(1) == 1
        if causal:
            scores = scores.masked_fill(hidden, -torch.inf)
        return self.o(self.merge(self.soften(scores) @ v))


class AskedInVain(Asked):
    def forward(self, x, causal=False):
        if causal:
            torch.ones(x.shape[1], x.shape[1]).tril()
        return super().forward(x)


@correct("future-visible")
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


@correct("future-visible")
class NoDecoder(AskedWithABuffer):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.is_decoder = False

    def forward(self, x):
        return super().forward(x, self.is_decoder)


@correct("future-visible")
class BlockThatDoesNotAsk(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.one, self.two = Asked(d_model, num_heads), Asked(d_model, num_heads)

    def forward(self, x):
        x = x + self.one(x)
        return x + self.two(x, False)


@fault("future-visible", "hides nothing: it is True for all pairs")
class WhereKeepsAll(Plain):
    def hide(self, scores):
        keep = torch.ones(scores.shape[-2:]).triu(scores.shape[-1]) == 0
        return torch.where(keep, scores, -torch.inf)


@fault("future-visible", "hides nothing: it is 1 for all pairs")
class TimesOnes(Plain):
    def hide(self, scores):
        below = torch.ones(scores.shape[-2:]).tril()
        return scores * (below + torch.ones(scores.shape[-2:]).triu(1))


@fault("future-visible", "holds -1 above the diagonal and 0 below is added")
class MinusOnes(Plain):
    def hide(self, scores):
        return scores - torch.ones(scores.shape[-2:]).triu(1)


@fault("future-visible", "the result of add is thrown away")
class SumThrownAway(Plain):
    def hide(self, scores):
        hidden = torch.full(scores.shape[-2:], -torch.inf).triu(1)
        scores + hidden
        return scores


@correct("future-visible", note="window")
@fault("future-visible", "Position 3 sees position 4 (4 future pairs are visible", causal=True)
class NearOnes(Plain):
    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        return scores.masked_fill((places[:, None] - places).abs() > 1, -torch.inf)
