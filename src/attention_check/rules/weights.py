"""The weights: along which axis they sum to one, and whether they do."""

from ..findings import Finding, Unjudged
from ..graph import SOFTMAX
from ..trust import logarithms, off_axis, unseen, unsummed
from ..words import listed
from .registry import rule


@rule("softmax-axis")
def softmax_axis(s):
    """The softmax runs over another axis than the keys'.

    weights = scores.softmax(dim=-2)    # over the queries: columns sum to one
    """
    if reason := unseen(s):
        return Unjudged(reason)
    if not (found := off_axis(s)):
        return None
    core, axis = found
    weights = core.normalised if core.normalised is not None else core.weights
    sums = _first(weights).sum(dim=-1)
    what = f"The weights sum to one over the {axis}, not along a row of keys"
    if axis == "queries":
        what = "Columns sum to one, not rows"
    mixes = " One sentence sees another that way." if axis.startswith("batch") else ""
    advice = "Use dim=-1 in the softmax."
    if core.last_axis and axis == "queries":
        advice = (
            "The softmax runs along the last axis, and the values are added up along the "
            "other: weights (queries, keys) @ values (keys, head_dim), neither turned."
        )
    return Finding(
        f"{what}: the rows of the first head sum to {_in_words(sums)}.{mixes} {advice}",
        sums,
        "sum of each row of weights, sentence 0, head 0",
    )


def _first(weights):
    """The weights of sentence 0, head 0: (queries, keys)."""
    return weights.reshape(-1, *weights.shape[-2:])[0]


def _in_words(sums):
    return listed([f"{value:.2f}" for value in sums.tolist()])


@rule("softmax-twice")
def softmax_twice(s):
    """The softmax is taken of what a softmax gave.

    weights = scores.softmax(dim=-1)
    weights = self.softmax(weights)
    """
    for core in s.cores:
        for at in core.path:
            call = s.graph.calls[at]
            if call.name in SOFTMAX and (first := _softened(s.graph, call.inputs[0], at)):
                where = f" Look at `{first.line}`." if first.line else ""
                return Finding(
                    f"The softmax is taken twice: its input lies between 0 and 1 already, so the "
                    f"weights come out nearly equal, and hidden pairs are seen. Take it once."
                    f"{where}",
                    _first(core.weights),
                    "the weights of the first head",
                )
    return None


def _softened(graph, kept, before):
    """The softmax behind a tensor, through layout, factors and masks alone; or None."""
    while (at := graph.maker(kept, before)) is not None:
        call = graph.calls[at]
        if call.name in SOFTMAX:
            return call
        before, carried = at, graph.carried(at)
        kept = carried[0][0] if carried else _masked(call)
        if kept is None:
            return None
    return None


def _masked(call):
    """The input of which a call keeps most numbers, or adds what is the same to; or None."""
    made = [kept.value for kept in call.inputs if kept.value.is_floating_point()]
    if not made or not hasattr(call.output, "value"):
        return None
    main = max(call.inputs, key=lambda k: (k.value.is_floating_point(), k.value.numel()))
    out = call.output.value
    if main.value.shape != out.shape:
        return None
    change = out - main.value
    same = change[change.isfinite()].round(decimals=6).unique().numel()
    return main if same <= 2 else None


@rule("not-normalised", unless={"softmax-twice"})
def not_normalised(s):
    """The weights that meet the values do not add up to one.

    weights = scores.softmax(dim=-1)
    weights = weights.masked_fill(hidden, 0.0)      # after the softmax
    """
    reason = unseen(s)
    answers = [Unjudged(reason)] if reason else []
    for core, why in unsummed(s):
        if why in ("several", "unseen"):
            answers.append(Unjudged(_UNSEEN[why]))
        else:
            return _SAID[why](s, core)
    return answers


_UNSEEN = {
    "several": "there are several softmaxes",
    "unseen": "the softmax cannot be seen or has an entry for no token",
}


def _negative(s, core):
    why = "no softmax is taken"
    if logarithms(s, core):
        why = "log_softmax gives the logarithms of weights"
    heads = core.weights.flatten(0, -3) if core.weights.dim() > 2 else core.weights[None]
    lowest = heads[heads.amin(dim=(1, 2)).argmin()]
    return Finding(
        f"Some weights are negative, down to {lowest.min():.2f}: {why}. "
        f"weights = scores.softmax(dim=-1).",
        lowest,
        "the weights of one head",
    )


def _raw(s, core):
    sums = _first(core.weights).sum(dim=-1)
    return Finding(
        f"No softmax: the raw scores meet the values, and their rows sum to {_in_words(sums)}. "
        f"weights = scores.softmax(dim=-1).",
        sums,
        "sum of each row of weights",
    )


def _changed(s, core):
    sums = _first(core.weights).sum(dim=-1)
    if factor := divided_after(core):
        said = (
            f"Each row of weights sums to {sums[0]:.3g} instead of 1: they are multiplied by "
            f"{factor:.3g} after the softmax. Divide the scores by √head_dim *before* it."
        )
    else:
        what = "set to zero" if (core.weights == 0).any() else "changed"
        said = (
            f"The rows of weights sum to {listed([f'{v:.3g}' for v in sums.tolist()])} when they "
            f"meet the values: weights are {what} after the softmax. Put -inf in the scores "
            f"before it, so that the rest still sums to one."
        )
    return Finding(said, sums, "sum of each row of weights")


_SAID = {"negative": _negative, "raw": _raw, "changed": _changed}


def divided_after(core):
    """The one factor between what the softmax gave and the weights; None where there is none."""
    if core.normalised is None:
        return None
    ratio = core.weights / core.normalised
    ratio = ratio[core.normalised > 1e-6]
    one = ratio.max() - ratio.min() < 1e-4 * ratio.abs().max()
    return ratio.mean().item() if one else None
