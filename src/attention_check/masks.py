"""A mask given as an argument: every convention is tried, and each that hides is right."""

import itertools
import re
from dataclasses import dataclass
from functools import cached_property

import torch

from .calling import ENCODER, context_number
from .cores import cores
from .inputs import context_attends
from .report import DISTURBED, Finding, listed

_PADDING = "padding"
MOST_SETTLED = 60  # ways to write the masks that each call needs


@dataclass(frozen=True)
class Convention:
    """A way to say which pairs are hidden: words for the learner, and the mask itself."""

    words: str
    shape: str
    mask: torch.Tensor


@dataclass(frozen=True)
class Failure:
    """A mask that did not hide: what it should hide, and what it did.

    pairs: those to hide; token: the one that is padding. changed: the rows that the mask itself
    changes. moves: which rows move when a token changes, or None.
    """

    verdict: str
    convention: Convention
    kind: str
    pairs: torch.Tensor
    token: int
    moves: torch.Tensor | None
    changed: torch.Tensor


def conventions(subject, hidden):
    """All masks that hide the same.

    hidden: (tokens, tokens), (batch, tokens, tokens), or (batch, tokens) for padding.
    """
    padding = hidden.shape[0] == subject.sizes.batch and hidden.shape[0] != hidden.shape[1]
    padding = padding and hidden.dim() == 2
    dtype = getattr(subject, "dtype", torch.float32)
    device, found = subject.device, []
    for shape, spread in _shapes(hidden, subject.sizes.batch, padding):
        for words, mask in _kinds(spread, dtype):
            found.append(Convention(words, shape, mask.to(device)))
    return found


def _shapes(hidden, batch, padding):
    if padding:
        yield "(batch, tokens)", hidden
        yield "(batch, 1, 1, tokens)", hidden[:, None, None]
        yield "(batch, 1, tokens)", hidden[:, None]
        return
    if hidden.dim() == 2:
        yield "(tokens, tokens)", hidden
        hidden = hidden.expand(batch, *hidden.shape)
    yield "(batch, 1, tokens, tokens)", hidden[:, None]
    yield "(batch, tokens, tokens)", hidden


def _kinds(hidden, dtype):
    far = torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)
    yield "Boolean, True = hidden", hidden
    yield "Boolean, True = keep", ~hidden
    yield "1 = keep, 0 = hidden", (~hidden).long()
    yield "0 = keep, 1 = hidden", hidden.long()
    yield "1.0 = keep, 0.0 = hidden", (~hidden).to(dtype)
    yield "0.0 = keep, 1.0 = hidden", hidden.to(dtype)
    yield "0 and -inf, added to the scores", far


class MaskTrial:
    """What one mask argument does: the convention that hides, or how it fails to.

    number: the input whose tokens it hides, where forward takes several; None: all together.
    """

    def __init__(self, subject, name):
        self.subject, self.name, self.number = subject, name, None
        sizes = subject.sizes
        self.future = torch.ones(sizes.tokens, sizes.tokens, dtype=torch.bool).triu(1)
        self.column = self._column(1)
        self.columns = [0, 1, sizes.tokens - 1]  # the tokens to change
        self.padding = torch.zeros(sizes.batch, sizes.tokens, dtype=torch.bool)
        self.padding[:, 1] = True
        self.at_the_end = self.padding.roll(-2, dims=1)  # the last token in place of token 1
        self.ran, self.acted, self.accepted, self.failures = 0, 0, None, []
        self._try()

    def _column(self, token):
        """(tokens, tokens): one token is hidden from all others."""
        hidden = torch.zeros_like(self.future)
        hidden[:, token] = True
        hidden[token, token] = False
        return hidden

    def _patterns(self):
        padded = [(self.padding, _PADDING)]
        if not self.causal_inside:  # which hides the last token anyway
            padded.append((self.at_the_end, _PADDING))
        if self.subject.sizes.batch == 1:
            padded = []
        square = [(self.column if self.causal_inside else self.future, "pairs")]
        return padded + square if "pad" in self.name.lower() else square + padded

    @cached_property
    def causal_inside(self):
        return not (self.subject.influence.cpu() * self.future).any()

    @property
    def _numbers(self):
        """The inputs to change: all together, then each alone."""
        s = self.subject
        return [None, *(range(len(s.way.names)) if s.several else ())]

    def _try(self):
        for hidden, kind in self._patterns():
            for convention in conventions(self.subject, hidden):
                verdict, changed, moves = self._judge(convention, hidden, kind)
                if verdict is None:
                    continue
                self.ran += 1
                self.acted += verdict != "ignored"
                if verdict == "hides":
                    self.accepted, self.kind, self.hidden = convention, kind, hidden
                    return
                pairs = self._pairs(hidden, kind)
                self.failures.append(
                    Failure(verdict, convention, kind, pairs, _token(hidden), moves, changed)
                )

    def _judge(self, convention, hidden, kind):
        """(verdict, rows that the mask changes, which rows move when a token changes).

        The verdict is "hides", "ignored", "leaks", "NaN", or None where forward takes no such mask.
        """
        s, masks = self.subject, {self.name: convention.mask}
        try:
            base = s.look(s.x, masks)
        except Exception:
            return None, None, None
        if base.shape != s.base.shape:
            return None, None, None
        changed = (s.differs(base, s.base)[1] | base.isnan().any(dim=-1)).any(dim=0).cpu()
        if not changed.any():
            return "ignored", changed, None
        if base.isnan().any():
            return "NaN", changed, None
        pairs = self._pairs(hidden, kind)
        together = None
        for number in self._numbers:
            moves = self._moves(masks, base, self.columns, number).any(dim=0)
            together = moves if together is None else together
            if self._hides(moves, pairs, self.columns, kind, _token(hidden)):
                self.number = number
                return "hides", changed, moves
        return "leaks", changed, together

    def _moves(self, masks, base, columns, number):
        """(batch, tokens, tokens) Boolean: which rows move when a token of `columns` changes."""
        return self.subject.rows_moved(base, number, masks, columns=columns) > 0

    def _hides(self, moves, pairs, columns, kind, token):
        """Whether the pairs are hidden, and no more than that: an inverted mask hides the others.

        What comes out for a padded token, the one at `token`, is nobody's concern.
        """
        own = self.subject.influence.cpu() > 0  # a window may hide a part of the past
        kept = torch.ones_like(pairs).tril() & ~pairs & own
        kept[token, token] = False  # a hidden token need not see itself
        free = torch.zeros_like(pairs)
        free[token] = kind == _PADDING
        wrong = (moves & pairs) | (kept & ~moves)
        return not (wrong & ~free)[:, columns].any()

    def _pairs(self, hidden, kind):
        """(tokens, tokens): the pairs that the mask should hide."""
        return self._column(_token(hidden)) if kind == _PADDING else hidden

    def hides_in(self, number):
        """Whether the accepted mask hides tokens of one of several inputs."""
        s, masks = self.subject, {self.name: self.accepted.mask}
        moves = self._moves(masks, s.look(s.x, masks), self.columns, number).any(dim=0)
        pairs, token = self._pairs(self.hidden, self.kind), _token(self.hidden)
        return self._hides(moves, pairs, self.columns, self.kind, token)

    def future_seen(self):
        """(tokens, tokens): the future pairs that are visible with the accepted mask."""
        s, masks = self.subject, {self.name: self.accepted.mask}
        base = s.look(s.x, masks)
        number = self.number if s.looking is None else s.looking
        return self._moves(masks, base, None, number).any(dim=0) & self.future

    def _like_accepted(self, hidden):
        """Another mask in the convention that was accepted."""
        words = (self.accepted.words, self.accepted.shape)
        found = conventions(self.subject, hidden)
        return next(c.mask for c in found if (c.words, c.shape) == words)

    def mixed(self):
        """The sentences that do not get their own mask, where each has another; [] if all do."""
        s = self.subject
        if "batch" not in self.accepted.shape or s.sizes.batch == 1 or DISTURBED & set(s.found):
            return []
        if self.kind == _PADDING and self.hidden is not self.padding:
            return []
        tokens = [1 + b % (s.sizes.tokens - 1) for b in range(s.sizes.batch)]
        pairs = [self._column(token) for token in tokens]
        if self.kind == _PADDING:
            hidden = torch.zeros_like(self.padding)
            hidden[range(s.sizes.batch), tokens] = True
        else:
            pairs = [own if self.causal_inside else own | self.future for own in pairs]
            hidden = torch.stack(pairs)
        masks = {self.name: self._like_accepted(hidden)}
        base = s.look(s.x, masks)
        if base.isnan().any():
            return []
        columns = sorted(set(tokens))
        moves = self._moves(masks, base, columns, self.number)
        return [
            b
            for b, token in enumerate(tokens)
            if not self._hides(moves[b], pairs[b], columns, self.kind, token)
        ]

    def hidden_row(self):
        """Whether a row whose keys are all hidden gives NaN: forward, in the gradients, or no."""
        s = self.subject
        hidden = torch.zeros_like(self.padding if self.kind == _PADDING else self.future)
        hidden[0] = True
        output = s.run(s.x, {self.name: self._like_accepted(hidden)})
        if output.isnan().any():
            return "NaN comes out"
        weights = [w for w in s.weights.values() if w.requires_grad]
        if not weights or not output.requires_grad:
            return None
        found = torch.autograd.grad(output.sum(), weights, allow_unused=True)
        if any(g is not None and g.isnan().any() for g in found):
            return "the gradients are NaN"
        return None


def _token(hidden):
    """The token that a padding mask hides, the same in all sentences; 1 in a mask of pairs."""
    return int(hidden[0].nonzero()[0])


def trials(subject):
    """A MaskTrial for each mask argument of forward; none where a mask is part of each call."""
    if not hasattr(subject, "_trials"):
        subject._trials = [MaskTrial(subject, name) for name in subject.way.masks]
    return subject._trials


def mask_argument(subject):
    """A given mask is ignored, hides nothing, or costs the module its causal order."""
    if subject.sizes.tokens < 3:
        return None
    if names := subject.way.passed_over:
        subject.tell(f"{listed(names)} not judged, as the check gives no mask for a context alone")
    failing = []
    for trial in trials(subject):
        if trial.accepted is not None:
            finding = _accepted(subject, trial)
            if finding:
                return finding
        elif not trial.ran:
            subject.unclear.append(
                f"the argument {trial.name} was not judged: forward takes no mask of a shape "
                f"and kind that the check knows"
            )
        else:
            failing.append(trial)
    spoilt = {"split-by-view", "merge-by-view", "softmax-axis"} & set(subject.found)
    if failing and failing[0].acted and spoilt:
        subject.tell(f"the mask argument was not judged, because of {listed(sorted(spoilt))}")
        return None
    return next(filter(None, map(_failing, failing)), None)


def _accepted(subject, trial):
    filled = _filled_with_more(trial)
    if filled is not None:
        return Finding(
            "mask-argument",
            f"The scores that {trial.name} fills become {filled:.3g}, more than all others: what "
            f"should be hidden takes all the weight, in equal shares. Fill hidden scores with "
            f"float('-inf'), with a minus.",
        )
    whose = "" if trial.number is None else f", for {subject.way.names[trial.number]}"
    shape = trial.accepted.shape
    subject.note(
        "mask-convention",
        f"{trial.name} is understood as {trial.accepted.words}, shape {shape}{whose}.",
    )
    genuine = trial.kind == _PADDING and trial.accepted.shape == "(batch, tokens)"
    if trial.causal_inside and (genuine or "pad" in trial.name.lower()):
        seen = trial.future_seen()
        if trial.kind == _PADDING:
            seen[_token(trial.hidden)] = False  # what comes out for a padded token
        if seen.any():
            i, j = seen.nonzero()[0].tolist()
            return Finding(
                "mask-argument",
                f"Position {i} sees position {j} as soon as {trial.name} is given: the padding "
                f"mask takes the place of the causal one. Hide a pair if either mask hides it: "
                f"combine them with | where True = hidden, with & where True = keep.",
                seen.float(),
                "future pairs that are visible with the padding mask",
            )
    return _mixed(trial) or _given_to_another(trial)


def _filled_with_more(trial):
    """The large number in all scores that an accepted mask leaves: it fills the others; or None."""
    s, pairs = trial.subject, trial._pairs(trial.hidden, trial.kind)
    for core in cores(s.capture(s.x, masks={trial.name: trial.accepted.mask})):
        if core.scores is None or core.scores.shape[-2:] != pairs.shape:
            continue
        left = core.scores[..., ~pairs & (s.influence.cpu() > 0)]
        largest = left.max() if left.numel() else 0
        if largest > 1e3 and (left == largest).float().mean() > 0.9:
            return largest.item()
    return None


def _given_to_another(trial):
    """In a decoder block: a mask of the target that hides the memory, or the reverse."""
    s, names = trial.subject, trial.subject.way.names
    at = context_number(names) if s.several and len(names) == 2 else None
    side = _SIDE.search(trial.name.lower())
    if at is None or side is None or not s.influence_of(1 - at).fill_diagonal_(0).any():
        return None
    if not side[1] and not any(_SIDE.match(name)[1] for name in s.way.masks if _SIDE.match(name)):
        return None  # the source may be the input itself
    mine = 1 - at if side[1] else at
    if not trial.hides_in(1 - mine):
        return None
    and_not = "as well as those" if trial.hides_in(mine) else "and not those"
    return Finding(
        "mask-argument",
        f"{trial.name} hides tokens of {names[1 - mine]}, {and_not} of {names[mine]}: it is given "
        f"to the wrong attention. The self-attention takes the mask of {names[1 - at]}, the "
        f"cross-attention that of {names[at]}.",
    )


def _in_an_encoder(trial):
    """Whether it may mask pairs of a context that goes through an attention of its own."""
    s, names = trial.subject, trial.subject.way.names
    if not s.several or len(names) != 2 or context_number(names) is None:
        return False
    side = _SIDE.search(trial.name.lower())
    return bool(side and not side[1]) and context_attends(s)


_SIDE = re.compile(r"(tgt|trg|target)|src|source")


def _mixed(trial):
    """A mask of one sentence that reaches another."""
    mixed = trial.mixed()
    if not mixed:
        return None
    rows = "1" if trial.kind == _PADDING else "tokens"
    return Finding(
        "mask-argument",
        f"{trial.name} hides what it should where all sentences have the same mask. Where each "
        f"has its own, the mask of another sentence is used in "
        f"{'sentence' if len(mixed) == 1 else 'sentences'} {listed(mixed)}, in some heads or in "
        f"all. Neither repeat the mask for the heads nor take one sentence of it, but give it an "
        f"axis for the heads: (batch, 1, {rows}, tokens) goes with scores of (batch, num_heads, "
        f"tokens, tokens).",
    )


def _failing(trial):
    of_context = re.search(ENCODER + "|mem", trial.name.lower())
    if (trial.acted or of_context) and trial.subject.absent(trial.name):
        return None
    if trial.acted and _in_an_encoder(trial):
        trial.subject.tell(
            f"{trial.name} was not judged, because it hides pairs in an encoder, and the output "
            f"shows only what the decoder sees of it"
        )
        return None
    if not trial.acted:
        return Finding(
            "mask-argument",
            f"forward takes {trial.name}, but no mask changes the output: it is ignored. Put "
            f"scores = scores.masked_fill({trial.name}, float('-inf')) before the softmax, and "
            f"keep the result.",
        )
    for failure in trial.failures:
        if failure.verdict != "ignored" and (text := _what_instead(trial, failure)):
            return _not_hidden(trial, failure, text)
    leaks = [failure for failure in trial.failures if failure.verdict == "leaks"]
    if not leaks:
        return Finding(
            "mask-argument",
            f"Each mask given as {trial.name} makes NaN. A hidden score must become -inf by "
            f"masked_fill; 0 * -inf is NaN.",
        )
    tried = [failure.convention.words for failure in leaks]
    text = (
        f"{trial.name} changes the output but does not hide: tried {len(tried)} ways to write "
        f"the mask ({'; '.join(dict.fromkeys(tried))}), and with each a hidden token is still "
        f"seen, or more is hidden than was asked for. A 0/1 mask that is added or multiplied "
        f"hides nothing: fill hidden scores with -inf before the softmax."
    )
    return _not_hidden(trial, leaks[-1], text)


def _not_hidden(trial, failure, text):
    if failure.moves is None:
        return Finding("mask-argument", text)
    s, masks = trial.subject, {trial.name: failure.convention.mask}
    moves = s.rows_moved(s.look(s.x, masks), masks=masks).amax(dim=0) > 0
    shows = f"which rows move when a token changes, the mask being {failure.convention.words}"
    wrong = failure.pairs | trial.future if trial.causal_inside else failure.pairs
    return Finding("mask-argument", text, moves.float(), shows, wrong)


def _what_instead(trial, failure):
    """What a mask does in place of hiding, in words, where that is seen; or None."""
    name, pairs, padded = trial.name, failure.pairs, failure.kind == _PADDING
    if padded and failure.changed.nonzero().flatten().tolist() == [failure.token]:
        return (
            f"With {name} only the rows of the padded tokens themselves change, and the others "
            f"still see them: the mask stands at the queries. It must hide the keys: "
            f"{name}[:, None, None, :] for scores of (batch, num_heads, tokens, tokens)."
        )
    if failure.moves is None:
        return None
    seen, ahead = failure.moves[:, trial.columns], trial.future
    if trial.causal_inside and seen.equal(~(pairs & ahead)[:, trial.columns]):
        return (
            f"With {name} the future is seen, and a pair is hidden only where {name} and the "
            f"causal mask both hide it. Hide it where either does: combine them with | where "
            f"True = hidden, with & where True = keep."
        )
    turned = pairs.mT | ahead if trial.causal_inside else pairs.mT
    if not padded and seen.equal(~turned[:, trial.columns]):
        return (
            f"{name} hides the pairs on the other side of the diagonal: its rows and columns are "
            f"swapped before it is used. A row is a query and a column a key, in the mask as in "
            f"the scores: leave out the transpose."
        )
    return _beside_the_scores(trial, failure)


def _beside_the_scores(trial, failure):
    """What to say where weights or values are zeroed, and not the scores hidden; or None."""
    s, name = trial.subject, trial.name
    flow = s.capture(s.x, masks={name: failure.convention.mask})
    for core in cores(flow):
        if core.normalised is None or core.weights.shape[-2:] != failure.pairs.shape:
            continue
        hidden = core.weights[..., failure.pairs].abs()
        short = (core.weights.sum(dim=-1) - 1).abs().max() > 1e-3
        if short and (hidden < 1e-12).all():
            return (
                f"{name} sets weights to zero after the softmax: hidden tokens still take their "
                f"share in it, and the rest no longer sums to one. Fill the scores with -inf "
                f"before the softmax."
            )
        one = failure.pairs[:, failure.token].sum() == len(failure.pairs) - 1
        if one and (core.values[..., failure.token, :] == 0).all() and hidden.max() > 1e-6:
            return (
                f"{name} sets the values of hidden tokens to zero, but they still take their "
                f"share in the softmax. Fill the scores of their keys with -inf before it."
            )
        filled = _filled(core.scores, failure.pairs)
        if filled is not None:
            return (
                f"The scores that {name} hides become {filled:.3g}, too close to the others to "
                f"hide anything. Fill them with float('-inf')."
            )
    return None


def _filled(scores, pairs):
    """The one number that stands in all hidden scores, and is no number to hide with; or None."""
    if scores is None:
        return None
    hidden, seen = scores[..., pairs], scores[..., ~pairs].flatten()
    value = hidden.flatten()[0]
    if (hidden == value).all() and (seen != value).any() and value.abs() < 100:
        return value.item()
    return None


def hidden_row(subject):
    """A note: a row whose keys are all hidden gives NaN."""
    for trial in trials(subject):
        if trial.accepted is None:
            continue
        try:
            what = trial.hidden_row()
        except Exception:
            continue
        if what:
            subject.note(
                "hidden-row",
                f"Where {trial.name} hides all keys of a row, {what}. The softmax of nothing but "
                f"-inf is NaN: if padding can do that in your data, fill such rows with 0.",
            )
    return None


def masks_to_run(subject):
    """Yield {name: mask} in all shapes, to find one with which forward runs at all.

    Boolean masks are taken by nearly all, and numbers by the rest. What they hide is not asked.
    """
    sizes, names = subject.sizes, subject.way.required
    shapes = [shape for _, shape in _shapes(_nothing(sizes.tokens, sizes), sizes.batch, False)]
    if sizes.batch > 1:
        padding = [shape for _, shape in _shapes(_nothing(sizes.batch, sizes), sizes.batch, True)]
    else:
        padding = []
    likely = [padding + shapes if "pad" in name.lower() else shapes + padding for name in names]
    for dtype in (torch.bool, torch.float32):
        for chosen in itertools.product(*likely):
            masks = [mask.to(subject.device, dtype) for mask in chosen]
            yield dict(zip(names, masks, strict=True))


def _nothing(rows, sizes):
    return torch.zeros(rows, sizes.tokens, dtype=torch.bool)


def settle_required(subject):
    """Where each call needs masks, give those that hide nothing: under them most is seen."""
    if subject.masks is None:
        return
    most, best = (False, 0), subject.masks
    half = subject.sizes.tokens * (subject.sizes.tokens + 1) // 2  # what a causal module sees
    for masks in itertools.islice(_constant_masks(subject), MOST_SETTLED):
        seen = _seen(subject, masks)
        if seen is not None and seen > most:
            most, best = seen, masks
        if most >= (True, half):
            break
    subject.masks = best
    subject.forget()


def _constant_masks(subject):
    """Yield {name: mask} with the masks that say, in one convention or another: hide nothing."""
    nothing = torch.zeros((), dtype=torch.bool)
    values = [mask for _, mask in _kinds(nothing, subject.dtype)]
    values = list({(mask.dtype, mask.item()): mask for mask in values}.values())
    chosen = itertools.product(range(len(values)), repeat=len(subject.masks))
    for numbers in sorted(chosen, key=lambda numbers: len(set(numbers))):  # one for all first
        yield {
            name: values[number].expand(mask.shape).clone().to(mask.device)
            for (name, mask), number in zip(subject.masks.items(), numbers, strict=True)
        }


def _seen(subject, masks):
    """(whether the weights of no core are all even, how many pairs are seen), or None.

    A mask that hides every pair with a large number makes all weights the same.
    """
    try:
        base = subject.look(subject.x, masks)
        if base.dim() != 3 or base.isnan().any():
            return None
        moves = subject.rows_moved(base, masks=masks, seeds=(2,)).amax(dim=0) > 0
        weights = [core.weights for core in cores(subject.capture(subject.x, masks=masks))]
    except Exception:
        return None
    even = [(each - each.mean(dim=-1, keepdim=True)).abs().max() < 1e-6 for each in weights]
    return not any(even), int(moves.sum())
