"""`check_attention` against further ways to go wrong, or right, that are met in the wild."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from correct import (
    Asked,
    DecoderBlock,
    DecoderBlockTwoMasks,
    Looking,
    NoDecoder,
    OneLayerForBoth,
    OthersAlone,
    PairsOfThreeInputs,
    Plain,
    Prefix,
    TwoMasksRequired,
    ValuesApart,
    WindowBeyondTheEnd,
)
from torch import nn

from attention_check import check_attention
from attention_course import CausalHead, causal_mask, rotary


def codes(report):
    return [finding.code for finding in report.findings]


# --- wrong ----------------------------------------------------------------------------------


class Unsoftened(Plain):
    def hide(self, scores):
        return scores


class Logarithms(Unsoftened):
    def soften(self, scores):
        return scores.log_softmax(-1)


class SharesOfTheSum(Unsoftened):
    def soften(self, scores):
        return scores / scores.sum(-1, keepdim=True)


class UnitLength(Unsoftened):
    def soften(self, scores):
        return F.normalize(scores, dim=-1)


@pytest.mark.parametrize(
    ("module", "said"),
    [(Logarithms, "log_softmax gives"), (SharesOfTheSum, "no softmax"), (UnitLength, "no softmax")],
)
def test_negative_weights_are_no_weights(module, said):
    [finding] = check_attention(module).findings
    assert finding.code == "not-normalised"
    assert f"negative, down to {finding.evidence.min():.2f}:" in finding.message
    assert said in finding.message


class AddedMask(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.register_buffer("seen", torch.ones(9, 9).tril())

    def hide(self, scores):
        tokens = scores.shape[-1]
        return scores + self.seen[:tokens, :tokens]


class FilledAfter(Plain):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        return scores.softmax(-1).masked_fill(causal_mask(scores.shape[-1]), -1e9)


class FarPastHidden(Plain):
    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        return scores.masked_fill(places[:, None] - places > 2, -torch.inf)


class TurnedWeights(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        weights = self.soften(self.hide(self.scores(q, k)))
        return self.o(self.merge(torch.einsum("bhij,bhid->bhjd", weights, v)))


class ViewForTranspose(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))

    def forward(self, x):
        keys = self.k(x).reshape(len(x), x.shape[2], x.shape[1])
        return (self.q(x) @ keys / x.shape[2] ** 0.5).softmax(-1) @ self.v(x)


class DividedTwice(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(q / math.sqrt(self.head_dim), k, v)
        return self.o(self.merge(context))


class MadeInForward(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        context = self.merge(self.soften(self.scores(q, k)) @ v)
        self.last = nn.Linear(x.shape[-1], x.shape[-1])
        return self.last(self.o(context))


class SoftenedTwice(Plain):
    def soften(self, scores):
        return scores.softmax(-1).softmax(-1)


class Given(Plain):
    """forward(query, key, value) for three inputs."""

    def hide(self, scores):
        return scores

    def forward(self, query, key, value):
        q, k, v = self.split(self.q(query)), self.split(self.k(key)), self.split(self.v(value))
        return self.o(self.merge(self.soften(self.scores(q, k)) @ v))


class KeysOfTheQueries(Given):
    def forward(self, query, key, value):
        return super().forward(query, query, value)


class ValuesOfTheQueries(Given):
    def forward(self, value, key, query):
        return super().forward(query, key, query)


class RolesSwapped(Given):
    def scores(self, q, k):
        return super().scores(k, q)


class Padded(Plain):
    """forward(x, key_padding_mask), True = hidden; a variant makes it fit the scores."""

    def forward(self, x, key_padding_mask=None):
        self.given = key_padding_mask
        return super().forward(x)

    def hide(self, scores):
        return scores if self.given is None else scores.masked_fill(self.fit(scores), -1e9)


class RepeatedInTheWrongOrder(Padded):
    def fit(self, scores):
        return self.given.repeat(self.num_heads, 1).view(*scores.shape[:2], 1, -1)


class FirstSentenceOnly(Padded):
    def fit(self, scores):
        return self.given[0]


class AtTheQueries(Padded):
    def fit(self, scores):
        return self.given[:, None, :, None]


class HiddenWhereBothHide(Padded):
    def hide(self, scores):
        hidden = causal_mask(scores.shape[-1])
        if self.given is not None:
            hidden = hidden & self.given[:, None, None, :]
        return scores.masked_fill(hidden, -torch.inf)


class NearFill(Padded):
    def hide(self, scores):
        return scores if self.given is None else scores.masked_fill(self.fit(scores), -1e-9)

    def fit(self, scores):
        return self.given[:, None, None, :]


class ZeroedWeights(NearFill):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        weights = super().soften(scores)
        return weights if self.given is None else weights.masked_fill(self.fit(scores), 0)


class ZeroedValues(Padded):
    def hide(self, scores):
        return scores

    def forward(self, x, key_padding_mask=None):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        if key_padding_mask is not None:
            v = v.masked_fill(key_padding_mask[:, None, :, None], 0)
        return self.o(self.merge(self.soften(self.scores(q, k)) @ v))


class SecondMaskIgnored(TwoMasksRequired):
    def hide(self, scores):
        return scores + self.added


class SecondMaskAtTheQueries(TwoMasksRequired):
    def hide(self, scores):
        return (scores + self.added).masked_fill(self.padding.mT, -1e9)


class FirstMaskFillsZero(TwoMasksRequired):
    def hide(self, scores):
        return scores.masked_fill(self.added != 0, 0).masked_fill(self.padding, -1e9)


class KeepsInTwoMasks(TwoMasksRequired):
    """Both 1 = keep."""

    def hide(self, scores):
        return scores.masked_fill(self.added == 0, -1e9)

    def forward(self, x, attn_mask, padding_mask):
        self.kept = padding_mask[:, None, None]
        return super().forward(x, attn_mask, padding_mask)


class SecondFillsNearZero(KeepsInTwoMasks):
    def hide(self, scores):
        return super().hide(scores).masked_fill(self.kept == 0, 1e-9)


class SecondAfterTheSoftmax(KeepsInTwoMasks):
    def soften(self, scores):
        return super().soften(scores) * self.kept


class MaskRequired(Plain):
    """forward(x, mask): what 0 = hidden does is left to a variant."""

    def forward(self, x, mask):
        self.hidden = mask == 0
        return super().forward(x)

    def hide(self, scores):
        return scores.masked_fill(self.hidden, -1e9)


class RequiredAfterTheSoftmax(MaskRequired):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        return super().soften(scores).masked_fill(self.hidden, 0)


class RequiredAndWrongAxis(MaskRequired):
    def soften(self, scores):
        return scores.softmax(-2)


class NumbersRequiredAndScale(Plain):
    def forward(self, x, mask):
        self.added = (1.0 - mask) * -1e9
        return super().forward(x)

    def hide(self, scores):
        return 3 * scores + self.added


class FilledWithMore(MaskRequired):
    def hide(self, scores):
        return scores.masked_fill(self.hidden, 1e9)


class AddedWithMore(NumbersRequiredAndScale):
    def hide(self, scores):
        return scores - self.added


class PaddingFilledWithMore(Padded):
    def hide(self, scores):
        return scores if self.given is None else scores.masked_fill(self.given[:, None, None], 1e9)


class ThreeInputsFillNearZero(PairsOfThreeInputs):
    def mask(self, scores, mask):
        return scores.masked_fill(mask == 0, 1e-9)


class ThreeInputsMaskTurned(PairsOfThreeInputs):
    def mask(self, scores, mask):
        return scores.masked_fill(mask.mT == 0, -1e9)


class TargetMaskForgotten(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.inner = nn.Transformer(d_model, num_heads, 1, 1, 40, batch_first=True)

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        return self.inner(src, tgt, src_mask)


class LookAheadIgnored(Plain):
    def forward(self, x, look_ahead_mask=None):
        return super().forward(x)


class MaskTurned(Looking):
    def forward(self, x, mask=None):
        return super().forward(x, x, mask if mask is None else mask.mT)


class RepeatedPairs(Looking):
    def forward(self, x, mask=None):
        if mask is not None:
            heads = mask.repeat(self.num_heads, 1, 1)
            mask = heads.view(len(mask), self.num_heads, *mask.shape[1:])
        return super().forward(x, x, mask)


class ContextIgnored(Looking):
    def forward(self, x, context):
        return super().forward(x, x)


class MemoryIgnored(DecoderBlock):
    def forward(self, x, memory):
        x = x + self.own(x, x)
        return x + self.cross(x, x)


class ContextTwiceAsWide(Looking):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.k, self.v = nn.Linear(2 * d_model, d_model), nn.Linear(2 * d_model, d_model)


class InputIgnored(Looking):
    def forward(self, x, encoder_output):
        return super().forward(encoder_output, encoder_output)


class QueriesOfTheContext(Looking):
    def forward(self, x, context):
        return super().forward(context, x)


class KeysOfTheInput(ValuesApart):
    def forward(self, x, context):
        return super().forward(x, context)


class ValuesOfTheInput(Plain):
    def forward(self, x, encoder_output):
        q, k = self.split(self.q(x)), self.split(self.k(encoder_output))
        return self.o(self.merge(self.soften(self.scores(q, k)) @ self.split(self.v(x))))


class MasksSwapped(DecoderBlockTwoMasks):
    def forward(self, x, memory, src_mask=None, tgt_mask=None):
        return super().forward(x, memory, tgt_mask, src_mask)


class MaskOfTheTargetTwice(DecoderBlockTwoMasks):
    def forward(self, x, encoder_output, tgt_mask=None):
        return super().forward(x, encoder_output, tgt_mask, tgt_mask)


class DecoderOneOff(DecoderBlock):
    def forward(self, x, memory):
        x = x + self.own(x, x, torch.ones(x.shape[1], x.shape[1]).tril(1))
        return x + self.cross(x, memory)


class Head(nn.Module):
    def __init__(self, d_model, width):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(d_model, width) for _ in range(3))

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True)


class OneHeadManyTimes(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.heads = nn.ModuleList([Head(d_model, d_model // num_heads)] * num_heads)
        self.out = nn.Linear(d_model, d_model)

    def forward(self, x):
        return self.out(torch.cat([head(x) for head in self.heads], dim=-1))


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


class ZeroedAfterByHand(Plain):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        shares = scores.exp()
        shares = shares / shares.sum(dim=-1, keepdim=True)
        return shares * torch.ones(scores.shape[-2:]).tril()


class DividedByTheWholeSum(Plain):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        return scores.exp() / scores.exp().sum()


class CentredTokens(Plain):
    def forward(self, x):
        return super().forward(x - x.mean(dim=1, keepdim=True))


class OneHeadMasked(Plain):
    def hide(self, scores):
        hidden = torch.zeros(scores.shape, dtype=torch.bool)
        hidden[:, 0] = causal_mask(scores.shape[-1])
        return scores.masked_fill(hidden, -torch.inf)


class ShallowMask(Plain):
    def hide(self, scores):
        return scores + torch.full(scores.shape[-2:], -8.0).triu(1)


class HiddenInTraining(Plain):
    def hide(self, scores):
        return super().hide(scores) if self.training else scores


class BuiltAndHiddenInTraining(Plain):
    def hide(self, scores):
        hidden = torch.ones(scores.shape[-2:]).triu(1) == 1
        return scores.masked_fill(hidden, -torch.inf) if self.training else scores


class KernelCausalInTraining(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        context = F.scaled_dot_product_attention(q, k, v, is_causal=self.training)
        return self.o(self.merge(context))


class TriangleThrownAway(Plain):
    def hide(self, scores):
        scores.tril()
        return scores


class WhereThrownAway(Plain):
    def hide(self, scores):
        torch.where(causal_mask(scores.shape[-1]), -torch.inf, scores)
        return scores


class RowsThrownAway(Plain):
    def hide(self, scores):
        for i, row in enumerate(scores.unbind(2)):
            row.masked_fill(torch.arange(scores.shape[-1]) > i, -torch.inf)
        return scores


class BuiltOfTheScores(Plain):
    def hide(self, scores):
        torch.ones_like(scores).triu(1)
        return scores


class BeginsAtTheEnd(Plain):
    def hide(self, scores):
        tokens = scores.shape[-1]
        return scores.masked_fill(torch.ones(tokens, tokens).triu(tokens) == 1, -torch.inf)


class TriangleOfZeros(Plain):
    def hide(self, scores):
        return scores + torch.zeros(scores.shape[-2:]).triu(1)


class KernelKeepsAll(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        keep = torch.ones(x.shape[1], x.shape[1]).triu(x.shape[1]) == 0
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, keep)))


class ByNumberOfTheHead(Plain):
    def hide(self, scores):
        keys, heads = torch.arange(scores.shape[-1]), torch.arange(self.num_heads)
        return scores.masked_fill(keys > heads[:, None, None], -torch.inf)


class AllHidden(Plain):
    def hide(self, scores):
        return scores.masked_fill(torch.zeros(scores.shape[-2:]).tril() == 0, -torch.inf)


class FilledWithInfinity(Plain):
    def hide(self, scores):
        return scores.masked_fill(causal_mask(scores.shape[-1]), torch.inf)


class InfinityAfter(Plain):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        return scores.softmax(-1).masked_fill(causal_mask(scores.shape[-1]), -torch.inf)


class OneRow(Plain):
    def hide(self, scores):
        return scores.masked_fill(causal_mask(scores.shape[-1])[0], -torch.inf)


class FirstSentenceMasked(Plain):
    def hide(self, scores):
        hidden = torch.zeros(scores.shape, dtype=torch.bool)
        hidden[0] = causal_mask(scores.shape[-1])
        return scores.masked_fill(hidden, -torch.inf)


class FirstRowGivenBack(Plain):
    def hide(self, scores):
        hidden = torch.ones(scores.shape[-2:]).triu() == 1
        hidden[0, 0] = False
        return scores.masked_fill(hidden, -torch.inf)


class ShiftedTokens(Plain):
    def forward(self, x):
        return super().forward(F.pad(x[:, 1:], (0, 0, 0, 1)))


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


class OverlappingSlices(Sliced):
    def cut(self, i):
        return (slice(i, i + self.head_dim),) * 3


class OneSliceOfQueries(Sliced):
    def cut(self, i):
        return slice(self.head_dim), *super().cut(i)[1:]


class OneSlice(Sliced):
    def cut(self, i):
        return (slice(self.head_dim),) * 3


class HeadLeftZero(Plain):
    def merge(self, x):
        return super().merge(torch.cat([x[:, :-1], torch.zeros_like(x[:, -1:])], dim=1))


class FusedHeadLeftZero(HeadLeftZero):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        del self.q, self.k, self.v
        self.qkv = nn.Parameter(torch.randn(d_model, 3 * d_model))

    def forward(self, x):
        q, k, v = (self.split(part) for part in (x @ self.qkv).chunk(3, dim=-1))
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


class WeightsOfOneHead(Plain):
    def soften(self, scores):
        return scores[:, :1].softmax(-1)


class CutShort(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.o = nn.Linear(num_heads * self.head_dim, d_model)

    def split(self, x):
        return super().split(x[..., : self.num_heads * self.head_dim])


class OneGroupOfValues(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.v = nn.Linear(d_model, d_model // 2)

    def forward(self, x):
        q, k = self.split(self.q(x)), self.split(self.k(x))
        v = self.v(x).view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)[:, :1]
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


class Dropped(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(0.1)

    def soften(self, scores):
        return self.drop(scores.softmax(-1))

    def forward(self, x):
        super().forward(x)
        return x


class TimesZero(Dropped):
    def forward(self, x):
        return x + 0.0 * Plain.forward(self, x)


class MaskIsTrained(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.seen = nn.Parameter(torch.ones(17, 17).tril())

    def hide(self, scores):
        tokens = scores.shape[-1]
        return scores.masked_fill(self.seen[:tokens, :tokens] == 0, -torch.inf)


class AddedMaskIsTrained(MaskIsTrained):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.seen = nn.Parameter(torch.full((17, 17), -1e9).triu(1))

    def hide(self, scores):
        return scores + self.seen[: scores.shape[-1], : scores.shape[-1]]


class FirstMaskKept(Plain):
    hidden = None

    def hide(self, scores):
        if self.hidden is None:
            self.hidden = causal_mask(scores.shape[-1])
        return scores.masked_fill(self.hidden, -torch.inf)


class OneQueryForAll(Plain):
    def scores(self, q, k):
        return super().scores(q[:, :, -1:].expand_as(q), k)


class OneValueForAll(Plain):
    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        v = v[:, :, :1].expand_as(v)
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


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


class SecondDropped(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.second = Plain(d_model, num_heads)

    def forward(self, x):
        x = x + super().forward(x)
        self.second(x)
        return x


class ReturnInTheLoop(LastHeadOnly):
    def forward(self, x):
        for head in self.heads:
            return self.o(head(x))


class TwoDetached(Plain):
    def scores(self, q, k):
        return super().scores(q.detach(), k.detach())


@pytest.mark.parametrize(
    ("module", "code", "said"),
    [
        (ZeroedAfterByHand, "not-normalised", "set to zero after the softmax"),
        (DividedByTheWholeSum, "softmax-axis", "queries and keys together"),
        (CentredTokens, "future-visible", "the weights hide the future"),
        (OneHeadMasked, "future-visible", "in 3 of 12 heads"),
        (ShallowMask, "future-visible", "holds -8 above the diagonal"),
        (AddedMask, "future-visible", "holds 0 above the diagonal and 1 below is added"),
        (FilledAfter, "not-normalised", "changed after the softmax"),
        (FarPastHidden, "future-visible", "hides other pairs"),
        (TurnedWeights, "softmax-axis", "The softmax runs along the last axis"),
        (ViewForTranspose(24), "split-by-view", "Use .mT"),
        (DividedTwice, "scale", "leave out your factor"),
        (MadeInForward, "not-repeatable", "`self.last = nn.Linear("),
        (SoftenedTwice, "softmax-twice", "Take it once"),
        (KeysOfTheQueries, "wrong-pair", "Changing key alone changes nothing"),
        (ValuesOfTheQueries, "wrong-values", "Changing value alone changes nothing"),
        (RolesSwapped, "wrong-pair", "query stands where"),
        (OneHeadManyTimes, "heads-alike", "one and the same module"),
        (OneSlice, "heads-alike", "Columns 6 to 23 of q, k and v have no effect"),
        (LateIndex, "heads-alike", "heads.0, heads.1 and heads.2 have no effect"),
        (LastHeadOnly, "no-effect", "heads.0, heads.1 and heads.2 have no effect"),
        (OverlappingSlices, "no-effect", "Columns 9 to 23 of q, k and v have"),
        (OneSliceOfQueries, "no-effect", "Columns 6 to 23 of q have"),
        (HeadLeftZero, "no-effect", "Columns 18 to 23 of q, k and v have"),
        (FusedHeadLeftZero, "no-effect", "Columns 18 to 23, 42 to 47 and 66 to 71 of qkv have"),
        (WeightsOfOneHead, "no-effect", "Columns 6 to 23 of q and k have"),
        (CutShort(23, 4), "no-effect", "23 columns are not a whole number of heads of 5"),
        (OneGroupOfValues, "no-effect", "Columns 6 to 11 of v have"),
        (Dropped, "attention-unused", "What o gives is thrown away"),
        (TimesZero, "attention-unused", "changing q, k and v changes nothing"),
        (MaskIsTrained, "not-a-buffer", "is a trainable nn.Parameter"),
        (AddedMaskIsTrained, "not-a-buffer", "self.register_buffer('seen', mask"),
        (OneHeadOfEach, "no-effect", "Heads 1 to 3 of q, k and v have"),
        (SecondDropped, "no-effect", "second has no effect on the output"),
        (ReturnInTheLoop, "unused-layer", "heads.1, heads.2 and heads.3 are never called"),
        (FirstMaskKept, "length", "what the first call leaves in self.hidden"),
        (OneQueryForAll, "one-for-all", "All rows of the queries are the same"),
        (OneValueForAll, "one-for-all", "All rows of the values are the same"),
        (TwoDetached, "detached", "q.weight and k.weight, but no gradient reaches them"),
        (OneHeadManyTimes, "heads-alike", "4 heads of 4"),
        (RepeatedInTheWrongOrder, "mask-argument", "the mask of another sentence"),
        (FirstSentenceOnly, "mask-argument", "in sentences 1 and 2"),
        (RepeatedPairs, "mask-argument", "(batch, 1, tokens, tokens)"),
        (AtTheQueries, "mask-argument", "the mask stands at the queries"),
        (HiddenWhereBothHide, "mask-argument", "the causal mask both hide it"),
        (NearFill, "mask-argument", "become -1e-09, too close to the others"),
        (ZeroedWeights, "mask-argument", "sets weights to zero after the softmax"),
        (ZeroedValues, "mask-argument", "sets the values of hidden tokens to zero"),
        (SecondMaskIgnored, "mask-argument", "takes padding_mask, but no mask changes"),
        (SecondMaskAtTheQueries, "mask-argument", "With padding_mask only the rows of the padded"),
        (FirstMaskFillsZero, "mask-argument", "The scores that attn_mask hides become 0"),
        (SecondFillsNearZero, "mask-argument", "The scores that padding_mask hides become 1e-09"),
        (SecondAfterTheSoftmax, "mask-argument", "padding_mask sets weights to zero after"),
        (RequiredAfterTheSoftmax, "mask-argument", "mask sets weights to zero after the softmax"),
        (RequiredAndWrongAxis, "softmax-axis", "Columns sum to one"),
        (NumbersRequiredAndScale, "scale", "3 times as large"),
        (FilledWithMore, "mask-argument", "that mask fills become 1e+09"),
        (AddedWithMore, "mask-argument", "that mask fills become 1e+09"),
        (PaddingFilledWithMore, "mask-argument", "that key_padding_mask fills become 1e+09"),
        (ThreeInputsFillNearZero, "mask-argument", "become 1e-09"),
        (ThreeInputsMaskTurned, "mask-argument", "leave out the transpose"),
        (TargetMaskForgotten, "mask-argument", "takes tgt_mask, but no mask changes the output"),
        (LookAheadIgnored, "mask-argument", "takes look_ahead_mask, but no mask changes"),
        (MaskTurned, "mask-argument", "leave out the transpose"),
        (ContextIgnored, "wrong-pair", "Changing context alone changes nothing"),
        (MemoryIgnored, "wrong-pair", "Changing memory alone changes nothing"),
        (ContextTwiceAsWide, "crash", "mat1 and mat2"),
        (InputIgnored, "wrong-pair", "Changing x alone changes nothing"),
        (QueriesOfTheContext, "wrong-pair", "The queries are made of context"),
        (KeysOfTheInput, "wrong-pair", "The keys are made of x"),
        (ValuesOfTheInput, "wrong-values", "The values are made of x"),
        (MasksSwapped, "mask-argument", "src_mask hides tokens of x, and not those of memory"),
        (MaskOfTheTargetTwice, "mask-argument", "as well as those of x"),
        (DecoderOneOff, "mask-off-by-one", "Position 0 sees position 1"),
        (TurnedAndScaled(24, 4, 24**-0.5), "scale", "√24"),
        (HiddenInTraining, "future-visible", "In evaluation mode position 0 sees position 1"),
        (BuiltAndHiddenInTraining, "future-visible", "In evaluation mode position 0 sees"),
        (KernelCausalInTraining, "future-visible", "In evaluation mode position 0 sees"),
        (TriangleThrownAway, "future-visible", "tril makes scores 0, which does not hide"),
        (WhereThrownAway, "future-visible", "scores = torch.where(...)"),
        (RowsThrownAway, "future-visible", "the result of masked_fill is thrown away"),
        (BuiltOfTheScores, "future-visible", "never reaches the softmax"),
        (BeginsAtTheEnd, "future-visible", "hides nothing: it is False for all pairs"),
        (TriangleOfZeros, "future-visible", "hides nothing: it is 0 for all pairs"),
        (KernelKeepsAll, "future-visible", "True, which means keep, for all pairs"),
        (ByNumberOfTheHead, "future-visible", "in 3 of 12 heads"),
        (AllHidden, "nan", "The mask hides every pair"),
        (FilledWithInfinity, "nan", "Some scores are +inf"),
        (InfinityAfter, "nan", "infinity after the softmax"),
        (OneRow, "past-hidden", "one row of a mask is applied to all rows"),
        (FirstSentenceMasked, "future-visible", "in sentence 0 of 3 and not in the others"),
        (FirstRowGivenBack, "mask-off-by-one", "No token but token 0 attends to itself"),
        (ShiftedTokens, "future-visible", "such as a shift"),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_one_fault_is_one_finding_with_its_cause(module, code, said):
    causal = True if module is FarPastHidden else None
    report = check_attention(module, causal=causal)
    assert codes(report) == [code], report
    assert said in report.findings[0].message


class AskedInVain(Asked):
    def forward(self, x, causal=False):
        if causal:
            torch.ones(x.shape[1], x.shape[1]).tril()
        return super().forward(x)


@pytest.mark.parametrize(("module", "name"), [(Asked, "causal"), (NoDecoder, "is_decoder")])
def test_a_mask_that_must_be_asked_for(module, name):
    [note] = check_attention(module).notes
    assert f"Two-way, as {name} is False; where it is True, the future is hidden" in note.message
    [finding] = check_attention(module, causal=True).findings
    assert finding.code == "future-visible"
    assert f"only when it is asked for: {name} is False" in finding.message


def test_a_mask_that_is_asked_for_in_vain():
    [note] = check_attention(AskedInVain).notes
    assert "but where it is True, position 3 sees position 4 as well" in note.message
    [finding] = check_attention(AskedInVain, causal=True).findings
    assert "never reaches the softmax" in finding.message


def test_a_mask_in_training_mode_where_two_way_is_meant():
    [finding] = check_attention(HiddenInTraining, causal=False).findings
    assert finding.code == "future-hidden"
    assert "In training mode position 0 does not see position 1" in finding.message


def test_what_a_padding_mask_should_hide_is_marked():
    assert check_attention(NearFill)._repr_html_().count("✗ 1<") == 4  # one column of five
    assert check_attention(MaskTurned)._repr_html_().count("✗ 1<") == 10  # the future


# --- right, or not to be judged -------------------------------------------------------------


@dataclass
class Result:
    context: torch.Tensor
    weights: torch.Tensor


class InADataclass(Plain):
    def forward(self, x):
        return Result(super().forward(x), x)


class RefusesTraining(Plain):
    def forward(self, x):
        assert not self.training, "for use only"
        return super().forward(x)


class GrowingCache(Plain):
    kept = None

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        if self.kept is not None:
            k, v = (torch.cat(pair, dim=2) for pair in zip(self.kept, (k, v), strict=True))
        self.kept = k.detach(), v.detach()
        return self.o(self.merge(self.soften(self.scores(q, k)) @ v))


class OneProjection(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        del self.k, self.v

    def forward(self, x):
        q = self.split(self.q(x))
        return self.o(self.merge(self.soften(self.scores(q, q)) @ q))


class DroppedScores(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.drop = nn.Dropout(0.1)

    def scores(self, q, k):
        return self.drop(super().scores(q, k))


class FixedGrid(Plain):
    """Learned places for 16 patches of an image, no more and no fewer."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.grid = nn.Parameter(torch.zeros(16, d_model))

    def forward(self, x):
        return super().forward(x + self.grid)

    def hide(self, scores):
        return scores


class TopThree(Plain):
    def hide(self, scores):
        least = scores.topk(min(3, scores.shape[-1])).values[..., -1:]
        return scores.masked_fill(scores < least, -torch.inf)


class NoLayers(nn.Module):
    def forward(self, q, k, v):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


@pytest.mark.parametrize(
    ("module", "note"),
    [
        (InADataclass, None),
        (Given, "two-way"),
        (FixedGrid(24, 4), "two-way"),
        (TopThree, None),
        (RefusesTraining, "training"),
        (GrowingCache, "cache"),
        (OneProjection, "one-projection"),
        (OneLayerForBoth, "one-projection"),
        (DroppedScores, "dropout-on-scores"),
        (TurnedAndScaled(24, 4, None), None),
        (OthersAlone, "two-way"),
        (WindowBeyondTheEnd, "two-way"),
        (Prefix, "prefix"),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_what_is_odd_and_no_fault_is_a_note(module, note):
    report = check_attention(module)
    assert report.ok, report
    assert note is None or note in [found.code for found in report.notes]


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


class AsComplex(Halves):
    def places(self, x):
        angles, pairs = self.angles(x), torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
        return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(-2)


class KeysHeldStill(Halves):
    def scores(self, q, k):
        return super().scores(self.places(q), k)

    def forward(self, x):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


class AnglesOfOtherPairs(Halves):
    def both(self, angles):
        return angles.repeat_interleave(2, dim=-1)


class NoMinus(Halves):
    def turn(self, x):
        return torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)


class AnglesByHead(Halves):
    def places(self, x):
        return super().places(x.transpose(1, 2)).transpose(1, 2)


class ComplexByHead(AsComplex):
    def places(self, x):
        return super().places(x.transpose(1, 2)).transpose(1, 2)


class ValuesToo(Halves):
    def forward(self, x):
        q, k, v = (self.places(self.split(layer(x))) for layer in (self.q, self.k, self.v))
        return self.o(self.merge(self.soften(self.hide(self.scores(q, k))) @ v))


class KeptPlaces(Plain):
    """A mask of 0 and 1 and its complement turn nothing."""

    def places(self, x):
        kept = (torch.arange(x.shape[-2]) % 2)[:, None].expand(x.shape[-2:]).float()
        return x * kept + 0.5 * x * (1 - kept)


class LearnedPlacesToo(Halves):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.table = nn.Parameter(torch.randn(33, d_model))

    def forward(self, x):
        return super().forward(x + self.table[: x.shape[1]])


class PlacesInRows(Halves):
    """Rows of three tokens: the first pair turns by the row, the others by the column."""

    def angles(self, x):
        places = torch.arange(x.shape[-2])
        row, column = places // 3, places % 3
        return torch.stack([row, 0.5 * column, 0.1 * column], dim=-1)


class FactorByPlace(Halves):
    def scores(self, q, k):
        return super().scores(q * torch.arange(2, 2 + q.shape[-2]).log()[:, None], k)


class CoarseTables(Halves):
    def both(self, angles):
        return super().both(angles).bfloat16()


@pytest.mark.parametrize(
    "module",
    [
        Halves,
        AsComplex,
        KeptPlaces,
        LearnedPlacesToo,
        PlacesInRows,
        FactorByPlace,
        CoarseTables,
    ],
)
def test_right_positions_are_left_alone(module):
    report = check_attention(module)
    assert report.ok, report
    assert report.notes == []


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (KeysHeldStill, "scores at the same distance differ"),
        (AnglesOfOtherPairs, "scores at the same distance differ"),
        (NoMinus, "scores at the same distance differ"),
        (AnglesByHead, "turned by the same angle"),
        (ComplexByHead, "turned by the same angle"),
    ],
)
def test_wrong_rotary_positions_are_found(module, said):
    [finding] = check_attention(module).findings
    assert finding.code == "rotary"
    assert said in finding.message
    distances = [finding.evidence.diagonal(d) for d in range(-4, 5)]
    assert any((d - d[0]).abs().max() > 0.01 for d in distances) == ("differ" in said)


class Grid(Halves):
    """Places in a grid of 4 by 4: one pair turns by the row, the others by the column."""

    def angles(self, x):
        row, column = torch.arange(16).div(4, rounding_mode="floor"), torch.arange(16) % 4
        return torch.stack([row, column, 0.1 * column], dim=-1)


def test_places_in_a_grid_have_two_distances():
    assert codes(check_attention(Grid)) == ["length"]


def test_turned_values_are_a_note():
    report = check_attention(ValuesToo)
    assert report.ok, report
    assert [note.code for note in report.notes] == ["rotary"]


class SoftByHand(Plain):
    """The softmax written out, dropout on the weights."""

    def soften(self, scores):
        weights = scores.sub(scores.amax(-1, keepdim=True)).exp()
        return F.dropout(weights / weights.sum(-1, keepdim=True), 0.1, self.training)


class EmptyRowsAreZero(Plain):
    def soften(self, scores):
        return F.dropout(scores.softmax(-1).nan_to_num(), 0.1, self.training)


@pytest.mark.parametrize("module", [SoftByHand, EmptyRowsAreZero])
def test_dropout_after_the_softmax_is_not_told_to_be_on_the_scores(module):
    report = check_attention(module)
    assert report.ok, report
    assert report.notes == []


class OtherNames(Plain):
    """A method called `to`, a default that is no size, names as a textbook has them."""

    def __init__(self, num_hiddens, num_heads, window=(2, 3)):
        super().__init__(num_hiddens, num_heads)
        self.window = window[0] * window[1]

    def to(self, context):
        return context.flatten(2)

    def merge(self, context):
        return self.to(context.transpose(1, 2))


def test_a_class_of_other_names_is_made_and_checked():
    assert check_attention(OtherNames).ok


class WantsTables(Plain):
    def forward(self, x, tables):
        return super().forward(x) * tables["cos"]


class ContextIsNotOptional(Plain):
    def forward(self, x, context=None):
        return super().forward(x) + context.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("module", "name"), [(WantsTables, "tables"), (ContextIsNotOptional, "context")]
)
def test_a_module_that_wants_what_the_check_cannot_give_is_not_blamed(module, name):
    with pytest.raises(ValueError, match=f"wants for {name}: wrap it"):
        check_attention(module)


def test_a_mask_inside_an_encoder_is_not_judged_by_what_the_decoder_sees():
    report = check_attention(nn.Transformer(24, 4, 1, 1, 40, batch_first=True))
    assert not report.findings, report
    [memory, sentence] = report.cannot_tell
    assert memory.startswith("mask-argument of memory_mask and memory_key_padding_mask not judged")
    assert sentence.startswith(
        "mask-argument of src_mask not judged, because it hides pairs in an encoder"
    )
    understood = [note.message.partition(",")[0] for note in report.notes]
    names = "tgt_mask", "src_key_padding_mask", "tgt_key_padding_mask"
    assert understood == [f"{name} is understood as Boolean" for name in names]


def test_a_mask_of_numbers_is_told_by_them():
    [note] = check_attention(PairsOfThreeInputs).notes
    assert note.message == "mask is understood as 1 = keep, 0 = hidden, shape (tokens, tokens)."


class MaskOfTheMemoryIgnored(Looking):
    def forward(self, x, memory, memory_mask):
        return super().forward(x, memory)


def test_a_mask_that_is_not_judged_is_told():
    report = check_attention(MaskOfTheMemoryIgnored)
    assert not report.findings
    [sentence] = report.cannot_tell
    assert sentence.startswith("mask-argument of memory_mask not judged")


class FourAxesOfTheMask(MaskRequired):
    def forward(self, x, mask):
        if mask.dim() != 4 or mask.shape[:2] != (1, 1):
            raise ValueError
        return super().forward(x, mask)


def test_a_mask_of_an_unknown_shape_is_asked_for():
    with pytest.raises(ValueError, match="needs mask, and no mask of a shape that the check"):
        check_attention(FourAxesOfTheMask)


def test_keys_of_another_width_are_asked_for_as_a_context():
    own = {"embed_dim": 24, "num_heads": 4, "batch_first": True}
    for widths in ({"kdim": 20, "vdim": 14}, {"vdim": 20}):
        with pytest.raises(ValueError, match=r"whose forward\(x, context\) calls it"):
            check_attention(nn.MultiheadAttention(**own, **widths))


class OneTokenMore(Plain):
    def forward(self, x):
        return super().forward(torch.cat([x[:, :1], x], dim=1))


def test_a_module_that_adds_a_token_cannot_be_checked():
    with pytest.raises(ValueError, match="6 tokens for 5"):
        check_attention(OneTokenMore)


def test_a_module_without_layers_is_judged_at_a_width_that_is_said():
    assert check_attention(NoLayers(), d_model=24).ok


def test_inference_mode_and_autocast_of_the_caller_do_not_matter():
    module = Plain(24, 4)
    with torch.inference_mode():
        assert check_attention(module).ok
        assert check_attention(Plain).ok
        assert torch.is_inference_mode_enabled()
    with torch.autocast("cpu", torch.bfloat16):
        assert check_attention(module).ok


class Leaves(Plain):
    def forward(self, x):
        raise SystemExit(3)


def test_a_module_that_ends_the_program_is_a_finding():
    report = check_attention(Leaves)
    assert codes(report) == ["crash"]
    assert "sys.exit()" in report.findings[0].message


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"num_heads": "4"}, "num_heads"), ({"d_model": 0}, "d_model"), ({"causal": "yes"}, "causal")],
)
def test_arguments_of_another_kind_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        check_attention(Plain, **wrong)


@pytest.mark.parametrize(
    ("thing", "sizes", "said"),
    [
        (Plain, {"d_model": 25, "num_heads": 4}, "4 heads cannot share d_model = 25"),
        (Plain(24, 4), {"d_model": 25}, "its layers take 24"),
    ],
)
def test_sizes_that_do_not_fit_are_not_blamed_on_the_module(thing, sizes, said):
    with pytest.raises(ValueError, match=said):
        check_attention(thing, **sizes)


class Gain(Plain):
    """A gain, one number, on the output: no other call reads what it gives."""

    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.gain = nn.Parameter(torch.tensor(1.0))

    def forward(self, x):
        return self.gain * super().forward(x)


class GainForgotten(Gain):
    def forward(self, x):
        return Plain.forward(self, x)


def test_a_gain_of_one_number_is_judged_as_every_weight():
    report = check_attention(Gain)
    assert report.headline == "nothing wrong found"
    report = check_attention(GainForgotten)
    assert codes(report) == ["unused-layer"]
    assert report.findings[0].message.startswith("gain is never called")


class OneHeadDetached(FusedHeadLeftZero):
    """The queries of one head of four: 6 of the 72 columns of a fused weight do not learn."""

    def merge(self, x):
        return Plain.merge(self, x)

    def scores(self, q, k):
        return super().scores(torch.cat([q[:, :1].detach(), q[:, 1:]], dim=1), k)


def test_a_small_part_of_a_weight_that_is_detached_is_named():
    report = check_attention(OneHeadDetached)
    assert codes(report) == ["detached"]
    assert "depends on columns 0 to 5 of qkv, but no gradient" in report.findings[0].message


class SplitByRavel(Plain):
    def split(self, x):
        return x.ravel().view(len(x), self.num_heads, x.shape[1], self.head_dim)


class MergeByRavel(Plain):
    def merge(self, x):
        return x.ravel().view(len(x), x.shape[2], -1)


class Ravelled(Plain):
    def split(self, x):
        return x.ravel().view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def merge(self, x):
        return x.transpose(1, 2).ravel().view(len(x), x.shape[2], -1)


def test_numbers_are_followed_through_any_layout():
    assert codes(check_attention(SplitByRavel)) == ["split-by-view"]
    assert codes(check_attention(MergeByRavel)) == ["merge-by-view"]
    assert check_attention(Ravelled).headline == "nothing wrong found"


class WhereKeepsAll(Plain):
    def hide(self, scores):
        keep = torch.ones(scores.shape[-2:]).triu(scores.shape[-1]) == 0
        return torch.where(keep, scores, -torch.inf)


class TimesOnes(Plain):
    def hide(self, scores):
        below = torch.ones(scores.shape[-2:]).tril()
        return scores * (below + torch.ones(scores.shape[-2:]).triu(1))


class MinusOnes(Plain):
    def hide(self, scores):
        return scores - torch.ones(scores.shape[-2:]).triu(1)


class SumThrownAway(Plain):
    def hide(self, scores):
        hidden = torch.full(scores.shape[-2:], -torch.inf).triu(1)
        scores + hidden
        return scores


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (WhereKeepsAll, "hides nothing: it is True for all pairs"),
        (TimesOnes, "hides nothing: it is 1 for all pairs"),
        (MinusOnes, "holds -1 above the diagonal and 0 below is added"),
        (SumThrownAway, "the result of add is thrown away"),
    ],
)
def test_a_mask_is_known_by_what_it_does_to_the_scores(module, said):
    [finding] = check_attention(module).findings
    assert finding.code == "future-visible"
    assert said in finding.message


class NearOnes(Plain):
    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        return scores.masked_fill((places[:, None] - places).abs() > 1, -torch.inf)


def test_the_pair_that_is_named_is_seen():
    [finding] = check_attention(NearOnes, causal=True).findings
    assert "Position 3 sees position 4 (4 future pairs are visible" in finding.message
    [note] = check_attention(NearOnes).notes
    assert note.code == "window"
