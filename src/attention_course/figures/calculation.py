"""The attention of one token, drawn from the embeddings to its context vector."""

import math
from dataclasses import replace

import torch

from .basic import HIDDEN
from .flow import KEY, QUERY, VALUE, Arrow, Grid, flow, shades

STEPS = ("project", "score", "divide by √d", "softmax", "weigh the values", "add up")
WIDE, NARROW, HIGH = 31, 34, 19  # pixels of a cell: of q, K, V; of a score; and of every row


def one_query(words, X, matrices, query, hidden=None, step=None, decimals=1):
    """Draw the way from the embeddings to the context vector of one token, words[query].

    X: (tokens, d_model). matrices: W_Q, W_K, W_V, each (d_model, head_dim). hidden: for a
    causal mask, (tokens,) of truth; the mask then takes the place of a step, and the scores come
    divided. step: 1 to 6 of `STEPS`, worked out below; 0 draws the way still empty; None draws
    all. decimals: of X and the matrices.
    """
    numbers = _numbers(*(torch.as_tensor(values) for values in (X, *matrices)), query, hidden)
    grids, notes = _grids(words, numbers, query, decimals, hidden), []
    title, told = f"The context vector of “{words[query]}”", []
    if step:
        strong, told = _worked(numbers, query, decimals)[step - 1]
        grids |= {key: replace(grids[key], strong=cells) for key, cells in strong.items()}
        x, y = grids["K"].edges[0], sum(grids["z"].down) / 2 - 9 * (len(told) - 1)
        notes = [(x, y + 18 * i, line) for i, line in enumerate(told)]
        title = f"Step {step} of 6: {STEPS[step - 1]}"
    title += ", the future hidden" * (hidden is not None)
    description = _described(words, numbers, query, hidden, step, told)
    width = numbers["K"].shape[1] if step is None or step > 2 else "d"  # a question until then
    arrows = _arrows(query, width, hidden)
    return flow(grids, arrows, title, description, notes, step)


def _numbers(X, W_Q, W_K, W_V, query, hidden):
    """Return every tensor on the way, each of two axes."""
    q, K, V = X[[query]] @ W_Q, X @ W_K, X @ W_V
    score = K @ q.mT  # (tokens, 1)
    scaled = score / math.sqrt(q.shape[1])
    masked = scaled if hidden is None else scaled.masked_fill(hidden[:, None], -math.inf)
    weight = masked.softmax(dim=0)
    numbers = {"X": X, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "q": q, "K": K, "V": V, "score": score}
    parts = weight * V
    return numbers | {"scaled": scaled, "weight": weight, "parts": parts, "z": parts.sum(0)[None]}


def _grids(words, numbers, query, decimals, hidden):
    (n, d_model), head_dim = numbers["X"].shape, numbers["K"].shape[1]
    given, pair = (20 + 6 * decimals, HIGH), WIDE * head_dim
    beside = (pair - given[0] * head_dim) / 2  # so that a matrix stands centred over its result
    x_score, x_V = pair + 48, pair + 256
    x_X, x_parts = x_score + 62 + max(0, head_dim * (given[0] - 26)), x_V + pair + 22
    below, low = n * HIGH + 48, (n + d_model) * HIGH + 112
    own = [[QUERY if i == query else "white"] * d_model for i in range(n)]

    def grid(key, x, y, step, **more):
        more = {"cell": (WIDE, HIGH), "name": key, "step": step} | more
        return {key: Grid(x, y, numbers[key].tolist(), **more)}

    def matrix(key, x, y, **more):
        return grid(key, x, y, 0, cell=given, decimals=decimals, **more)

    def row(key, x, y, step, color):
        return grid(key, x, y, step, name=f"{key}{query}", tint=color, shape=f"({head_dim})")

    return {
        **matrix("X", x_X, 0, rows=words, tint=own),
        **matrix("W_K", beside, 0),
        **matrix("W_V", x_V + beside, 0),
        **matrix("W_Q", x_X + given[0] * (d_model - head_dim) / 2, below),
        **row("q", x_score + (NARROW - pair) / 2, below + HIGH, 1, QUERY),
        **grid("K", 0, low, 1, rows=words, tint=KEY),
        **grid("V", x_V, low, 1, tint=VALUE),
        **_columns(numbers, hidden, x_score, low),
        **grid("parts", x_parts, low, 5, name="weight × V", hidden=_blind(hidden, head_dim)),
        **row("z", x_parts, low + n * HIGH + 60, 6, VALUE),
    }


def _columns(numbers, hidden, x, y):
    """Return the score, the scaled or masked score, and the weight of each token."""
    shape = {"cell": (NARROW, HIGH), "shape": f"({len(numbers['score'])})"}
    score, scaled = numbers["score"].tolist(), numbers["scaled"].tolist()
    name, face = "scaled", "white"
    if hidden is not None:
        score, blind = scaled, hidden.tolist()
        scaled = [["−∞"] if h else row for h, row in zip(blind, scaled, strict=True)]
        name, face = "masked", [[HIDDEN if h else "white"] for h in blind]
    dark = {"tint": shades(numbers["weight"]), "hidden": _blind(hidden, 1)}
    return {
        "score": Grid(x, y, score, "score", step=2, **shape),
        "scaled": Grid(x + NARROW + 34, y, scaled, name, tint=face, step=3, **shape),
        "weight": Grid(
            x + 2 * NARROW + 88, y, numbers["weight"].tolist(), "weight", step=4, **shape, **dark
        ),
    }


def _blind(hidden, width):
    return None if hidden is None else [[h] * width for h in hidden.tolist()]


def _arrows(query, head_dim, hidden):
    compare, change = f"q{query} · k", f"÷ √{head_dim}"
    if hidden is not None:
        compare, change = f"{compare}\n{change}", "mask"
    return [
        Arrow("X", "W_Q", "×", step=1),
        Arrow("X", "W_K", "×", step=1),
        Arrow("X", "W_V", "×", step=1),
        Arrow("W_Q", "q"),
        Arrow("W_K", "K"),
        Arrow("W_V", "V"),
        Arrow("q", "score"),
        Arrow("K", "score", compare),
        Arrow("score", "scaled", change),
        Arrow("scaled", "weight", "softmax"),
        Arrow("weight", "V", "×", "word", step=5),
        Arrow("V", "parts"),
        Arrow("parts", "z", "add up", "left"),
    ]


def _worked(numbers, query, decimals):
    """Return for each step ({key: framed cells}, lines): its first number, worked out."""
    X, q, K, V, z = (numbers[key].tolist() for key in ("X", "q", "K", "V", "z"))
    score, scaled, weight = (numbers[key][:, 0].tolist() for key in ("score", "scaled", "weight"))
    n, width, d, W_Q = len(X), len(X[0]), len(q[0]), numbers["W_Q"][:, 0].tolist()
    first, row = ((0, 0),), tuple((0, j) for j in range(d))
    down = tuple((i, 0) for i in range(n))
    powers, parts = [math.exp(s) for s in scaled], [row[0] for row in numbers["parts"].tolist()]

    def products(a, b, digits):
        pairs = zip(a, b, strict=True)
        return " + ".join(f"{x:.{digits}f} × {y:.{digits}f}" for x, y in pairs)

    own, column = tuple((query, j) for j in range(width)), tuple((i, 0) for i in range(width))
    return [
        (
            {"X": own, "W_Q": column, "q": first},
            [f"{products(X[query], W_Q, decimals)} = {q[0][0]:.2f}"],
        ),
        ({"q": row, "K": row, "score": first}, [f"{products(q[0], K[0], 2)} = {score[0]:.2f}"]),
        ({"score": first, "scaled": first}, [f"{score[0]:.2f} / √{d} = {scaled[0]:.2f}"]),
        (
            {"scaled": down, "weight": first},
            [
                f"exp({scaled[0]:.2f}) = {powers[0]:.2f}; all {n} together {sum(powers):.2f}",
                f"{powers[0]:.2f} / {sum(powers):.2f} = {weight[0]:.2f}",
            ],
        ),
        (
            {"weight": first, "V": first, "parts": first},
            [f"{weight[0]:.2f} × {V[0][0]:.2f} = {parts[0]:.2f}"],
        ),
        ({"parts": down, "z": first}, [f"{' + '.join(f'{p:.2f}' for p in parts)} = {z[0][0]:.2f}"]),
    ]


def _described(words, numbers, query, hidden, step, told):
    way = f"The way from the embeddings to the context vector of {words[query]}"
    if step == 0:
        return f"{way}, still empty: the embeddings X and the matrices W_Q, W_K, W_V are given."
    if step:
        return f"{way}; this step is framed. {' '.join(told)}"
    seen = [i for i in range(len(words)) if hidden is None or not hidden[i]]
    weights = ", ".join(f"{words[i]} {numbers['weight'][i, 0]:.2f}" for i in seen)
    z = ", ".join(f"{number:.2f}" for number in numbers["z"][0])
    return (
        f"{way}: query and keys give scores, scores give weights ({weights}), weights times "
        f"values add up to ({z})."
    )
