"""`check_attention` against further ways to go wrong, or right, that are met in the wild."""

import math
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from correct import DecoderBlock, DecoderBlockTwoMasks, Looking, Plain, ValuesApart
from torch import nn

from attention_course import causal_mask, check_attention, rotary


def codes(report):
    return [finding.code for finding in report.findings]


# --- wrong ----------------------------------------------------------------------------------


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
        (OneHeadManyTimes, "heads-alike", "4 heads of 4"),
        (RepeatedInTheWrongOrder, "mask-argument", "the mask of another sentence"),
        (FirstSentenceOnly, "mask-argument", "in sentences 1 and 2"),
        (RepeatedPairs, "mask-argument", "(batch, 1, tokens, tokens)"),
        (AtTheQueries, "mask-argument", "the mask stands at the queries"),
        (HiddenWhereBothHide, "mask-argument", "the causal mask both hide it"),
        (NearFill, "mask-argument", "become -1e-09, too close to the others"),
        (ZeroedWeights, "mask-argument", "sets weights to zero after the softmax"),
        (ZeroedValues, "mask-argument", "sets the values of hidden tokens to zero"),
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
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_one_fault_is_one_finding_with_its_cause(module, code, said):
    causal = True if module is FarPastHidden else None
    report = check_attention(module, causal=causal)
    assert codes(report) == [code], report
    assert said in report.findings[0].message


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
        (DroppedScores, "dropout-on-scores"),
        (TurnedAndScaled(24, 4, None), None),
    ],
    ids=lambda case: getattr(case, "__name__", None),
)
def test_what_is_odd_and_no_fault_is_a_note(module, note):
    report = check_attention(module)
    assert report.ok, report
    assert note is None or note in [found.code for found in report.notes]


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
