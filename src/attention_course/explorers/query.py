"""Notebook 1: one query, its scores, weights and context vector."""

import math
from functools import lru_cache

import ipywidgets as widgets
import torch

from .. import lectures
from ..attention import attention
from ..figures import explored
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
    picture = explored.query(
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
