"""The weights: along which axis they sum to one, and whether they do."""

from itertools import pairwise

from ..findings import Finding, Unjudged
from ..graph import SOFTMAX, factor, outputs
from ..stages import fits
from ..trust import derived, divided_wrongly, off_axis, pooled, pooled_off_axis, unseen, unsummed
from ..words import listed
from .registry import rule


@rule("softmax-axis")
def softmax_axis(s):
    """The softmax runs over another axis than the keys'.

    weights = scores.softmax(dim=-2)    # over the queries: columns sum to one
    """
    if found := pooled_off_axis(s):
        return _of_a_pool(*found)
    if not (found := off_axis(s)):
        return None if pooled(s) else unseen(s)
    core, axis = found
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
        f"{what}: the rows of the first head sum to {listed(_sums(core.soft))}.{mixes} {advice}",
        _heads(core.soft)[0],
        "the weights of the first head",
    )


def _of_a_pool(weights, axis, dim):
    mixes = " One sentence sees another that way." if axis == "the batch" else ""
    sums = listed([f"{value:.3g}" for value in weights.sum(dim=-1).flatten()[:5].tolist()])
    return Finding(
        f"The weights sum to one over {axis}, not over the {weights.shape[-1]} that are added up "
        f"with the values: those sum to {sums}, and so on.{mixes} Use dim={dim} in the softmax.",
        weights.reshape(-1, weights.shape[-1])[:8],
        "the weights that are added up (columns)",
    )


def _heads(weights):
    return weights.reshape(-1, *weights.shape[-2:])


def _sums(weights):
    """What the rows of the first head sum to, in words."""
    return [f"{value:.3g}" for value in _heads(weights)[0].sum(dim=-1).tolist()]


@rule("softmax-twice")
def softmax_twice(s):
    """The softmax is taken of what a softmax gave.

    weights = scores.softmax(dim=-1)
    weights = self.softmax(weights)
    """
    for core in s.cores:
        calls = [s.graph.calls[at] for at in core.path]
        soft = [call for call in calls if call.name in SOFTMAX]
        for first, second in pairwise(soft):
            given, into = outputs(first)[0].value, second.inputs[0].value
            if fits(given, into) or fits(given.mT, into):
                where = f" Look at `{first.line}`." if first.line else ""
                return Finding(
                    f"The softmax is taken twice: its input lies between 0 and 1 already, so the "
                    f"weights come out nearly equal, and hidden pairs are seen. Take it once."
                    f"{where}",
                    _heads(core.weights)[0],
                    "the weights of the first head",
                )
    return None


@rule("not-normalised", unless={"softmax-twice"})
def not_normalised(s):
    """The weights that meet the values do not add up to one.

    weights = scores.softmax(dim=-1)
    weights = weights.masked_fill(hidden, 0.0)      # after the softmax
    """
    if (weights := divided_wrongly(s)) is not None:
        return _of_a_derivative(weights)
    answers = [None if derived(s) is not None else unseen(s)]
    for core, why in unsummed(s):
        if why not in _UNSEEN:
            lowest = min(_heads(core.weights), key=lambda head: head.min())
            return Finding(_in_words(core, why), lowest, "the weights of one head")
        answers.append(Unjudged(_UNSEEN[why]))
    return answers


def _of_a_derivative(weights):
    sums = weights.sum(dim=-1)
    worst = weights[(sums - 1).abs().amax(dim=-1).argmax()]
    return Finding(
        f"By how much the context moves with each value, the rows of weights sum to "
        f"{listed([f'{total:.3g}' for total in worst.sum(dim=-1).tolist()])}, not to one: what the "
        f"context is divided by is not the sum of its own weights. Whatever scales the sum of the "
        f"weighted values must scale the sum of the weights, by which it is divided.",
        worst,
        "the weights of one head, by derivative",
    )


_UNSEEN = {
    "several": "there are several softmaxes",
    "unseen": "the softmax cannot be seen or has an entry for no token",
}


def _in_words(core, why):
    """Why the rows of weights do not sum to one, and what they sum to."""
    weights, sums, low = core.weights, listed(_sums(core.weights)), f"{core.weights.min():.2f}"
    said = {
        "logarithms": f"Some weights are negative, down to {low}: log_softmax gives logarithms.",
        "negative": f"Some weights are negative, down to {low}: no softmax is taken.",
        "divided": f"exp(scores) is divided by other sums than those of its rows, which then sum "
        f"to {sums}: e / e.sum(dim=-1, keepdim=True) keeps each sum in its row.",
        "raw": f"No softmax: the raw scores meet the values, and their rows sum to {sums}.",
    }
    if why in said:
        return f"{said[why]} weights = scores.softmax(dim=-1)."
    what = "set to zero" if (weights == 0).any() else "changed"
    advice = "Put -inf in the scores before it, so that the rest still sums to one."
    if times := factor(core.soft, weights):
        what, advice = f"multiplied by {times:.3g}", "Divide the scores by √head_dim *before* it."
    return (
        f"The rows of weights sum to {sums} when they meet the values: weights are {what} after "
        f"the softmax. {advice}"
    )
