"""From products to scores: the factor, and rotary positions."""

import math
from itertools import combinations

import torch

from ..findings import Finding, Note, Unjudged
from ..stages import cores
from ..trust import square, token_axes
from .registry import rule
from .weights import divided_after


@rule("scale")
def scale(s):
    """The scores are not q·k / √head_dim.

    scores = queries @ keys.mT / d_model**0.5
    """
    first, second = s.both_cores
    pairs = [(a, b) for a, b in zip(first, second, strict=False) if a.width > 0]
    if "tokens" in s.failed:  # a fixed length may cut the tokens in another way
        pairs = [(a, b) for a, b in pairs if a in square(s)]
    answers = [Unjudged("the softmax cannot be seen")] if not pairs else []
    for a, b in pairs:
        answer = _scale_of(s, a, b)
        if isinstance(answer, Finding):
            return answer
        answers.append(answer)
    return answers


def _scale_of(s, a, b):
    """The Finding or the Unjudged on one core, of which b is the run on other input; or None."""
    slope = _slope(s, a, b) if a.softmaxes < 2 else None
    if slope is None:
        return Unjudged("the scores are not q·k times one number")
    expected = a.width**-0.5
    if abs(slope / expected - 1) < 0.01:
        return None
    if abs(slope - 1) < 0.01:
        if a.fused is None and (divided_after(a) or 1) < 0.99:
            return None  # the factor stands after the softmax, and is reported there
        if _biased(a):
            return Unjudged("more than a factor stands between products and softmax")
    origins = [s.graph.origin(*operand) for operand in a.operands[:2]]
    turned = [_turn(s.graph, *operand) for operand in a.operands[:2]]
    if not all(s.graph.pure(origin) for origin in origins):
        slope *= math.prod(turn or 0 for turn in turned)
        if abs(slope / expected - 1) < 0.01:
            return None
    if not all(turned) or _learned(s, a) or any(origin.learned for origin in origins):
        return Unjudged(
            "something else (positions, a norm, a learned factor) stands between the projections "
            "and the scores"
        )
    return _scaled(s, slope, expected, a)


def _learned(s, core):
    """Whether a learned factor, one for all heads or one for each, stands behind the scores."""
    leaves = [k.tensor for at in core.path for k in s.graph.calls[at].inputs if k.tensor.is_leaf]
    return any(t.requires_grad and t.numel() in (1, s.sizes.num_heads) for t in leaves)


def _turn(graph, kept, before):
    """The factor behind a rotation of projected numbers, which keeps their length; else None."""
    origin = graph.origin(kept, before)
    if graph.pure(origin):
        return 1.0
    length = kept.value.norm() / abs(origin.factor)
    path, _ = graph.back(kept, before)
    for at in path:
        for part in graph.calls[at].inputs:
            behind = graph.origin(part, at)
            alike = part.value.numel() == kept.value.numel() and graph.pure(behind)
            if alike and (part.value.norm() / length - 1).abs() < 1e-4:
                return behind.factor
    return None


def _slope(s, a, b):
    """scores = slope · (q·k of the projections), from the change between two inputs, or None."""
    factor = math.prod(s.graph.origin(*operand).factor for operand in a.operands[:2])
    if a.fused is not None:
        return a.scaled * factor
    if a.scores is None or b.scores is None or a.products.numel() != a.scores.numel():
        return None
    change = _fit(a, b)
    return None if change is None else change * factor


def _fit(a, b):
    """The slope of the change in the scores on the change in the products."""
    products = a.products - b.products
    scores = a.scores - b.scores
    for candidate in (products, products.mT):
        if candidate.numel() != scores.numel():
            continue
        x, y = candidate.reshape(scores.shape).double(), scores.double()
        known = (a.scores > -1e3) & (b.scores > -1e3) & (y.abs() > 1e-7)
        if known.sum() < 3:
            return None
        x, y = _centred(x, known)[known], _centred(y, known)[known]
        slope = (x @ y) / (x @ x).clamp_min(1e-12)
        if (y - slope * x).norm() < 1e-2 * y.norm():
            return slope.item()
    return None


def _biased(core):
    """Whether something that differs from pair to pair is added to the products."""
    if core.scores is None or core.products.shape != core.scores.shape:
        return False
    known = core.scores > -1e3
    rest = torch.where(known, core.scores - core.products, 0.0).double()
    rest = torch.where(known, _centred(rest, known), 0.0)
    return bool(rest.abs().max() > 1e-3)


def _centred(numbers, known):
    """Without each row's mean, so that a row's maximum may have been taken away."""
    kept = torch.where(known, numbers, 0.0)
    return numbers - kept.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp_min(1)


def _scaled(s, slope, expected, core):
    ratio, width = slope / expected, core.width
    advice = f"Each head has {width} numbers: divide by √{width} = {width**0.5:.3g}."
    if core.fused is not None and abs(core.scaled / expected - 1) < 0.01:
        advice = f"scaled_dot_product_attention divides by √{width} itself: leave out your factor."
    times = f"{ratio:.3g} times as large as they should be"
    if ratio <= 1:
        times = f"{1 / ratio:.3g} times too small"
    if abs(ratio - 0.5) < 0.005:
        times = "half as large as they should be"
    if width == s.sizes.d_model and (s.sizes.num_heads or 1) > 1 and core.weights.dim() < 4:
        times = f"{times}: the heads are never split, and one head takes all {width} numbers"
    return Finding(
        f"{_divisor(s, slope, width)} Your scores are {times}. {advice}",
        torch.tensor([slope, expected]),
        "the factor found, and the right one",
    )


def _divisor(s, slope, width):
    """What was done in place of the division by √head_dim, in words."""
    sizes = s.sizes
    others = [
        (sizes.tokens, "the number of tokens"),
        (sizes.batch, "the batch size"),
        (sizes.num_heads, "the number of heads"),
        (sizes.context, "the context length"),
    ]
    named = [
        (1.0, "The scores are not divided at all (T5 does so on purpose, and starts smaller)."),
        (width**0.5, f"You multiply by √{width} where you should divide."),
        (1 / width, f"You divide by {width}, the width of a head, not by its root."),
        (sizes.d_model**-0.5, f"You divide by √{sizes.d_model} (d_model), not by √head_dim."),
        (1 / sizes.d_model, f"You divide by {sizes.d_model}, which is d_model."),
    ]
    for size, words in others:
        if size:
            named.append((size**-0.5, f"You divide by √{size}, {words}."))
            named.append((1 / size, f"You divide by {size}, {words}."))
    named += [
        (float(width), f"You multiply by {width} where you should divide by its root."),
        (sizes.d_model**0.5, f"You multiply by √{sizes.d_model} where you should divide."),
    ]
    for value, words in named:
        if abs(slope / value - 1) < 0.01:
            return words
    return f"The scores are q·k times {slope:.3g} instead of {width**-0.5:.3g}."


# --- rotary positions -----------------------------------------------------------------------


@rule("rotary")
def rotary(s):
    """Queries and keys are turned by position, but not so that the distance alone counts.

    queries = queries * cos + rotate_half(queries) * sin
    keys = keys * cos - rotate_half(keys) * sin     # turned the other way
    """
    # Judged only where that follows: from rows that are the same before they are turned, by
    # angles that grow evenly from token to token, with nothing but numbers after that.
    seen = square(s, 1)
    if not any(_turns(s, s.graphs[1], core, o) for core in seen for o in (0, 1)):
        return None
    notes = [_VALUES_TOO] if any(_turns(s, s.graphs[1], core, 2) for core in seen) else []
    graph = s.capture(s.x[:, :1].expand_as(s.x).contiguous())  # nothing but the position differs
    for core in cores(graph):
        if wrong := _not_by_distance(s, graph, core):
            said, products = wrong
            return [
                *notes,
                Finding(
                    f"Queries or keys are turned by position, but where all tokens are equal, "
                    f"{said}. Turn both, by the same angles: the pair (a, b) becomes (a cos - b "
                    f"sin, a sin + b cos), with an angle for each position and pair.",
                    products[0],
                    "q·k where all tokens are equal, sentence 0, head 0",
                ),
            ]
    return notes


_VALUES_TOO = Note(
    "The values are turned by position too. Usual is to turn queries and keys alone: "
    "a turned value says where it stood, not how far away.",
)


def _not_by_distance(s, graph, core):
    """(what is wrong with the scores of equal tokens, their products), or None."""
    products = (core.queries @ core.keys.mT).flatten(0, -3)  # (…, tokens, tokens)
    tokens, least = products.shape[-1], 2e-2 * products.abs().max()  # bfloat16 tables too
    if products.shape[-2] != tokens or math.isqrt(tokens) ** 2 == tokens:
        return None  # places in a square grid have two distances
    if not all(_evenly_turned(s, graph, core, operand) for operand in (0, 1)):
        return None
    if (products - products[..., :1, :1]).abs().max() <= least:
        return "all scores are the same: every position is turned by the same angle", products
    diagonals = [products.diagonal(d, -2, -1) for d in range(1 - tokens, tokens)]
    if all((d - d[..., :1]).abs().max() < least for d in diagonals):
        return None
    return "scores at the same distance differ", products


def _multiplied(s, graph, core, operand):
    """(fixed numbers, what they multiply), for queries (0), keys (1) or values (2)."""
    path, _ = graph.back(*core.operands[operand])
    for at in path:
        if at >= len(s.graph.calls) or not _is_product(graph.calls[at]):
            continue
        pairs = zip(graph.calls[at].inputs, s.graph.calls[at].inputs, strict=False)
        pairs = [(one.value, torch.equal(one.value, other.value)) for one, other in pairs]
        fixed = [value for value, same in pairs if same and value.numel() > 1]
        moving = [value for value, same in pairs if not same]
        if len(fixed) == len(moving) == 1:
            yield fixed[0], moving[0]


def _is_product(call):
    """Whether a call gives the product of two tensors, entry by entry."""
    if len(call.inputs) != 2 or not hasattr(call.output, "value"):
        return False
    first, second = (kept.value for kept in call.inputs)
    try:
        product = first * second
    except RuntimeError:
        return False
    made = call.output.value
    alike = product.shape == made.shape and product.dtype == made.dtype
    return alike and torch.allclose(product, made)


def _turns(s, graph, core, operand):
    """The fixed turns of queries, keys or values, as cosine + i sine."""
    fixed = [value for value, _ in _multiplied(s, graph, core, operand)]
    turns = [a for a in fixed if a.is_complex() and (a.abs() - 1).abs().max() < 1e-2]
    real = [a for a in fixed if not a.is_complex() and ((a.abs() > 0.01) & (a.abs() < 0.99)).any()]
    for a, b in combinations(real, 2):
        if a.shape == b.shape and (a * a + b * b - 1).abs().max() < 1e-2:
            turns.append(torch.complex(a.float(), b.float()))
    return turns


def _evenly_turned(s, graph, core, operand):
    """Whether rows that are all the same are turned by angles that grow evenly, and no more."""
    for _, moving in _multiplied(s, graph, core, operand):
        rows = token_axes(moving, s.sizes)
        if not any((t - t[:1]).abs().max() < 1e-4 for t in rows):
            return False
    for turn in _turns(s, graph, core, operand):
        for t in token_axes(turn, s.sizes):
            step = t[1:] * t[:-1].conj()
            if (step - step[:1]).abs().max() > 2e-2:
                return False
    return True
