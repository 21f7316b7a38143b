"""A mask given as an argument: every convention is tried, and each that hides is right."""

from dataclasses import dataclass, replace

import torch

from ..facts import Facts, fact
from ..search.masks import Convention, conventions
from ..search.names import LENGTHS
from .sight import future


@dataclass(frozen=True)
class Pattern:
    """What a mask should hide.

    hidden: as it is given to `conventions`; pairs: (tokens, tokens) Boolean; token: the one that
    is padding; padding: whether a token is hidden, and not pairs alone.
    """

    hidden: torch.Tensor
    pairs: torch.Tensor
    token: int = 1
    padding: bool = False


@dataclass(frozen=True)
class Attempt:
    """What one mask did.

    given: {argument: mask}. changed: the rows that the mask itself changes; moves: which rows move
    when a token changes, or None. verdict: "hides", "ignored", "leaks" or "NaN". number: the input
    whose tokens it hides, where forward takes several; None: all together.
    """

    given: dict
    convention: Convention
    pattern: Pattern
    changed: torch.Tensor
    moves: torch.Tensor | None = None
    verdict: str = "leaks"
    number: int | None = None


@dataclass(frozen=True)
class Trial:
    """What the masks given as one argument did, until one was right; errors: of failed calls."""

    name: str
    attempts: tuple
    errors: tuple = ()

    @property
    def accepted(self):
        """The Attempt that hides, or None."""
        return next((one for one in self.attempts if one.verdict == "hides"), None)

    @property
    def for_padding(self):
        return _for_padding(self.name)

    @property
    def acted(self):
        return any(one.verdict != "ignored" for one in self.attempts)


@fact
def trials(s):
    """A Trial for each mask argument of forward; none where a mask is part of each call."""
    return [_trial(s, name) for name in s.way.masks] if s.sizes.tokens > 2 else []


@fact
def masked(s, name):
    """The Facts with the mask that was accepted for an argument in each call."""
    trial = next(trial for trial in trials(s) if trial.name == name)
    return Facts(replace(s.subject, masks=s.masks | trial.accepted.given))


@fact
def causal_inside(s):
    """Whether the module hides the future without being given a mask."""
    return not (s.influence.cpu() * future(s)).any()


def columns(s):
    """The tokens that are changed to see what a mask hides."""
    return [0, 1, s.sizes.tokens - 1]


def _trial(s, name):
    attempts, errors = [], []
    for pattern in _patterns(s, name):
        for convention in conventions(s, pattern.hidden, name):
            try:
                attempts += _attempt(s, name, convention, pattern)
            except Exception as error:
                errors.append(error)
            if attempts and attempts[-1].verdict == "hides":
                return Trial(name, tuple(attempts))
    return Trial(name, tuple(attempts), tuple(errors))


def _patterns(s, name):
    # a causal module hides the last token anyway
    tokens = (1,) if causal_inside(s) else (1, s.sizes.tokens - 1)
    padded = [padding(s, token) for token in tokens] if s.sizes.batch > 1 else []
    if LENGTHS.search(name):  # they hide the last tokens alone
        return padded[1:]
    pairs = column(s, 1) if causal_inside(s) else future(s)
    square = [Pattern(pairs, pairs)]
    return padded + square if _for_padding(name) else square + padded


def _for_padding(argument):
    """Whether an argument of forward takes a padding mask, by its name."""
    return "pad" in argument.lower()


def padding(s, token):
    """The Pattern of one token that is padding in all sentences."""
    hidden = torch.zeros(s.sizes.batch, s.sizes.tokens, dtype=torch.bool)
    hidden[:, token] = True
    return Pattern(hidden, column(s, token), token, padding=True)


def column(s, token):
    """(tokens, tokens): one token is hidden from all others."""
    hidden = torch.zeros_like(future(s))
    hidden[:, token] = True
    hidden[token, token] = False
    return hidden


def _attempt(s, name, convention, pattern):
    """[the Attempt], or [] where the output has another shape; raises where forward fails."""
    masks = {name: convention.mask}
    base = s.look(s.x, masks)
    if base.shape != s.base.shape:
        return []
    changed = (s.differs(base, s.base)[1] | base.isnan().any(dim=-1)).any(dim=0).cpu()
    attempt = Attempt(masks, convention, pattern, changed)
    if not changed.any() or base.isnan().any():
        return [replace(attempt, verdict="NaN" if changed.any() else "ignored")]
    numbers = (None, *(range(len(s.way.names)) if s.several else ()))
    moves = [moved(s, masks, number, columns(s)).any(dim=0) for number in numbers]
    for number, found in zip(numbers, moves, strict=True):
        if hides(s, found, pattern, columns(s)) and _is_added(s, attempt, number):
            return [replace(attempt, verdict="hides", number=number)]
    return [replace(attempt, moves=moves[0])]


def _is_added(s, attempt, number):
    """Whether a mask that holds -inf hides with a large number too: 1e-9 times -inf is -inf."""
    finite = {name: mask.clamp_min(-1e9) for name, mask in attempt.given.items()}
    if not any(mask.isneginf().any() for mask in attempt.given.values()):
        return True
    return hides(s, moved(s, finite, number, columns(s)).any(dim=0), attempt.pattern, columns(s))


def moved(s, masks, number=None, tokens=None):
    """(batch, tokens, tokens) Boolean: which rows move when one of some tokens changes."""
    return s.rows_moved(s.look(s.x, masks), number, masks, columns=tokens) > 0


def hides(s, moves, pattern, tokens):
    """Whether the pairs are hidden, and no more than that: an inverted mask hides the others.

    What comes out for a padded token is nobody's concern.
    """
    own = s.influence.cpu() > 0  # a window may hide a part of the past
    kept = ~future(s) & ~pattern.pairs & own
    kept[pattern.token, pattern.token] = False  # a hidden token need not see itself
    wrong = (moves & pattern.pairs) | (kept & ~moves)
    if pattern.padding:
        wrong[pattern.token] = False
    return not wrong[:, tokens].any()
