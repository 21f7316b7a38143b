"""What is settled before a rule is asked: the masks that each call needs, and what is random."""

import itertools
from dataclasses import replace

import torch

from .facts import Facts
from .guard import copy_module
from .runs import set_dropout
from .search.masks import constant_masks
from .search.others import other_ways
from .stages import cores, drops

MOST_SETTLED = 60  # ways to write the masks that each call needs


def settled_ways(subject):
    """[a Subject for each way to call it, the usual first], each of which knows the others.

    A flag, or positions, that change nothing are no way of their own.
    """
    subject = _laid_out(subject)
    usual, *others = map(settled, (subject, *other_ways(subject)))
    s = Facts(usual)
    acting = [one for one in others if one.way.names != s.way.names or _differs(s, one)]
    every = [usual, *acting]
    return [replace(one, others=tuple(o for o in every if o is not one)) for one in every]


def _laid_out(subject):
    """The subject, with the batch first where it keeps sentences apart that way alone."""
    other = replace(subject, way=replace(subject.way, layout="batch"))
    first = subject.way.layout == "tokens first"
    return other if first and _mixes(subject) and not _mixes(other) else subject


def _mixes(subject):
    """Whether the first sentence moves when the others change; True where it cannot be called."""
    s = Facts(subject)
    changed = torch.cat([s.x[:1], s.draw(2)[1:]])
    try:
        return bool(s.differs(s.look(changed), s.base)[1][0].any())
    except Exception:
        return True


def _differs(s, other):
    output = Facts(other).base
    return output.shape != s.base.shape or bool(s.differs(output, s.base)[1].any())


def settled(subject):
    """The subject with masks that hide nothing, if it needs masks, and repeatable runs.

    Dropout layers have p = 0.5 from here on, which drops nothing in evaluation mode.
    """
    if subject.masks:
        subject = replace(subject, masks=_masks(subject))
    loud, still = (
        replace(subject, pristine=set_dropout(copy_module(subject.pristine), p)) for p in (0.5, 0.0)
    )
    fresh, quiet = replace(loud, fresh=True), replace(still, quiet=True)
    if _repeats(loud):
        return loud
    if _repeats(fresh):
        return fresh
    if _repeats(replace(quiet, fresh=True)):
        return replace(quiet, random="dropout", drops=True)
    s = Facts(loud)
    return replace(quiet, random="layer", drops=any(map(drops, s.capture(s.x).calls)))


def _repeats(subject):
    """Whether two calls give the same, with another input between them, which may be kept."""
    s = Facts(subject)
    first = s.base
    s.look(s.draw(2), seed=2)
    return not s.differs(s.look(s.x, seed=2), first)[1].any()


def _masks(subject):
    """The masks under which most is seen: those that hide nothing."""
    most, best = (False, 0), subject.masks
    half = subject.sizes.tokens * (subject.sizes.tokens + 1) // 2  # what a causal module sees
    for masks in itertools.islice(constant_masks(subject), MOST_SETTLED):
        seen = _seen(replace(subject, masks=masks))
        if seen > most:
            most, best = seen, masks
        if most >= (True, half):
            break
    return best


def _seen(subject):
    """(whether the weights of no core are all even, how many pairs are seen).

    A mask that hides every pair with a large number makes all weights the same.
    """
    s = Facts(subject)
    try:
        moves = s.rows_moved(s.base, seeds=(2,)).amax(dim=0) > 0
        weights = [core.weights for core in cores(s.capture(s.x))]
    except Exception:
        return False, 0
    even = [(each - each.mean(dim=-1, keepdim=True)).abs().max() < 1e-6 for each in weights]
    return not any(even) and not s.base.isnan().any(), int(moves.sum())
