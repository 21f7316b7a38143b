"""Notebook 1: a diagonal for W_K, the weights of one query, attention for many."""

import math

import torch

from .. import lectures
from ..attention import attention
from .exercise import Wrong, draw, exercise, numbers, run, same

FURTHER = "01_scores_and_weights"  # in notebooks/further/


@exercise("dog_diagonal", 1, "A diagonal for dog")
def check_dog_diagonal(answer):
    """Three numbers with which *it* scores higher with dog than with ball."""
    it, dog, ball = (torch.tensor(word) for word in (lectures.IT, lectures.DOG, lectures.BALL))
    diagonal = numbers(answer, (3,), "the three numbers of the diagonal")
    to_dog, to_ball = (it @ (word * diagonal) for word in (dog, ball))
    scores = f"it scores {to_dog:.2f} with dog and {to_ball:.2f} with ball"
    if abs(to_dog - to_ball) < 1e-4:
        raise Wrong(
            f"Now {scores}: equal. The third number is the same in both words, so only the first "
            f"two can part them, and here they weigh the same."
        )
    if to_dog < to_ball:
        raise Wrong(f"Now {scores}. The first number is the one that is large in dog.")
    return f"Now {scores}."


@exercise("query_weights", 1, "The weights of one query")
def check_query_weights(answer):
    """query (4,), keys (5, 4) -> weights (5,)."""
    query, keys = draw((4,), (5, 4))
    weights = numbers(run(answer, query, keys), (5,), "one weight for each of the 5 keys")
    scores = keys @ query
    if same(weights, (scores / math.sqrt(4)).softmax(dim=0)):
        return "Five weights that add up to 1, from q·k / √4."
    total = weights.sum().item()
    sums = f"The weights add up to {total:.2f}, not to 1: divide each by their sum"
    names = divisor_names(4, {5: "the number of keys"})
    _name_mistake(weights, scores, names, "The query is 4 wide here: divide by √4", sums)
    if abs(total - 1) > 1e-3:
        raise Wrong(f"{sums}.")
    raise Wrong("They add up to 1, but they are not softmax(q·k / √d).")


@exercise("attend_all", FURTHER, "Attention for many queries")
def check_attend_all(answer):
    """queries (6, 5), keys (8, 5), values (8, 7) -> context (6, 7)."""
    queries, keys, values = draw((6, 5), (8, 5), (8, 7))
    wanted = "one row for each query, as wide as a value"
    try:
        context = numbers(run(answer, queries, keys, values), (6, 7), wanted)
    except Wrong as mistake:
        hints = {
            "(8) must match the size of tensor b (6)": (
                " Each row has a sum of its own: `.sum(dim=-1, keepdim=True)` keeps its axis."
            ),
            "(6x5 and 8x5)": " The keys lie the wrong way round: `keys.mT` is (5, 8).",
            "(8x6 and 8x7)": " Rows must belong to queries, columns to keys: queries @ keys.mT.",
            "is (6, 8)": " One number for each query and key: the values have not been met yet.",
            "this is a tuple": " Return the context alone.",
        }
        said = mistake.error or str(mistake)
        hint = next((hint for part, hint in hints.items() if part in said), "")
        raise Wrong(f"{mistake}{hint}") from None
    scores = queries @ keys.mT  # (6, 8)
    if same(context, attention(queries, keys, values)[0]):
        return "Six queries, eight keys, and √5 for queries of width 5."
    sizes = {6: "the number of queries", 8: "the number of keys", 7: "the width of a value"}
    names = divisor_names(5, sizes)
    sums = "The weights of a query do not add up to 1: divide each by the sum of its row"
    advice = "The queries are 5 wide here: divide by √5"
    _name_mistake(context, scores, names, advice, sums, values)
    for divisor in names:
        scaled = scores / divisor
        if same(context, scaled.softmax(dim=0) @ values):
            raise Wrong(
                "The rows of weights do not add up to 1: the softmax runs over the wrong axis, "
                "down the columns. A row belongs to one query: dim=-1."
            )
        if same(context, scaled.exp() / scaled.exp().sum() @ values):
            raise Wrong(
                "All 48 weights together add up to 1. Each row has to: `.sum(dim=-1, keepdim=True)`"
                " adds along the rows and keeps the axis."
            )
    raise Wrong("The shape is right and the numbers are not. softmax(QKᵀ / √d) V is wanted.")


def divisor_names(width, sizes):
    """Return {divisor: what to say of it} for the divisors that are often taken for √width.

    sizes: {number: what it counts} of the other sizes, whose roots may be taken for it.
    """
    return {
        1.0: "The scores are not divided",
        float(width): f"The scores are divided by {width}, not by its root",
        1 / math.sqrt(width): f"The scores are multiplied by √{width}, not divided",
        **{math.sqrt(n): f"The scores are divided by √{n}, the root of {sizes[n]}" for n in sizes},
        math.sqrt(2): "The scores are divided by √2, which belongs to queries of width 2",
        math.sqrt(3): "The scores are divided by √3, the width of the embeddings in this notebook",
        math.sqrt(width): f"The scores are divided by √{width}",
    }


def _name_mistake(result, scores, names, advice, sums, values=None):
    """Raise Wrong where a result is what a usual mistake makes of the scores.

    names: as of `divisor_names`. advice: what to divide by. sums: what to say of weights that
    do not add up to 1. values: what the weights meet, if anything.
    """

    def made_of(weights):
        return same(result, weights if values is None else weights @ values)

    after = scores.softmax(dim=-1)
    for divisor, name in names.items():
        scaled = scores / divisor
        if made_of(scaled.softmax(dim=-1)):
            raise Wrong(f"{name}. {advice}.")
        if divisor != 1 and made_of(after / divisor):
            raise Wrong(f"The scores are divided after the softmax: divide before it. {advice}.")
        if made_of(scaled):
            raise Wrong("These are scores, some of them negative: the softmax is missing.")
        if made_of(scaled / scaled.sum(dim=-1, keepdim=True)):
            raise Wrong(
                "The exp is missing: each score itself is divided by the sum of the scores."
            )
        if made_of(scaled.exp()):
            raise Wrong(f"{sums}.")
