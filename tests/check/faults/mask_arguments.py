"""Masks that forward takes: planted faults, and what looks like them."""

import torch
import torch.nn.functional as F
from bases import Plain, TwoWay, given, padded
from registry import correct, fault
from torch import nn

from attention_course import causal_mask

from .roles import DecoderBlock, Looking

fault("mask-argument")(given.but("scores = scores.masked_fill", "scores.masked_fill"))
fault("mask-argument")(given.but("scores.masked_fill(mask == 0, -1e9)", "scores * mask"))
fault("mask-argument")(padded.but("hidden | padding_mask", "padding_mask"))
fault("mask-argument")(padded.but("hidden = hidden | padding_mask[:, None, None, :]", "pass"))


# --- a mask that may be given ---------------------------------------------------------------


class Padded(Plain):
    """forward(x, key_padding_mask), True = hidden; a variant makes it fit the scores."""

    def forward(self, x, key_padding_mask=None):
        self.given = key_padding_mask
        return super().forward(x)

    def hide(self, scores):
        return scores if self.given is None else scores.masked_fill(self.fit(scores), -1e9)


@fault("mask-argument", "the mask of another sentence")
class RepeatedInTheWrongOrder(Padded):
    def fit(self, scores):
        return self.given.repeat(self.num_heads, 1).view(*scores.shape[:2], 1, -1)


@fault("mask-argument", "in sentences 1 and 2")
class FirstSentenceOnly(Padded):
    def fit(self, scores):
        return self.given[0]


@fault("mask-argument", "the mask stands at the queries")
class AtTheQueries(Padded):
    def fit(self, scores):
        return self.given[:, None, :, None]


@fault("mask-argument", "the key_padding_mask of the call before hid", "anew in each call")
class FirstMaskAgain(Padded):
    kept = None

    def fit(self, scores):
        self.kept = self.given if self.kept is None else self.kept
        return self.kept[:, None, None, :]


class LeftPadded(Padded):
    """Causal, with -inf: a row of padding on the left has no key."""

    def hide(self, scores):
        hidden = causal_mask(scores.shape[-1])
        if self.given is not None:
            hidden = hidden | self.given[:, None, None, :]
        return scores.masked_fill(hidden, -torch.inf)


correct("nan", note="hidden-row")(LeftPadded)


@fault("nan", "rows of tokens after it", "Fill such rows of the scores with 0")
class LeftPaddedTwice(nn.Module):
    """The second layer spreads the NaN of the first."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.layers = nn.ModuleList(LeftPadded(d_model, num_heads) for _ in range(2))

    def forward(self, x, key_padding_mask=None):
        for layer in self.layers:
            x = x + layer(x, key_padding_mask)
        return x


@fault("mask-argument", "the row of that token is NaN", "Hide the keys alone")
class WithItsQueries(Padded):
    """Keys and queries of padding are hidden with -inf, and its rows multiplied by 0 at the end."""

    def hide(self, scores):
        if self.given is None:
            return scores
        either = self.given[:, None, None, :] | self.given[:, None, :, None]
        return scores.masked_fill(either, -torch.inf)

    def forward(self, x, key_padding_mask=None):
        out = super().forward(x, key_padding_mask)
        return out if key_padding_mask is None else out * ~key_padding_mask[..., None]


@fault("mask-argument", "the causal mask both hide it")
class HiddenWhereBothHide(Padded):
    def hide(self, scores):
        hidden = causal_mask(scores.shape[-1])
        if self.given is not None:
            hidden = hidden & self.given[:, None, None, :]
        return scores.masked_fill(hidden, -torch.inf)


@fault("mask-argument", "become -1e-09, too close to the others")
class NearFill(Padded):
    def hide(self, scores):
        return scores if self.given is None else scores.masked_fill(self.fit(scores), -1e-9)

    def fit(self, scores):
        return self.given[:, None, None, :]


@fault("mask-argument", "sets weights to zero after the softmax")
class ZeroedWeights(NearFill):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        weights = super().soften(scores)
        return weights if self.given is None else weights.masked_fill(self.fit(scores), 0)


@fault("mask-argument", "sets the values of hidden tokens to zero")
class ZeroedValues(Padded):
    def hide(self, scores):
        return scores

    def forward(self, x, key_padding_mask=None):
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        if key_padding_mask is not None:
            v = v.masked_fill(key_padding_mask[:, None, :, None], 0)
        return self.o(self.merge(self.soften(self.scores(q, k)) @ v))


@fault("mask-argument", "that key_padding_mask fills become 1e+09")
class PaddingFilledWithMore(Padded):
    def hide(self, scores):
        return scores if self.given is None else scores.masked_fill(self.given[:, None, None], 1e9)


@fault("mask-argument", "takes look_ahead_mask, but no mask changes")
class LookAheadIgnored(Plain):
    def forward(self, x, look_ahead_mask=None):
        return super().forward(x)


@fault("mask-argument", "leave out the transpose")
class MaskTurned(Looking):
    def forward(self, x, mask=None):
        return super().forward(x, x, mask if mask is None else mask.mT)


@fault("mask-argument", "(batch, 1, tokens, tokens)")
class RepeatedPairs(Looking):
    def forward(self, x, mask=None):
        if mask is not None:
            heads = mask.repeat(self.num_heads, 1, 1)
            mask = heads.view(len(mask), self.num_heads, *mask.shape[1:])
        return super().forward(x, x, mask)


@fault("mask-argument", "takes tgt_mask, but no mask changes the output")
class TargetMaskForgotten(nn.Module):
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.inner = nn.Transformer(d_model, num_heads, 1, 1, 40, batch_first=True)

    def forward(self, src, tgt, src_mask=None, tgt_mask=None):
        return self.inner(src, tgt, src_mask)


@correct("mask-argument")
class ZeroedPadding(TwoWay):
    """Padded keys are hidden, and what comes out for a padded token is set to 0."""

    def forward(self, x, mask=None):
        self.given = None if mask is None else ~mask[:, None, None, :]
        output = super().forward(x)
        return output if mask is None else output * mask[..., None]

    def hide(self, scores):
        scores = super().hide(scores)
        return scores if self.given is None else scores.masked_fill(self.given, -1e9)


@correct("mask-argument")
class ZeroedPaddingCausal(ZeroedPadding):
    def hide(self, scores):
        return super().hide(scores).masked_fill(causal_mask(scores.shape[-1]), -1e9)


@correct("mask-argument")
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


@correct("mask-argument")
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


@correct("mask-argument")
class PairsOfPadding(Plain):
    """A padding mask of pairs: what comes out for a padded token is nobody's concern."""

    def forward(self, x, mask=None):
        kept = torch.ones(x.shape[:2]) if mask is None else mask
        self.padding = (kept[:, None, :, None] * kept[:, None, None, :]) == 0
        return super().forward(x)

    def hide(self, scores):
        return super().hide(scores).masked_fill(self.padding, -1e9)


# --- a mask that must be given --------------------------------------------------------------


class MaskRequired(Plain):
    """forward(x, mask): what 0 = hidden does is left to a variant."""

    def forward(self, x, mask):
        self.hidden = mask == 0
        return super().forward(x)

    def hide(self, scores):
        return scores.masked_fill(self.hidden, -1e9)


@fault("mask-argument", "mask sets weights to zero after the softmax")
class RequiredAfterTheSoftmax(MaskRequired):
    def hide(self, scores):
        return scores

    def soften(self, scores):
        return super().soften(scores).masked_fill(self.hidden, 0)


@fault("softmax-axis", "Columns sum to one")
class RequiredAndWrongAxis(MaskRequired):
    def soften(self, scores):
        return scores.softmax(-2)


@fault("scale", "3 times as large")
class NumbersRequiredAndScale(Plain):
    def forward(self, x, mask):
        self.added = (1.0 - mask) * -1e9
        return super().forward(x)

    def hide(self, scores):
        return 3 * scores + self.added


@fault("mask-argument", "that mask fills become 1e+09")
class FilledWithMore(MaskRequired):
    def hide(self, scores):
        return scores.masked_fill(self.hidden, 1e9)


@fault("mask-argument", "that mask fills become 1e+09")
class AddedWithMore(NumbersRequiredAndScale):
    def hide(self, scores):
        return scores - self.added


@correct("mask-argument")
class PaddingIsRequired(Plain):
    """forward(x, mask) with a mask (batch, tokens), 1 = keep."""

    def forward(self, x, mask):
        self.padding = mask[:, None, None, :] == 0
        return super().forward(x)

    def hide(self, scores):
        return scores.masked_fill(self.padding, -1e9)


@correct("mask-argument")
class WindowWithPadding(PaddingIsRequired):
    def hide(self, scores):
        places = torch.arange(scores.shape[-1])
        far = (places[:, None] - places).abs() > 1
        return super().hide(scores).masked_fill(far, -1e9)


@correct("mask-argument")
class PaddedRowsAreZero(PaddingIsRequired):
    def forward(self, x, mask):
        return super().forward(x, mask) * mask.unsqueeze(-1)


@correct("mask-argument")
class PairsOfThreeInputs(Plain):
    """forward(q, k, v, mask), all required: 1 = keep, 0 = hidden."""

    def forward(self, q, k, v, mask):
        q, k, v = self.split(self.q(q)), self.split(self.k(k)), self.split(self.v(v))
        return self.o(self.merge(self.soften(self.mask(self.scores(q, k), mask)) @ v))

    def mask(self, scores, mask):
        return scores + (1.0 - mask) * -1e9


@fault("mask-argument", "become 1e-09")
class ThreeInputsFillNearZero(PairsOfThreeInputs):
    def mask(self, scores, mask):
        return scores.masked_fill(mask == 0, 1e-9)


@fault("mask-argument", "leave out the transpose")
class ThreeInputsMaskTurned(PairsOfThreeInputs):
    def mask(self, scores, mask):
        return scores.masked_fill(mask.mT == 0, -1e9)


# --- several masks --------------------------------------------------------------------------


@correct("mask-argument")
class TwoMasksRequired(Plain):
    """forward(x, attn_mask, padding_mask): pairs that are added, padding where True = hidden."""

    def forward(self, x, attn_mask, padding_mask):
        self.added, self.padding = attn_mask, padding_mask[:, None, None]
        return super().forward(x)

    def hide(self, scores):
        return (scores + self.added).masked_fill(self.padding, -1e9)


@fault("mask-argument", "takes padding_mask, but no mask changes")
class SecondMaskIgnored(TwoMasksRequired):
    def hide(self, scores):
        return scores + self.added


@fault("mask-argument", "With padding_mask only the rows of the padded")
class SecondMaskAtTheQueries(TwoMasksRequired):
    def hide(self, scores):
        return (scores + self.added).masked_fill(self.padding.mT, -1e9)


@fault("mask-argument", "The scores that attn_mask hides become 0")
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


@fault("mask-argument", "The scores that padding_mask hides become 1e-09")
class SecondFillsNearZero(KeepsInTwoMasks):
    def hide(self, scores):
        return super().hide(scores).masked_fill(self.kept == 0, 1e-9)


@fault("mask-argument", "padding_mask sets weights to zero after")
class SecondAfterTheSoftmax(KeepsInTwoMasks):
    def soften(self, scores):
        return super().soften(scores) * self.kept


@correct("mask-argument")
class ThreeMasksRequired(Plain):
    def forward(self, x, key_padding_mask, src_mask, attn_mask):
        self.kept = (attn_mask * src_mask * key_padding_mask[:, None, None]) != 0
        return super().forward(x)

    def hide(self, scores):
        return scores.masked_fill(~self.kept, -1e9)


@correct("mask-argument")
class MasksOfTwoKinds(Plain):
    """Both required: in one True = hidden, in the other True = keep."""

    def forward(self, x, causal_mask, pad_mask):
        self.hidden = causal_mask | ~pad_mask[:, None, None]
        return super().forward(x)

    def hide(self, scores):
        return scores.masked_fill(self.hidden, -torch.inf)


# --- masks beside a context -----------------------------------------------------------------


@correct("mask-argument")
class SourceMaskForTheInput(DecoderBlock):
    def forward(self, x, memory, src_mask=None):
        x = x + self.own(x, x, src_mask)
        return x + self.cross(x, memory)


@correct("mask-argument")
class DecoderBlockTwoMasks(DecoderBlock):
    def forward(self, x, encoder_output, src_mask=None, tgt_mask=None):
        x = x + self.own(x, x, tgt_mask)
        return x + self.cross(x, encoder_output, src_mask)


@fault("mask-argument", "src_mask hides tokens of x, and not those of memory")
class MasksSwapped(DecoderBlockTwoMasks):
    def forward(self, x, memory, src_mask=None, tgt_mask=None):
        return super().forward(x, memory, tgt_mask, src_mask)


@fault("mask-argument", "as well as those of x")
class MaskOfTheTargetTwice(DecoderBlockTwoMasks):
    def forward(self, x, encoder_output, tgt_mask=None):
        return super().forward(x, encoder_output, tgt_mask, tgt_mask)


@correct("mask-argument")
class DecoderBlockPadded(DecoderBlock):
    """Causal by itself; what is padding in the memory is said."""

    def forward(self, x, encoder_output, pad_mask=None):
        seen = pad_mask if pad_mask is None else pad_mask[:, None, None, :]
        x = x + self.own(x, x, ~causal_mask(x.shape[1]))
        return x + self.cross(x, encoder_output, seen)


# --- gradients of a row without keys --------------------------------------------------------

fault("nan-gradient", "Where padding_mask hides all keys", "before the softmax")(
    padded.but("(scores.softmax(-1) @ v)", "(scores.softmax(-1) @ v).nan_to_num()")
)
fault("nan-gradient", "is NaN: the softmax of nothing but -inf")(
    given.but("-1e9", "-torch.inf").but("p_attn, value)", "p_attn, value).nan_to_num(0.0)")
)


class PaddingGiven(TwoWay):
    def forward(self, x, padding_mask=None):
        self.given = padding_mask
        return super().forward(x)

    def hide(self, scores):
        return scores if self.given is None else self.fill(scores, self.given[:, None, None])


@correct("nan-gradient")
class RowsFilledBefore(PaddingGiven):
    def fill(self, scores, hidden):
        scores = scores.masked_fill(hidden, -torch.inf)
        return scores.masked_fill(hidden.all(dim=-1, keepdim=True), 0.0)


@correct("nan-gradient", note="mask-convention")
class FilledWithTheLeast(PaddingGiven):
    def fill(self, scores, hidden):
        return scores.masked_fill(hidden, torch.finfo(scores.dtype).min)


@correct("nan-gradient", note="hidden-row")
class NaNInTheOutput(PaddingGiven):
    def fill(self, scores, hidden):
        return scores.masked_fill(hidden, -torch.inf)


@correct("nan-gradient", note="mask-convention")
class WeightsFilledAfter(NaNInTheOutput):
    """Early enough: where all scores are filled, no gradient goes back through the softmax."""

    def soften(self, scores):
        return super().soften(scores).nan_to_num(0.0)


@correct("nan-gradient")
class ByTheKernel(PaddingGiven):
    """The kernel gives 0 where a row has no key, and its gradients are 0."""

    def forward(self, x, padding_mask=None):
        kept = None if padding_mask is None else ~padding_mask[:, None, None]
        q, k, v = (self.split(layer(x)) for layer in (self.q, self.k, self.v))
        return self.o(self.merge(F.scaled_dot_product_attention(q, k, v, kept)))
