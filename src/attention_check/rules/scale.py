"""From products to scores: the factor, and rotary positions."""

import math
import re
from itertools import combinations

import torch

from ..findings import Finding, Note, Unjudged
from ..graph import EXP, SOFTMAX, factor
from ..stages import cores
from ..trust import square, token_axes
from .registry import rule


@rule("scale")
def scale(s):
    """The scores are not q·k / √head_dim.

    scores = queries @ keys.mT / d_model**0.5
    """
    pairs = [(a, b) for a, b in zip(*s.both_cores, strict=False) if a.width > 0]
    # without a softmax, keys that meet values first look like scores
    pairs = [(a, b) for a, b in pairs if a.fused or a in square(s) or _softened(s, a)]
    if "tokens" in s.failed:  # a fixed length may cut the tokens in another way
        pairs = [(a, b) for a, b in pairs if a in square(s)]
    answers = [_scale_of(s, a, b) for a, b in pairs] or [Unjudged("the softmax cannot be seen")]
    found = [answer for answer in answers if isinstance(answer, Finding)]
    return found[:1] or answers


def _scale_of(s, a, b):
    """The Finding or the Unjudged on one core, of which b is the run on other input; or None."""
    change = _change(a, b) if a.softmaxes < 2 else None
    if change is None:
        return Unjudged("the scores are not q·k times one number")
    slope = change * math.prod(s.graph.origin(*operand).factor for operand in a.operands[:2])
    turned = [_turn(s.graph, *operand) for operand in a.operands[:2]]
    expected = a.width**-0.5
    if _near(slope, expected) or _near(slope * math.prod(turned), expected):
        return None
    if _near(slope, 1) and (factor(a.soft, a.weights) or 1) < 0.99:
        return None  # the factor stands after the softmax, and is reported there
    if _near(slope, 1) and _biased(a, change):
        return Unjudged("more than a factor stands between products and softmax")
    if not all(turned) or _learned(s, a):
        why = "something else (positions, a norm, a learned factor) stands between the projections"
        return Unjudged(f"{why} and the scores")
    kind = type(s.original)
    if _near(slope, 1) and (UNSCALED.search(kind.__doc__ or "") or "T5" in kind.__name__):
        return Note("The scores are not divided, as its name or docstring says.")
    twice = a.fused and _near(change, expected)
    return _scaled(s, slope * math.prod(turned), a, twice)


def _softened(s, core):
    return any(s.graph.calls[at].name in (*SOFTMAX, EXP) for at in core.path)


UNSCALED = re.compile(r"T5|\bunscaled\b|\bnot scaled\b|without scal|no scal", re.IGNORECASE)


def _near(slope, expected):
    return abs(slope / expected - 1) < 0.01


def _learned(s, core):
    """Whether a learned factor, one for all heads or one for each, stands in the scores."""
    between = [at for operand in core.operands[:2] for at in s.graph.back(*operand)[0]]
    read = [k.tensor for at in (*between, *core.path) for k in s.graph.calls[at].inputs]
    known = [t for t in read if t.is_leaf and t.requires_grad]
    return any(t.numel() in (1, s.sizes.num_heads) for t in known)


def _turn(graph, kept, before):
    """The factor behind a rotation of projected numbers, which keeps their length; 0 for none."""
    origin = graph.origin(kept, before)
    if graph.pure(origin):
        return 1.0
    length = kept.value.norm() / abs(origin.factor)
    path, _, _ = graph.back(kept, before)
    for at in path:
        for part in graph.calls[at].inputs:
            behind = graph.origin(part, at)
            alike = part.value.numel() == kept.value.numel() and graph.pure(behind)
            if alike and (part.value.norm() / length - 1).abs() < 1e-4:
                return behind.factor
    return 0.0


def _change(a, b):
    """The slope of the change in the scores on the change in the products; or None."""
    if a.scores is None or b.scores is None or a.products.numel() != a.scores.numel():
        return None
    products, y = a.products - b.products, a.scores - b.scores
    known = (a.scores > -1e3) & (b.scores > -1e3) & (y.abs() > 1e-7)
    for x in (products, products.mT) if known.sum() > 2 else ():
        x, y = (_centred(t.reshape(y.shape), known) for t in (x, y))
        if slope := factor(x[known], y[known], 1e-2):
            return slope
    return None


def _biased(core, change):
    """Whether something that differs from pair to pair is added to the products."""
    known, products = core.scores > -1e3, core.products.reshape(core.scores.shape)
    return bool(_centred(core.scores - change * products, known)[known].abs().max() > 1e-3)


def _centred(numbers, known):
    """Without each row's mean, so that a row's maximum may have been taken away."""
    kept = torch.where(known, numbers, 0.0)
    return numbers - kept.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp_min(1)


def _scaled(s, slope, core, twice):
    """The Finding; twice: whether the fused kernel divides as well."""
    width, heads = core.width, s.sizes.num_heads or 1
    advice = f"Each head has {width} numbers: divide by √{width} = {width**0.5:.3g}."
    if twice:
        advice = f"scaled_dot_product_attention divides by √{width} itself: leave out your factor."
    if width == s.sizes.d_model and heads > 1 and core.weights.dim() < 4:
        advice = f"The heads are never split: one head takes all {width} numbers. Split them first."
    ratio = slope * width**0.5
    times = "half" if _near(ratio, 0.5) else f"{ratio:.3g} times"
    return Finding(
        f"{_divisor(s.sizes, slope, width)} Your scores are {times} as large as they should be. "
        f"{advice}",
        torch.tensor([slope, width**-0.5]),
        "the factor found, and the right one",
    )


def _divisor(sizes, slope, width):
    """What was done in place of the division by √head_dim, in words."""
    if _near(slope, 1):
        return "The scores are not divided at all (T5 does so on purpose, and starts smaller)."
    named = {
        "the width of a head": width,
        "d_model": sizes.d_model,
        "the number of tokens": sizes.tokens,
        "the batch size": sizes.batch,
        "the number of heads": sizes.num_heads or 1,
        "the context length": sizes.context or 1,
    }
    for words, size in named.items():
        done = {
            f"divide by √{size} ({words}), not by √head_dim": size**-0.5,
            f"divide by {size} ({words}), not by √head_dim": 1 / size,
            f"multiply by √{size} ({words}) where you should divide": size**0.5,
            f"multiply by {size} ({words}) where you should divide by √head_dim": size,
        }
        if found := [what for what, value in done.items() if _near(slope, value)]:
            return f"You {found[0]}."
    return f"The scores are q·k times {slope:.3g} instead of {width**-0.5:.3g}."


# --- positions in the scores ----------------------------------------------------------------


@rule("distance-bias")
def distance_bias(s):
    """What is added to the scores grows with the distance: far tokens are preferred.

    scores = scores + slopes * (row - column)       # a minus is missing
    """
    for a, b in zip(*s.both_cores, strict=False):
        told = a in square(s) and not _learned(s, a) and _change(a, b)
        slopes = _slopes_by_distance(a, b) if told else []
        if slopes and min(slopes) > 1e-3:
            return Finding(
                f"What is added to the scores grows by {min(slopes):.3g} to {max(slopes):.3g} for "
                f"each token of distance, so that far tokens are preferred to near ones. A bias by "
                f"distance is taken away: scores - slopes * (row - column).",
                torch.tensor(slopes),
                "by how much it grows, by head",
            )
    return None


def _slopes_by_distance(a, b):
    """[by how much what is added grows with each token of distance] by head; [] if not evenly."""
    known = (a.scores > -1e3) & (b.scores > -1e3)
    added = [
        _centred(core.scores - _change(a, b) * core.products.reshape(core.scores.shape), known)
        for core in (a, b)
    ]
    at = torch.arange(known.shape[-1], device=known.device)
    far = _centred((at[:, None] - at).abs().to(added[0]).expand_as(known), known)
    if not torch.allclose(added[0][known], added[1][known], atol=1e-4):
        return []  # it differs from input to input
    heads = zip(*(t.reshape(-1, *t.shape[-2:]) for t in (added[0], far, known)), strict=True)
    slopes = [factor(f[k], bias[k], 1e-2) for bias, f, k in heads]
    return [] if None in slopes else list(dict.fromkeys(round(slope, 6) for slope in slopes))


# --- rotary positions -----------------------------------------------------------------------


@rule("rotary")
def rotary(s):
    """Queries and keys are turned by position, but not so that the distance alone counts.

    queries = queries * cos + rotate_half(queries) * sin
    keys = keys * cos - rotate_half(keys) * sin     # turned the other way
    """
    graph = s.graphs[1]
    turns = [(c, [_turned(graph, operand)[1] for operand in c.operands]) for c in square(s, 1)]
    if not any(queries or keys for _, (queries, keys, _) in turns):
        return None
    equal = s.capture(s.x[:, :1].expand_as(s.x).contiguous())  # nothing but the position differs
    found = (_not_by_distance(s, equal, core) for core in cores(equal))
    values = [core for core, (*_, values) in turns if values and not _turned_back(graph, core)]
    said = "The values are turned by position too, and what comes out is not turned back: a turned "
    said += "value says where it stood, not how far away. Turn queries and keys alone."
    return next(filter(None, found), None) or (Finding(said) if values else None)


def _turned_back(graph, core):
    """Whether the context is turned by position on its way to the next projection."""
    later = [(kept, at) for at in graph.projections for kept in graph.calls[at].inputs]
    return any(_turned(graph, (kept, at), core.at)[1] for kept, at in later if at > core.at)


def _not_by_distance(s, graph, core):
    """The Finding on the scores of equal tokens, or None."""
    products = (core.queries @ core.keys.mT).flatten(0, -3)  # (…, tokens, tokens)
    tokens, least = products.shape[-1], 2e-2 * products.abs().max()  # bfloat16 tables too
    if products.shape[-2] != tokens or math.isqrt(tokens) ** 2 == tokens:
        return None  # places in a square grid have two distances
    if not all(_evenly_turned(s, graph, operand) for operand in core.operands[:2]):
        return None
    diagonals = [products.diagonal(d, -2, -1) for d in range(1 - tokens, tokens)]
    said = "scores at the same distance differ"
    if (products - products[..., :1, :1]).abs().max() <= least:
        said = "all scores are the same: every position is turned by the same angle"
    elif all((d - d[..., :1]).abs().max() < least for d in diagonals):
        return None
    return Finding(
        f"Queries or keys are turned by position, but where all tokens are equal, {said}. Turn "
        f"both, by the same angles: the pair (a, b) becomes (a cos - b sin, a sin + b cos), with "
        f"an angle for each position and pair.",
        products[0],
        "q·k where all tokens are equal, sentence 0, head 0",
    )


def _turned(graph, operand, after=-1):
    """([what is multiplied by fixed numbers], [the turns by position: cosine + i sine]).

    after: the index of the call behind which to look.
    """
    moving, fixed = [], []
    for at in (at for at in graph.back(*operand)[0] if at > after):
        given = sorted(graph.calls[at].inputs, key=lambda k: k.tensor.requires_grad)
        grads = [k.tensor.requires_grad for k in given]
        if grads == [False, True] and given[0].value.numel() > 1:
            fixed.append(given[0].value)
            moving.append(given[1].value)
    real = [a.float() for a in fixed if a.is_floating_point()]
    pairs = [(a, b) for a, b in combinations(real, 2) if a.shape == b.shape]
    turns = [torch.complex(a, b) for a, b in pairs if ((a * b).abs() > 1e-2).any()]
    turns += [a for a in fixed if a.is_complex()]
    return moving, [turn for turn in turns if (turn.abs() - 1).abs().max() < 1e-2]


def _evenly_turned(s, graph, operand):
    """Whether rows that are all the same are turned by angles that grow evenly, and no more."""
    moving, turns = ([token_axes(t, s.sizes) for t in some] for some in _turned(graph, operand))
    same = all(any((t - t[:1]).abs().max() < 1e-4 for t in read) for read in moving)
    steps = [t[1:] * t[:-1].conj() for read in turns for t in read]
    return same and all((step - step[:1]).abs().max() < 2e-2 for step in steps)
