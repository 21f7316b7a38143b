"""Notebook 1: a diagonal for W_K, the weights of one query, attention for many."""

import math

import torch

from .. import lectures
from ..attention import attention
from .exercise import Wrong, draw, exercise, numbers, run, same


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
    right = (scores / math.sqrt(4)).softmax(dim=0)
    if same(weights, right):
        return "Five weights that add up to 1, from q·k / √4."
    _name_weights(weights, scores, scale_names(width=4, tokens=5))


@exercise("attend_all", 1, "Attention for many queries")
def check_attend_all(answer):
    """queries (3, 5), keys (4, 5), values (4, 2) -> context (3, 2)."""
    queries, keys, values = draw((3, 5), (4, 5), (4, 2))
    wanted = "one row for each query, as wide as a value"
    context = numbers(run(answer, queries, keys, values), (3, 2), wanted)
    scores = queries @ keys.mT  # (3, 4)
    if same(context, attention(queries, keys, values)[0]):
        return "Three queries, four keys, and √5 for queries of width 5."
    for divisor, name in scale_names(width=5, tokens=4).items():
        if same(context, (scores / divisor).softmax(dim=-1) @ values):
            raise Wrong(f"{name}. The queries are 5 wide here: divide by √5.")
        if same(context, (scores / divisor).softmax(dim=0) @ values):
            raise Wrong(
                "The rows of weights do not add up to 1: the softmax runs over the wrong axis, "
                "down the columns. A row belongs to one query: dim=-1."
            )
    if same(context, scores / math.sqrt(5) @ values) or same(context, scores @ values):
        raise Wrong("The softmax is missing: the scores themselves meet the values.")
    raise Wrong("The shape is right and the numbers are not. softmax(QKᵀ / √d) V is wanted.")


def scale_names(width, tokens):
    """Return {divisor: what to say of it} for the divisors that are often taken for √width."""
    return {
        1.0: "The scores are not divided",
        float(width): f"The scores are divided by {width}, not by its root",
        1 / math.sqrt(width): f"The scores are multiplied by √{width}, not divided",
        math.sqrt(tokens): f"The scores are divided by √{tokens}, the root of the number of keys",
        math.sqrt(2): "The scores are divided by √2, which belongs to queries of width 2",
        math.sqrt(3): "The scores are divided by √3, the width of the embeddings in this notebook",
        math.sqrt(width): f"The scores are divided by √{width}",
    }


def _name_weights(weights, scores, names):
    total = weights.sum().item()
    for divisor, name in names.items():
        if same(weights, (scores / divisor).softmax(dim=0)):
            raise Wrong(f"{name}. The query is 4 wide here: divide by √4.")
        if same(weights, scores / divisor):
            raise Wrong("These are scores, some of them negative: the softmax is missing.")
        if same(weights, (scores / divisor).exp()):
            raise Wrong(f"The weights add up to {total:.2f}, not to 1: divide each by their sum.")
    if abs(total - 1) > 1e-3:
        raise Wrong(f"The weights add up to {total:.2f}, not to 1: divide each by their sum.")
    raise Wrong("They add up to 1, but they are not softmax(q·k / √d).")
