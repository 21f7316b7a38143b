"""A mask given as an argument: every convention is tried, and each that hides is right."""

from dataclasses import dataclass
from functools import cached_property

import torch

from .report import Finding

_PADDING = "padding"


@dataclass(frozen=True)
class Convention:
    """A way to say which pairs are hidden: words for the learner, and the mask itself."""

    words: str
    shape: str
    mask: torch.Tensor


def conventions(subject, hidden):
    """All masks that hide the same: hidden is (tokens, tokens), or (batch, tokens) for padding."""
    padding = hidden.shape[0] == subject.sizes.batch and hidden.shape[0] != hidden.shape[1]
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
    yield "(tokens, tokens)", hidden
    yield "(batch, 1, tokens, tokens)", hidden.expand(batch, 1, *hidden.shape)
    yield "(batch, tokens, tokens)", hidden.expand(batch, *hidden.shape)


def _kinds(hidden, dtype):
    far = torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)
    yield "Boolean, True = hidden", hidden
    yield "Boolean, True = keep", ~hidden
    yield "0 and -inf, added to the scores", far
    yield "1 = keep, 0 = hidden", (~hidden).long()
    yield "0 = keep, 1 = hidden", hidden.long()
    yield "1.0 = keep, 0.0 = hidden", (~hidden).to(dtype)
    yield "0.0 = keep, 1.0 = hidden", hidden.to(dtype)


class MaskTrial:
    """What one mask argument does: the convention that hides, or how it fails to."""

    def __init__(self, subject, name):
        self.subject, self.name = subject, name
        sizes = subject.sizes
        self.future = torch.ones(sizes.tokens, sizes.tokens, dtype=torch.bool).triu(1)
        self.column = torch.zeros(sizes.tokens, sizes.tokens, dtype=torch.bool)
        self.column[:, 1] = True
        self.column[1, 1] = False
        self.padding = torch.zeros(sizes.batch, sizes.tokens, dtype=torch.bool)
        self.padding[:, 1] = True
        self.ran, self.acted, self.accepted, self.leaks = 0, 0, None, []
        self._try()

    def _patterns(self):
        padded = [(self.padding, _PADDING)]
        if self.subject.sizes.batch == 1:
            padded = []
        square = [(self.column if self.causal_inside else self.future, "pairs")]
        return padded + square if "pad" in self.name.lower() else square + padded

    @cached_property
    def causal_inside(self):
        return not (self.subject.influence.cpu() * self.future).any()

    def _try(self):
        for hidden, kind in self._patterns():
            for convention in conventions(self.subject, hidden):
                verdict = self._judge(convention, hidden, kind)
                if verdict is None:
                    continue
                self.ran += 1
                self.acted += verdict != "ignored"
                if verdict == "hides":
                    self.accepted, self.kind, self.hidden = convention, kind, hidden
                    return
                self.leaks.append((verdict, convention))

    def _judge(self, convention, hidden, kind):
        """ "hides", "ignored", "leaks", or None where forward does not take such a mask."""
        s, masks = self.subject, {self.name: convention.mask}
        try:
            base = s.look(s.x, masks)
        except Exception:
            return None
        if base.shape != s.base.shape:
            return None
        if not s.differs(base, s.base)[1].any():
            return "ignored"
        if base.isnan().any():
            return "NaN"
        pairs = self._pairs(hidden, kind)
        moves = influence(s, masks, base, (0, 1, s.sizes.tokens - 1))
        seen = moves & pairs
        self.moves = moves
        if seen.any():
            return "leaks"
        # what is not hidden must still be seen: an inverted mask hides it
        kept = torch.ones_like(pairs).tril() & ~pairs
        kept[1, 1] = False  # a padded token need not see itself
        for j in (0, 1, s.sizes.tokens - 1):
            if (kept[:, j] & ~moves[:, j]).any():
                return "leaks"
        return "hides"

    def _pairs(self, hidden, kind):
        """(tokens, tokens): the pairs that the mask should hide."""
        return self.column if kind == _PADDING else hidden

    def future_seen(self):
        """(tokens, tokens): the future pairs that are visible with the accepted mask."""
        s, masks = self.subject, {self.name: self.accepted.mask}
        base = s.look(s.x, masks)
        return influence(s, masks, base, range(s.sizes.tokens)) & self.future

    def hidden_row(self):
        """Whether a row whose keys are all hidden gives NaN: forward, in the gradients, or no."""
        s = self.subject
        if self.kind == _PADDING:
            hidden = torch.zeros_like(self.padding)
            hidden[0] = True
        else:
            hidden = torch.zeros_like(self.future)
            hidden[0] = True
        words = (self.accepted.words, self.accepted.shape)
        mask = next(c.mask for c in conventions(s, hidden) if (c.words, c.shape) == words)
        output = s.run(s.x, {self.name: mask})
        if output.isnan().any():
            return "NaN comes out"
        weights = [w for w in s.weights.values() if w.requires_grad]
        if not weights or not output.requires_grad:
            return None
        found = torch.autograd.grad(output.sum(), weights, allow_unused=True)
        if any(g is not None and g.isnan().any() for g in found):
            return "the gradients are NaN"
        return None


def influence(subject, masks, base, columns):
    """(tokens, tokens) Boolean: which rows move when a token of `columns` changes."""
    tokens = subject.sizes.tokens
    moves = torch.zeros(tokens, tokens, dtype=torch.bool)
    for seed in (2, 3):
        other = 1.5 * subject.draw(seed)
        for j in columns:
            changed = subject.x.clone()
            changed[:, j] = other[:, j]
            _, moved = subject.differs(subject.look(changed, masks), base)
            moves[:, j] |= moved.any(dim=0).cpu()
    return moves


def trials(subject):
    """A MaskTrial for each mask argument of forward; none where a mask is part of each call."""
    if not hasattr(subject, "_trials"):
        subject._trials = [MaskTrial(subject, name) for name in subject.way.masks]
    return subject._trials


def mask_argument(subject):
    """A given mask is ignored, hides nothing, or costs the module its causal order."""
    if subject.sizes.tokens < 3:
        return None
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
    if failing and failing[0].acted and {"split-by-view", "merge-by-view"} & set(subject.found):
        subject.tell("the mask argument was not judged, because the layout mixes tokens")
        return None
    return _failing(failing[0]) if failing else None


def _accepted(subject, trial):
    subject.note(
        "mask-convention",
        f"{trial.name} is understood as {trial.accepted.words}, shape {trial.accepted.shape}.",
    )
    genuine = trial.kind == _PADDING and trial.accepted.shape == "(batch, tokens)"
    if trial.causal_inside and (genuine or "pad" in trial.name.lower()):
        seen = trial.future_seen()
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
    return None


def _failing(trial):
    if not trial.acted:
        return Finding(
            "mask-argument",
            f"forward takes {trial.name}, but no mask changes the output: it is ignored. Put "
            f"scores = scores.masked_fill({trial.name}, float('-inf')) before the softmax, and "
            f"keep the result.",
        )
    if all(verdict == "NaN" for verdict, _ in trial.leaks if verdict != "ignored"):
        return Finding(
            "mask-argument",
            f"Each mask given as {trial.name} makes NaN. A hidden score must become -inf by "
            f"masked_fill; 0 * -inf is NaN.",
        )
    tried = [c.words for verdict, c in trial.leaks if verdict == "leaks"]
    return Finding(
        "mask-argument",
        f"{trial.name} changes the output but does not hide: tried {len(tried)} ways to write "
        f"the mask ({'; '.join(dict.fromkeys(tried))}), and with each a hidden token is still "
        f"seen, or more is hidden than was asked for. A 0/1 mask that is added or multiplied "
        f"hides nothing: fill hidden scores with -inf before the softmax.",
        getattr(trial, "moves", torch.zeros(0)).float(),
        "which rows move when a token changes, with the last mask tried",
    )


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


def settle_required(subject):
    """Where each call needs a mask, find one that hides nothing, in the module's convention."""
    if subject.masks is None:
        return
    nothing = torch.zeros(subject.sizes.tokens, subject.sizes.tokens, dtype=torch.bool)
    running = None
    for convention in conventions(subject, nothing):
        masks = dict.fromkeys(subject.way.required, convention.mask)
        try:
            output = subject.look(subject.x, masks)
        except Exception:
            continue
        if output.isnan().any():
            continue
        running = running or masks
        subject.masks = masks
        subject.forget()
        trial = MaskTrial(subject, subject.way.required[0])
        if trial.accepted and trial.kind != _PADDING:
            words = (trial.accepted.words, trial.accepted.shape)
            mask = next(
                c.mask for c in conventions(subject, nothing) if (c.words, c.shape) == words
            )
            running = dict.fromkeys(subject.way.required, mask)
            break
    subject.masks = running
    subject.forget()
