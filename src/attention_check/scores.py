"""From scores to weights: the softmax's axis, the sums of the weights, the scale, rotary."""

import math
from itertools import combinations

import torch

from .cores import POSITIVE, cores
from .flow import LAYOUT, SCALING, SOFT
from .layout import token_axes
from .report import Finding, listed


def softmax_axis(s):
    """The weights add up to one along another axis than the keys'."""
    if not square(s) and "heads-attend-heads" not in s.found:
        doubt = ""
        if s.constant > 1e-4:
            doubt = ", and equal tokens give outputs that differ (positions do that too)"
        missing = "weights are (tokens, tokens)" if s.cores else "softmax is in sight"
        s.tell(f"layout and sums of the weights not judged, because no {missing}{doubt}")
    for core in square(s):
        if core.fused is None and (axis := wrong_axis(s, core)):
            weights = core.normalised if core.normalised is not None else core.weights
            sums = weights.reshape(-1, *weights.shape[-2:])[0].sum(dim=-1)
            what = {"queries": "Columns sum to one, not rows"}.get(
                axis, f"The weights sum to one over the {axis}, not along a row of keys"
            )
            mixes = " One sentence sees another that way." if axis.startswith("batch") else ""
            advice = "Use dim=-1 in the softmax."
            if core.last_axis and axis == "queries":
                advice = (
                    "The softmax runs along the last axis, and the values are added up along the "
                    "other: weights (queries, keys) @ values (keys, head_dim), neither turned."
                )
            return Finding(
                "softmax-axis",
                f"{what}: the rows of the first head sum to "
                f"{listed([f'{v:.2f}' for v in sums.tolist()])}.{mixes} {advice}",
                sums,
                "sum of each row of weights, sentence 0, head 0",
            )
    return None


def softmax_twice(s):
    """The softmax of a softmax."""
    for core in s.cores:
        for at in core.path:
            call = s.flow.calls[at]
            if call.name in SOFT and (first := _softened(s.flow, call.inputs[0], at)):
                where = f" Look at `{first.line}`." if first.line else ""
                return Finding(
                    "softmax-twice",
                    f"The softmax is taken twice: its input lies between 0 and 1 already, so the "
                    f"weights come out nearly equal, and hidden pairs are seen. Take it once."
                    f"{where}",
                    core.weights.reshape(-1, *core.weights.shape[-2:])[0],
                    "the weights of the first head",
                )
            after = {s.flow.calls[later].name for later in core.path if later > at}
            if call.name == "dropout" and after & {*SOFT, "exp"}:
                s.note(
                    "dropout-on-scores",
                    "Dropout acts on the scores, before the softmax: a dropped score becomes 0, "
                    "which is a score like any other. The usual place is on the weights.",
                )
    return None


def _softened(flow, kept, before):
    """The softmax behind a tensor, through layout, factors and masks alone; or None."""
    while (at := flow.maker(kept, before)) is not None:
        call = flow.calls[at]
        if call.name in SOFT:
            return call
        if call.name not in LAYOUT | SCALING | _MASKING or not call.inputs:
            return None
        kept, before = max(call.inputs, key=lambda k: (k.value.dim(), k.value.numel())), at
        if not kept.value.is_floating_point():
            kept = next((k for k in call.inputs if k.value.is_floating_point()), kept)
    return None


_MASKING = {"masked_fill", "masked_fill_", "where", "add", "sub", "add_", "sub_"}


def not_normalised(s):
    """The weights that meet the values do not add up to one."""
    for core in square(s):
        if core.fused is not None:
            continue
        if negative := _negative(s, core):
            return negative
        if sums_to_one(core.weights, -1):
            continue
        if wrong_axis(s, core) and not _changed_after(core):
            continue
        if core.softmaxes > 1:
            s.tell("the sum of the weights was not judged, because there are several softmaxes")
            continue
        names = {s.flow.calls[at].name for at in core.path}
        sums = core.weights.reshape(-1, *core.weights.shape[-2:])[0].sum(dim=-1)
        if _changed_after(core):
            return Finding("not-normalised", _after(core, sums), sums, "sum of each row of weights")
        if core.normalised is None and not names & POSITIVE:
            return Finding(
                "not-normalised",
                "No softmax: the raw scores meet the values, and their rows sum to "
                f"{listed([f'{v:.2f}' for v in sums.tolist()])}. weights = "
                "scores.softmax(dim=-1).",
                sums,
                "sum of each row of weights",
            )
        s.tell(
            "the sum of the weights was not judged, because the softmax cannot be seen or has "
            "an entry for no token"
        )
    return None


def _negative(s, core):
    """Weights below zero, where something else was done to the scores than a softmax."""
    names = {s.flow.calls[at].name for at in core.path}
    logarithm = "log_softmax" in names
    done = names & (POSITIVE - {"softmax"}) or sums_to_one(core.weights, -1)
    other = core.normalised is None and "softmax" not in names and done
    if core.softmaxes > 1 or not (logarithm or other) or (core.weights >= 0).all():
        return None
    why = "log_softmax gives the logarithms of weights" if logarithm else "no softmax is taken"
    heads = core.weights.flatten(0, -3) if core.weights.dim() > 2 else core.weights[None]
    lowest = heads[heads.amin(dim=(1, 2)).argmin()]
    return Finding(
        "not-normalised",
        f"Some weights are negative, down to {lowest.min():.2f}: {why}. "
        f"weights = scores.softmax(dim=-1).",
        lowest,
        "the weights of one head",
    )


def _changed_after(core):
    """Whether the weights are changed between the softmax and the values."""
    return core.normalised is not None and not torch.allclose(
        core.weights, core.normalised, atol=1e-5
    )


def divided_after(core):
    """The one factor between what the softmax gave and the weights; None where there is none."""
    if core.normalised is None:
        return None
    ratio = core.weights / core.normalised
    ratio = ratio[core.normalised > 1e-6]
    one = ratio.max() - ratio.min() < 1e-4 * ratio.abs().max()
    return ratio.mean().item() if one else None


def _after(core, sums):
    if factor := divided_after(core):
        return (
            f"Each row of weights sums to {sums[0]:.3g} instead of 1: they are multiplied by "
            f"{factor:.3g} after the softmax. Divide the scores by √head_dim *before* it."
        )
    what = "set to zero" if (core.weights == 0).any() else "changed"
    return (
        f"The rows of weights sum to {listed([f'{v:.3g}' for v in sums.tolist()])} when they "
        f"meet the values: weights are {what} after the softmax. Put -inf in the scores "
        f"before it, so that the rest still sums to one."
    )


def wrong_axis(s, core):
    """The axis over which a core's softmax runs, in words, or None where it is the keys'."""
    weights = core.normalised if core.normalised is not None else core.weights
    if sums_to_one(weights, -1) or core.softmaxes > 1:
        return None
    if sums_to_one(weights.flatten(-2), -1):
        return "queries and keys together"
    if abs(weights.sum().item() - 1) < 1e-3:
        return "batch, heads, queries and keys together"
    for axis in range(weights.dim() - 1):
        if sums_to_one(weights, axis) and weights.shape[axis] > 1:
            return _axis_name(s, weights, axis)
    return None


def _axis_name(s, weights, axis):
    if axis == weights.dim() - 2:
        return "queries"
    size, batch = weights.shape[axis], s.sizes.batch
    if size == batch:
        return "batch"
    if size == s.sizes.num_heads or weights.dim() == 4:
        return "heads"
    return "batch or heads"


def sums_to_one(weights, axis):
    """Whether the numbers along an axis add up to one, or to zero in empty rows."""
    sums = weights.sum(dim=axis)
    return bool(((sums - 1).abs().lt(1e-3) | sums.eq(0)).all()) and bool((sums != 0).any())


def square(s, capture=0):
    """The cores of a capture whose weights are (…, tokens, tokens), or (…, heads, heads)."""
    heads = "heads-attend-heads" in s.found  # by mistake
    shapes = [(core, core.weights.shape[-2:]) for core in s.both_cores[capture]]
    return [
        core
        for core, (rows, columns) in shapes
        if rows == columns and (heads or rows == s.sizes.tokens)
    ]


# --- scale ----------------------------------------------------------------------------------


def scale(s):
    """The scores are not q·k / √head_dim."""
    first, second = s.both_cores
    cores = [(a, b) for a, b in zip(first, second, strict=False) if a.width > 0]
    if "length" in s.found:  # a fixed length may cut the tokens in another way
        cores = [(a, b) for a, b in cores if a in square(s)]
    if not cores:
        s.tell("scale not judged, because the softmax cannot be seen")
        return None
    for a, b in cores:
        slope = _slope(s, a, b) if a.softmaxes < 2 else None
        if slope is None:
            s.tell("scale not judged, because the scores are not q·k times one number")
            continue
        expected = a.width**-0.5
        if abs(slope / expected - 1) < 0.01:
            continue
        if abs(slope - 1) < 0.01 and a.fused is None and (divided_after(a) or 1) < 0.99:
            continue  # the factor stands after the softmax, and is reported there
        if abs(slope - 1) < 0.01 and _biased(a):
            s.tell(
                "scale not judged, because more than a factor stands between products and softmax"
            )
            continue
        origins = [s.flow.origin(*operand) for operand in a.operands[:2]]
        turned = [_turn(s.flow, *operand) for operand in a.operands[:2]]
        if all(turned) and not all(s.flow.pure(origin) for origin in origins):
            slope *= turned[0] * turned[1]
            if abs(slope / expected - 1) < 0.01:
                continue
        elif not all(s.flow.pure(origin) for origin in origins):
            turned = []
        if not all(turned) or not turned or _learned(s, origins):
            s.tell(
                "scale not judged, because something else (positions, a norm, a learned "
                "factor) stands between the projections and the scores"
            )
            continue
        twice = a.fused is not None and abs(a.scaled / expected - 1) < 0.01
        return _scaled(s, slope, expected, a.width, twice)
    return None


def _turn(flow, kept, before):
    """The factor behind a rotation of projected numbers, which keeps their length; else None."""
    origin = flow.origin(kept, before)
    if flow.pure(origin):
        return 1.0
    length = kept.value.norm() / abs(origin.factor)
    path, _ = flow.back(kept, before)
    for at in path:
        for part in flow.calls[at].inputs:
            behind = flow.origin(part, at)
            alike = part.value.numel() == kept.value.numel() and flow.pure(behind)
            if alike and (part.value.norm() / length - 1).abs() < 1e-4:
                return behind.factor
    return None


def _slope(s, a, b):
    """scores = slope · (q·k of the projections), from the change between two inputs, or None."""
    factor = 1.0
    for operand in a.operands[:2]:
        factor *= s.flow.origin(*operand).factor
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


def _learned(s, origins):
    if any(origin.learned for origin in origins):
        return True
    return any(
        weight.numel() in (1, s.sizes.num_heads) and not name.endswith("bias")
        for name, weight in s.weights.items()
    )


def _scaled(s, slope, expected, width, twice=False):
    ratio = slope / expected
    name = f"√{width}"
    times = f"{ratio:.3g} times as large" if ratio > 1 else f"{1 / ratio:.3g} times too small"
    if abs(ratio - 0.5) < 0.005:
        times = "half as large"
    advice = f"Each head has {width} numbers: divide by {name} = {width**0.5:.3g}."
    if twice:
        advice = f"scaled_dot_product_attention divides by {name} itself: leave out your factor."
    return Finding(
        "scale",
        f"{_divisor(s, slope, width)} Your scores are {times} as they should be. {advice}"
        if "times too small" not in times
        else f"{_divisor(s, slope, width)} Your scores are {times}. {advice}",
        torch.tensor([slope, expected]),
        "the factor found, and the right one",
    )


def _divisor(s, slope, width):
    sizes = s.sizes
    named = [
        (1.0, "The scores are not divided at all (T5 does so on purpose, and starts smaller)."),
        (width**0.5, f"You multiply by √{width} where you should divide."),
        (1 / width, f"You divide by {width}, the width of a head, not by its root."),
        (sizes.d_model**-0.5, f"You divide by √{sizes.d_model} (d_model), not by √head_dim."),
        (1 / sizes.d_model, f"You divide by {sizes.d_model}, which is d_model."),
        (sizes.tokens**-0.5, f"You divide by √{sizes.tokens}, the number of tokens."),
        (1 / sizes.tokens, f"You divide by {sizes.tokens}, the number of tokens."),
        (sizes.batch**-0.5, f"You divide by √{sizes.batch}, the batch size."),
    ]
    if sizes.num_heads:
        named += [
            (sizes.num_heads**-0.5, f"You divide by √{sizes.num_heads}, the number of heads."),
            (1 / sizes.num_heads, f"You divide by {sizes.num_heads}, the number of heads."),
        ]
    if sizes.context:
        named.append((sizes.context**-0.5, f"You divide by √{sizes.context}, the context length."))
    named += [
        (float(width), f"You multiply by {width} where you should divide by its root."),
        (sizes.d_model**0.5, f"You multiply by √{sizes.d_model} where you should divide."),
        (1 / math.sqrt(width) / width**0.5, "The scores are divided twice by √head_dim."),
    ]
    for value, words in named:
        if abs(slope / value - 1) < 0.01:
            return words
    return f"The scores are q·k times {slope:.3g} instead of {width**-0.5:.3g}."


# --- rotary positions -----------------------------------------------------------------------


def rotary(s):
    """Queries and keys are turned by position, but not so that the distance alone counts.

    Judged only where that follows: from rows that are the same before they are turned, by
    angles that grow evenly from token to token, with nothing but numbers after that.
    """
    seen = square(s, capture=1)
    if not any(_turns(s, s.flows[1], core, o) for core in seen for o in (0, 1)):
        return None
    if any(_turns(s, s.flows[1], core, 2) for core in seen):
        s.note(
            "rotary",
            "The values are turned by position too. Usual is to turn queries and keys alone: "
            "a turned value says where it stood, not how far away.",
        )
    flow = s.capture(s.x[:, :1].expand_as(s.x).contiguous())  # nothing but the position differs
    for core in cores(flow):
        products = (core.queries @ core.keys.mT).flatten(0, -3)  # (…, tokens, tokens)
        tokens, least = products.shape[-1], 2e-2 * products.abs().max()  # bfloat16 tables too
        if products.shape[-2] != tokens or math.isqrt(tokens) ** 2 == tokens:
            continue  # places in a square grid have two distances
        if not all(_evenly_turned(s, flow, core, operand) for operand in (0, 1)):
            continue
        wrong = "all scores are the same: every position is turned by the same angle"
        if (products - products[..., :1, :1]).abs().max() > least:
            diagonals = [products.diagonal(d, -2, -1) for d in range(1 - tokens, tokens)]
            if all((d - d[..., :1]).abs().max() < least for d in diagonals):
                continue
            wrong = "scores at the same distance differ"
        return Finding(
            "rotary",
            f"Queries or keys are turned by position, but where all tokens are equal, {wrong}. "
            f"Turn both, by the same angles: the pair (a, b) becomes (a cos - b sin, "
            f"a sin + b cos), with an angle for each position and pair.",
            products[0],
            "q·k where all tokens are equal, sentence 0, head 0",
        )
    return None


def _multiplied(s, flow, core, operand):
    """(fixed numbers, what they multiply), for queries (0), keys (1) or values (2)."""
    path, _ = flow.back(*core.operands[operand])
    for at in path:
        if flow.calls[at].name not in SCALING or at >= len(s.flow.calls):
            continue
        pairs = zip(flow.calls[at].inputs, s.flow.calls[at].inputs, strict=False)
        pairs = [(one.value, torch.equal(one.value, other.value)) for one, other in pairs]
        fixed = [value for value, same in pairs if same and value.numel() > 1]
        moving = [value for value, same in pairs if not same]
        if len(fixed) == len(moving) == 1:
            yield fixed[0], moving[0]


def _turns(s, flow, core, operand):
    """The fixed turns of queries, keys or values, as cosine + i sine."""
    fixed = [value for value, _ in _multiplied(s, flow, core, operand)]
    turns = [a for a in fixed if a.is_complex() and (a.abs() - 1).abs().max() < 1e-2]
    real = [a for a in fixed if not a.is_complex() and ((a.abs() > 0.01) & (a.abs() < 0.99)).any()]
    for a, b in combinations(real, 2):
        if a.shape == b.shape and (a * a + b * b - 1).abs().max() < 1e-2:
            turns.append(torch.complex(a.float(), b.float()))
    return turns


def _evenly_turned(s, flow, core, operand):
    """Whether rows that are all the same are turned by angles that grow evenly, and no more."""
    for _, moving in _multiplied(s, flow, core, operand):
        rows = token_axes(moving, s.sizes)
        if not any((t - t[:1]).abs().max() < 1e-4 for t in rows):
            return False
    for turn in _turns(s, flow, core, operand):
        for t in token_axes(turn, s.sizes):
            step = t[1:] * t[:-1].conj()
            if (step - step[:1]).abs().max() > 2e-2:
                return False
    return True
