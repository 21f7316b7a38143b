"""Notebook 1: one query, its scores, weights and context vector, every number in sight."""

import math

import torch

from .. import lectures
from ..attention import attention
from ..figures.sheet import FAINT, Sheet
from ..tables import largest_difference
from .explorer import Explorer
from .panels import names_of
from .parts import split_words, switch, typed, vectors, whole

_DIAGONAL = (1, 8, 1)  # of W_K: the lecture's 1, 2, 1 leaves every weight near 1/11
_TASKS = (
    (
        "Try: it prefers ball. Turn the numbers of W_K until it prefers dog.",
        lambda state: state["key_0"] > state["key_1"],
    ),
    (
        "It prefers dog now. Set W_K to 1, 2, 1 as in lecture 6: how far apart are the weights?",
        lambda state: [state[f"key_{i}"] for i in range(3)] == [1, 2, 1],
    ),
    ("Every weight is near 1/11. Type words of your own, one of them twice.", None),
)


def explore_query():
    """Explore one query: W_Q, W_K, W_V, every key and value, its scores, weights and context.

    W_Q and W_V take the first head_dim numbers of a word as they are; W_K multiplies them by the
    numbers of its diagonal. The lecture's words have the lecture's numbers; what it does not
    give is made from the letters. Tokens count from 0. Source: lecture 6, 10:55 to 17:27.
    """
    controls = {
        "words": typed("your own words", lectures.TWO_ITS),
        "query": whole("query: token", 0, 10, 10),
        "d_model": whole("d_model", 1, 6, 3),
        "head_dim": whole("head_dim", 1, 6, 3),
        **{f"key_{i}": whole(f"W_K, number {i}", -10, 10, _DIAGONAL[i]) for i in range(3)},
        "divide": switch("÷ √head_dim", True),
    }
    bounds = {"query": lambda state: len(state["words"].split()) - 1}
    enabled = {
        f"key_{i}": lambda state, i=i: i < min(state["d_model"], state["head_dim"])
        for i in range(3)
    }
    return Explorer("explore_query", controls, _render, _TASKS, bounds, enabled=enabled)


def _render(state):
    words, d_model, head_dim = split_words(state["words"]), state["d_model"], state["head_dim"]
    chosen, divided = state["query"], state["divide"]
    x = _embeddings(words, d_model)
    straight = torch.eye(d_model, head_dim)
    turned = straight.clone()
    for i in range(min(3, d_model, head_dim)):
        turned[i, i] = state[f"key_{i}"]
    queries, keys, values = x @ straight, x @ turned, x @ straight
    # `attention` divides by √head_dim; multiplying the queries by it first takes that back.
    context, weights = attention(
        queries if divided else queries * math.sqrt(head_dim), keys, values
    )
    scores = queries @ keys.mT
    picture = draw(
        words, chosen, (x[chosen], queries[chosen], keys, values), (straight, turned, straight),
        (scores[chosen], weights[chosen], context[chosen]), divided,
    )  # fmt: skip
    status = _status(words, chosen, scores, weights, context[chosen])
    return picture, f"{status} d_model {d_model}, head_dim {head_dim}."


def _embeddings(words, d_model):
    """Return (tokens, d_model): the lecture's three numbers where it has them, then our own."""
    x = (vectors(words, max(d_model, 3)).abs() / math.sqrt(3)).mul(10).round() / 10
    for row, word in zip(x, words, strict=True):
        row[:3] = torch.tensor(lectures.OUR_WORDS.get(word.lower(), row[:3].tolist()))
    return x[:, :d_model]


def _status(words, chosen, scores, weights, context):
    top = weights[chosen].argmax().item()
    numbers = ", ".join(f"{number:.2f}" for number in context.tolist())
    text = (
        f"The query is {words[chosen]}, token {chosen}. It prefers {words[top]}, token {top}: "
        f"score {scores[chosen, top]:.2f}, weight {weights[chosen, top]:.2f}. "
        f"Its context vector: {numbers}."
    )
    same = [i for i, word in enumerate(words) if word.lower() == words[chosen].lower()]
    if len(same) > 1:
        apart = largest_difference(weights[same[0]], weights[same[-1]])
        text += f" Tokens {same[0]} and {same[-1]} are one word: weights differ by {apart}."
    return text


def draw(words, chosen, vectors, matrices, results, divided):
    """Draw the three matrices, then a line for each word: its key, score, weight and value.

    chosen: the token that asks. vectors: its embedding (d_model,) and query (head_dim,), all keys
    and values (tokens, head_dim). matrices: W_Q, W_K, W_V (d_model, head_dim). results: scores
    (tokens,), weights (tokens,), context (head_dim,). divided: by √head_dim or not.
    """
    (x, query, keys, values), (scores, weights, context) = vectors, results
    (d_model, head_dim), tokens = matrices[0].shape, len(words)
    sheet, limits = Sheet(), (0.0, 1.4)
    names = names_of(words)
    sheet.title(20, 16, f"token {chosen}: {names[chosen]}", f"d_model {d_model}")
    sheet.matrix(20, 46, x[None], (30, 18), limits=limits, decimals=1)
    sheet.title(250, 16, "its query = embedding · W_Q", f"head_dim {head_dim}")
    sheet.matrix(250, 46, query[None], (30, 18), limits=limits, decimals=1)
    for left, name, matrix in zip((20, 184, 348), ("W_Q", "W_K", "W_V"), matrices, strict=True):
        sheet.title(left, 86, name, f"{d_model} × {head_dim}")
        sheet.matrix(left, 116, matrix, (22, 17), limits=(-10.0, 10.0), decimals=0, size=10.5)
    top, cell, right = 156 + 17 * d_model, (min(30, 132 / head_dim), 19), 358
    for left, name in ((84, "keys"), (226, "scores"), (284, "weights"), (right, "values")):
        sheet.title(left, top - 12, name)
    numbers = {"decimals": 2 if head_dim < 4 else 1, "size": 10.5}
    sheet.matrix(84, top, keys, cell, limits=(-9.0, 9.0), **numbers)
    sheet.matrix(right, top, values, cell, limits=limits, **numbers)
    _lines(sheet, top, names, chosen, scores, weights)
    bottom = top + 19 * tokens + 12
    how = "softmax(scores / √head_dim)" if divided else "softmax(scores), undivided"
    sheet.text(20, bottom + 10, f"weights = {how}", 11, color=FAINT)
    sheet.text(right - 8, bottom + 10, "context", 12.5, "right", bold=True)
    sheet.matrix(right, bottom, context[None], cell, limits=limits, **numbers)
    return sheet.picture(
        bottom + 34,
        f"Tables: W_Q, W_K and W_V, {d_model} by {head_dim}; below, for each of {tokens} words, "
        f"its key, its score and weight with the query {words[chosen]}, token {chosen}, and its "
        f"value; last, the context vector of {head_dim} numbers.",
    )


def _lines(sheet, top, names, chosen, scores, weights):
    """Write each word with its score, and its weight as a bar."""
    unit = 40 / max(weights.tolist())
    pairs = zip(names, scores.tolist(), weights.tolist(), strict=True)
    for i, (name, score, weight) in enumerate(pairs):
        y, bold = top + 19 * (i + 0.5), i == chosen
        sheet.text(78, y, f"▶ {name}" if bold else name, 12, "right", bold=bold)
        sheet.text(272, y, f"{score:.2f}", 11.5, "right")
        sheet.bar(280, y - 6, weight * unit, 12)
        sheet.text(350, y, f"{weight:.2f}", 11.5, "right")
