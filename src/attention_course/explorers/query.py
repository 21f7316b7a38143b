"""Notebook 1: one query, its scores, weights and context vector."""

import math
from functools import lru_cache

import ipywidgets as widgets
import torch

from .. import lectures
from ..attention import attention
from ..figures.sheet import FAINT, INK, LINE, ORANGE, Sheet
from ..tables import largest_difference
from .explorer import Explorer
from .parts import LABEL, WIDE, choice, decimal, split_words, switch

_SIZES = tuple(2**power for power in range(1, 10))


def explore_query():
    """Explore one query of the lecture's sentence: its scores, weights and context vector.

    Turn W_K's diagonal and choose the query; both "it" are in the list. W_Q and W_V leave
    the vectors as they are. `size` is the size d of random vectors. Source: lecture 6.
    """
    words = split_words(lectures.TWO_ITS)
    controls = {
        "query": choice("query", [(f"{w} ({i + 1})", i) for i, w in enumerate(words)], 10),
        **{
            f"key_{i + 1}": decimal(f"W_K diagonal {i + 1}", -3.0, 3.0, 0.5, value)
            for i, value in enumerate(lectures.KEY_DIAGONAL)
        },
        "divide": switch("divide by √d", True),
        "size": widgets.SelectionSlider(
            options=_SIZES,
            value=64,
            description="random size d",
            continuous_update=False,
            layout=WIDE,
            style=LABEL,
        ),
    }
    return Explorer("explore_query", controls, _render_query)


def _render_query(state):
    words, chosen, divided = split_words(lectures.TWO_ITS), state["query"], state["divide"]
    x = torch.tensor([lectures.OUR_WORDS[word.lower()] for word in words])  # (tokens, 3)
    keys = x * torch.tensor([state[f"key_{i}"] for i in (1, 2, 3)])
    # `attention` divides by √d; multiplying the queries by it first takes that back.
    context, weights = attention(x if divided else x * math.sqrt(3), keys, x)
    scores = x @ keys.mT
    curves = {kind: _largest_weights(kind) for kind in (True, False)}
    picture = draw(
        words, chosen, scores[chosen], weights[chosen], context[chosen], divided, state["size"],
        curves,
    )  # fmt: skip
    first, last = [i for i, word in enumerate(words) if word == "it"]
    top = weights[chosen].argmax().item()
    numbers = ", ".join(f"{number:.2f}" for number in context[chosen].tolist())
    return picture, (
        f"The query is {words[chosen]}, word {chosen + 1}. Score with dog "
        f"{scores[chosen, 1]:.2f}, with ball {scores[chosen, 4]:.2f}. Largest weight "
        f"{weights[chosen, top]:.2f}, on {words[top]}. Context vector {numbers}. Largest "
        f"difference between the rows of the two it: "
        f"{largest_difference(weights[first], weights[last])}. Random vectors of size "
        f"{state['size']}: the largest of 11 weights is {curves[True][state['size']]:.2f} on "
        f"average with the division by √d, {curves[False][state['size']]:.2f} without."
    )


@lru_cache
def _largest_weights(divided, draws=200, keys=11):
    """Return {d: mean largest weight of a random query over random keys}."""
    generator = torch.Generator().manual_seed(0)
    found = {}
    for d in _SIZES:
        query = torch.randn(draws, 1, d, generator=generator)
        others = torch.randn(draws, keys, d, generator=generator)
        _, weights = attention(query if divided else query * math.sqrt(d), others, others)
        found[d] = weights.amax(-1).mean().item()
    return found


def draw(words, chosen, scores, weights, context, divided, size, curves):
    """Draw one query: scores and weights of all words, context, and the largest weight over d.

    scores, weights: (tokens,). context: (d_model,). divided: whether scores were divided by √d.
    size: the chosen d. curves: {divided by √d or not: {d: largest weight of random vectors}}.
    """
    sheet = Sheet(490)
    sheet.title(88, 16, "scores")
    sheet.title(300, 16, "weights")
    sheet.text(364, 16, f"softmax(scores{' / √3' if divided else ''})", 11.5, color=FAINT)
    _bars(sheet, 88, 210, scores)
    _bars(sheet, 300, 490, weights)
    for i, word in enumerate(words):
        here = i == chosen
        label, weight = (f"▶ {word}", "bold") if here else (word, "normal")
        sheet.text(80, 40 + 21 * i, label, 12, "right", weight=weight)
    sheet.title(20, 290, "context vector")
    names = [f"number {i + 1}" for i in range(len(context))]
    sheet.row_names(80, 306, 24, names)
    _bars(sheet, 88, 210, context, top=306, step=24)
    sheet.text(20, 396, f"▶ the query: {words[chosen]},", 11.5, color=FAINT)
    sheet.text(20, 412, f"word {chosen + 1} of {len(words)}", 11.5, color=FAINT)
    _largest_weight(sheet, divided, size, curves)
    return sheet.picture(
        f"Bars: scores and weights of the query {words[chosen]}, word {chosen + 1}, over "
        f"{len(words)} words, and its context vector of {len(context)} numbers. Curve: the "
        f"largest weight of random vectors over their size d, with and without division by √d."
    )


def _bars(sheet, left, right, values, top=29, step=21):
    """Draw one bar and its number for each value; a negative bar goes to the left of zero."""
    numbers, room = values.tolist(), right - left - 42
    low, high = min(0.0, *numbers), max(0.0, *numbers)
    unit = room / ((high - low) or 1)
    zero = left - low * unit
    for i, number in enumerate(numbers):
        y = top + i * step
        sheet.bar(zero, y + 3, number * unit, step - 7)
        sheet.text(right, y + step / 2, f"{number:.2f}", 11.5, "right")
    sheet.line([zero, zero], [top, top + step * len(numbers)], FAINT)


def _largest_weight(sheet, divided, size, curves):
    left, right, bottom = 292, 480, 442
    sheet.title(238, 290, "largest of 11 weights")
    sheet.text(396, 290, "random vectors", 11.5, color=FAINT)
    last = math.log2(max(curves[True]))

    def place(d, weight):
        return left + (right - left) * (math.log2(d) - 1) / (last - 1), bottom - 130 * weight

    for level in (0, 0.5, 1):
        sheet.line([left, right], [place(2, level)[1]] * 2, "#dddddd")
        sheet.text(left - 6, place(2, level)[1], f"{level:g}", 11, "right", color=FAINT)
    for d in curves[True]:
        if math.log2(d) % 2 == 1:
            sheet.text(place(d, 0)[0], bottom + 12, str(d), 11, "center", color=FAINT)
    sheet.text((left + right) / 2, bottom + 28, "size d of query and keys", 11.5, "center")
    for kind, style, name in ((False, "s--", "undivided"), (True, "o-", "divided by √d")):
        points = [place(d, weight) for d, weight in curves[kind].items()]
        chosen = kind == divided
        color = ORANGE if chosen else LINE
        sheet.ax.plot(*zip(*points, strict=True), style, color=color, ms=4, lw=1.4)
        sheet.text(right, points[-1][1] + 16, name, 11, "right")
        if chosen:
            x, y = place(size, curves[kind][size])
            sheet.ax.plot([x], [y], "o", ms=10, mfc="none", mec=INK, mew=1.5)
            sheet.text(x, y - 14, f"{curves[kind][size]:.2f}", 12, "center")
