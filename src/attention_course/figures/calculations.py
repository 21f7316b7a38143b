"""The drawings of the notebooks as data for `flow`: the attention of one token, and of heads."""

import math
from dataclasses import replace

import torch
from matplotlib import colormaps
from matplotlib.colors import to_hex

from ..attention import attention, causal_mask
from .basic import HIDDEN, WEIGHTS
from .flow import Arrow, Grid, flow

QUERY, KEY, VALUE = "#f8dcc4", "#d3e4f5", "#d3d69f"  # orange, blue, olive: apart for all eyes
STEPS = ("project", "score", "divide by √d", "softmax", "weigh the values", "add up")
HIGH = 19  # pixels of a row


def one_query(words, X, matrices, query, hidden=None, step=None, decimals=1):
    """Draw the way from the embeddings to the context vector of one token, words[query].

    X: (tokens, d_model). matrices: W_Q, W_K, W_V, each (d_model, head_dim). hidden: for a
    causal mask, (tokens,) of truth; the mask then takes the place of a step, and the scores come
    divided. step: 1 to 6 of `STEPS`, worked out below; 0 draws the way still empty; None draws
    all. decimals: of X and the matrices.
    """
    numbers = _numbers_of(*(torch.as_tensor(values) for values in (X, *matrices)), query, hidden)
    grids, notes = _places(words, numbers, query, decimals, hidden), []
    if step:
        strong, told = _worked(numbers, query, decimals)[step - 1]
        grids |= {key: replace(grids[key], strong=cells) for key, cells in strong.items()}
        x, y = grids["K"].edges[0], sum(grids["z"].down) / 2 - 9 * (len(told) - 1)
        notes = [(x, y + 18 * i, line) for i, line in enumerate(told)]
    title = (
        f"Step {step} of 6: {STEPS[step - 1]}" if step else f"The context vector of {words[query]}"
    )
    title += ", the future hidden" * (hidden is not None)
    told = _described(words, numbers, query, hidden, step, notes)
    arrows = _arrows(query, numbers["K"].shape[1], hidden)
    return flow(grids, arrows, title, told, notes, step)


def _numbers_of(X, W_Q, W_K, W_V, query, hidden):
    """Return every tensor on the way, each of two axes."""
    q, K, V = X[[query]] @ W_Q, X @ W_K, X @ W_V
    score = K @ q.mT  # (tokens, 1)
    scaled = score / math.sqrt(q.shape[1])
    masked = scaled if hidden is None else scaled.masked_fill(hidden[:, None], -math.inf)
    weight = masked.softmax(dim=0)
    parts = weight * V
    numbers = {"X": X, "W_Q": W_Q, "W_K": W_K, "W_V": W_V, "q": q, "K": K, "V": V, "score": score}
    z = parts.sum(0, keepdim=True)
    return numbers | {"scaled": scaled, "weight": weight, "parts": parts, "z": z}


def _shade(weights):
    """Return the colours of weights, as in the heat maps."""
    return [[to_hex(colormaps[WEIGHTS](0.05 + 0.9 * w)) for w in row] for row in weights.tolist()]


def _described(words, numbers, query, hidden, step, notes):
    told = f"The way from the embeddings to the context vector of {words[query]}"
    if step == 0:
        return f"{told}, still empty: the embeddings X and the matrices W_Q, W_K, W_V are given."
    if step:
        return f"{told}; this step is framed. {' '.join(note[2] for note in notes)}"
    seen = [i for i in range(len(words)) if hidden is None or not hidden[i]]
    weights = ", ".join(f"{words[i]} {numbers['weight'][i, 0]:.2f}" for i in seen)
    z = ", ".join(f"{number:.2f}" for number in numbers["z"][0])
    return (
        f"{told}: query and keys give scores, scores give weights ({weights}), weights times "
        f"values add up to ({z})."
    )


def _places(words, numbers, query, decimals, hidden):
    """Return the grids of `one_query`, each at its place."""
    n, width, head_dim = len(words), numbers["X"].shape[1], numbers["K"].shape[1]
    wide = 20 + 6 * decimals  # of X and the matrices
    gap, narrow, pair = 12, 34, 31 * head_dim
    score_x = pair + 48
    scaled_x, weight_x = score_x + narrow + 34, score_x + 2 * narrow + 88
    V_x = weight_x + narrow + gap + 6
    low = (n + width) * HIGH + 112  # where the keys begin
    X_x = score_x + 62 + max(0, head_dim * (wide - 26))
    columns = {name: (narrow, HIGH) for name in ("score", "scaled", "weight")}
    cell = {name: (wide, HIGH) for name in ("X", "W_Q", "W_K", "W_V")} | columns
    places = {
        "X": (X_x, 0, 0),
        "W_K": (pair / 2 - wide * head_dim / 2, 0, 0),
        "W_V": (V_x + pair / 2 - wide * head_dim / 2, 0, 0),
        "W_Q": (X_x + wide * (width - head_dim) / 2, n * HIGH + 48, 0),
        "q": (score_x + (narrow - pair) / 2, n * HIGH + 48 + HIGH, 1),
        "K": (0, low, 1),
        "V": (V_x, low, 1),
        "score": (score_x, low, 2),
        "scaled": (scaled_x, low, 3),
        "weight": (weight_x, low, 4),
        "parts": (V_x + pair + 22, low, 5),
        "z": (V_x + pair + 22, low + n * HIGH + 60, 6),
    }
    looks = _looks(words, numbers, query, hidden)
    grids = {}
    for key, (x, y, step) in places.items():
        rows = numbers[key].tolist()
        digits = decimals if key in ("X", "W_Q", "W_K", "W_V") else 2
        common = {"cell": cell.get(key, (31, HIGH)), "decimals": digits, "step": step, "name": key}
        grids[key] = Grid(x, y, **{"cells": rows} | common | looks.get(key, {}))
    return grids


def _looks(words, numbers, query, hidden):
    """Return what sets each grid of `one_query` apart: names, colours, and what is hidden."""
    n, width = numbers["X"].shape
    looks = {
        "X": {
            "rows": words,
            "tint": [[QUERY if i == query else "white"] * width for i in range(n)],
        },
        "q": {"name": f"q{query}", "tint": QUERY, "shape": f"({numbers['q'].shape[1]})"},
        "K": {"rows": words, "tint": KEY},
        "V": {"tint": VALUE},
        "score": {"shape": f"({n})"},
        "scaled": {"shape": f"({n})"},
        "weight": {"shape": f"({n})", "tint": _shade(numbers["weight"])},
        "parts": {"name": "weight × V", "tint": "white"},
        "z": {"name": f"z{query}", "tint": VALUE, "shape": f"({numbers['z'].shape[1]})"},
    }
    if hidden is None:
        return looks
    blind = hidden.tolist()
    scaled = numbers["scaled"].tolist()
    looks["score"] |= {"cells": scaled}
    looks["scaled"] |= {
        "name": "masked",
        "cells": [["−∞"] if h else row for h, row in zip(blind, scaled, strict=True)],
        "tint": [[HIDDEN if h else "white"] for h in blind],
    }
    looks["weight"] |= {"hidden": [[h] for h in blind]}
    looks["parts"] |= {"hidden": [[h] * numbers["V"].shape[1] for h in blind]}
    return looks


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


# --- all heads at once ----------------------------------------------------------------------

LIGHT = ("#dbe7f3", "#f6ead2", "#e4e4e4", "#e3d9ec")  # a colour for each head, and the same,
DARK = ("#2a6fb0", "#c2540a", "#3d3d3d", "#6f4a8e")  # dark, for the token that is followed


def heads_at_once(
    queries, keys, num_heads, rows, split=True, merge=True, batch=1, token=1, step=None, title=""
):
    """Draw project, split, attend, merge and W_out, each number coloured by where it comes from.

    queries, keys: (tokens, d_model), projected; the causal weights are worked out of them. rows:
    the names of the tokens. split=False: by `view` alone; merge=False: by `reshape` alone. batch:
    as many sequences, the others drawn behind. token: the one that is drawn dark, counted from 0.
    Up to ten numbers wide, a cell says what stands there: 13 is token 1, number 3. step: 1 to 5.
    """
    tokens, d_model = queries.shape
    head_dim = d_model // num_heads
    numbered = 100 * torch.arange(tokens)[:, None] + torch.arange(d_model)

    def cut(projected):
        if split:
            return projected.view(tokens, num_heads, head_dim).transpose(0, 1)
        return projected.view(num_heads, tokens, head_dim)

    parts = cut(numbered)
    merged = parts.transpose(0, 1).flatten(-2) if merge else parts.reshape(tokens, d_model)
    weights = attention(cut(queries), cut(keys), cut(keys), causal_mask(tokens))[1].detach()
    kept = [i for i, row in enumerate(merged.tolist()) if any(n // 100 == token for n in row)]
    paint = _Paint(rows, batch, token, head_dim, d_model)
    grids = _head_grids(paint, numbered, parts, merged, weights, kept, split, merge)
    labels = ["13: token 1, number 3"] * paint.labelled + [f"dark: {rows[token]}"]
    labels += ["one colour for each head", "behind: another sequence"][: 1 + (batch > 1)]
    labels += ["after × V: where it lies"] * paint.labelled
    x, y = grids["Q"].x, grids["weights 0"].y
    notes = [(x, y + 16 * i, line) for i, line in enumerate(labels)]
    found = [", ".join(str(n // 100) for n in part[:, 0].tolist()) for part in (parts[0], merged)]
    told = (
        f"The rows of head 0 begin with numbers of tokens {found[0]}, the merged rows with "
        f"numbers of tokens {found[1]}."
    )
    return flow(grids, _head_arrows(num_heads, split, merge), title, told, notes, step)


class _Paint:
    """Makes the grids of `heads_at_once`: their cells, colours and shapes."""

    def __init__(self, rows, batch, token, head_dim, d_model):
        self.rows, self.batch, self.token = rows, batch, token
        self.head_dim, self.d_model = head_dim, d_model
        self.labelled = d_model <= 10 and len(rows) <= 10
        self.wide, self.high = (20 if self.labelled else 11), 17

    def shape(self, *sizes):
        return f"({', '.join(map(str, (self.batch, *sizes)[self.batch == 1 :]))})"

    def numbers(self, x, y, values, name, shape, **more):
        """Numbers that carry where they come from: 100 × token + place."""
        values = values.tolist()
        tint = [
            [(LIGHT, DARK)[n // 100 == self.token][n % 100 // self.head_dim % 4] for n in row]
            for row in values
        ]
        cells = [[f"{n // 100}{n % 100}" if self.labelled else None for n in row] for row in values]
        more |= {"cell": (self.wide, self.high), "tint": tint, "behind": self.batch - 1}
        return Grid(x, y, cells, name, shape, **more)

    def plain(self, y, name, followed, **more):
        """A tensor whose numbers do not matter; the rows that are followed are grey."""
        tokens, wide = len(self.rows), (12 if self.labelled else 6)
        tint = [["#b0b0b0" if i in followed else "white"] * self.d_model for i in range(tokens)]
        more |= {"cell": (wide, self.high), "tint": tint, "rows": self.rows}
        cells = [[None] * self.d_model] * tokens
        return Grid(
            0, y, cells, name, self.shape(tokens, self.d_model), behind=self.batch - 1, **more
        )

    def weights(self, x, y, weights, named, shape, side, **more):
        """The weights of one head by their colours, the future hatched."""
        tokens = len(weights)
        more |= {"tint": _shade(weights), "hidden": causal_mask(tokens).tolist(), "step": 3}
        more |= {"cell": (side, side), "behind": self.batch - 1}
        return Grid(x, y, [[None] * tokens] * tokens, "weights" * named, shape * named, **more)


def _head_grids(paint, numbered, parts, merged, weights, kept, split, merge):
    heads, tokens, head_dim = parts.shape
    side = max(10, head_dim * paint.wide / tokens)
    block = max(side * tokens, head_dim * paint.wide) + 12
    x1 = (12 if paint.labelled else 6) * paint.d_model + 58
    x2 = x1 + paint.d_model * paint.wide + 78
    y1 = tokens * paint.high + 64
    y2 = y1 + tokens * side + 64
    whole, of_heads = paint.shape(tokens, paint.d_model), paint.shape(heads, tokens, head_dim)
    of_weights, lost = paint.shape(heads, tokens, tokens), {"wrong": not split}
    grids = {
        "X": paint.plain(0, "X", [paint.token]),
        "Q": paint.numbers(x1, 0, numbered, "Q (K, V alike)", whole, step=1),
    }
    for h in range(heads):
        x, once = x2 + h * block, h == (heads - 1) // 2  # one name and one shape for all heads
        own = parts[h], of_heads * once
        grids |= {
            f"head {h}": paint.numbers(x, 0, own[0], f"head {h}", own[1], step=2, **lost),
            f"weights {h}": paint.weights(x, y1, weights[h], once, of_weights, side, **lost),
            f"context {h}": paint.numbers(x, y2, own[0], "context" * once, own[1], step=3, **lost),
        }
    wrong = not (split and merge)
    return grids | {
        "merged": paint.numbers(x1, y2, merged, "merged", whole, step=4, wrong=wrong),
        "out": paint.plain(y2, "output", kept, step=5, wrong=wrong),
    }


def _head_arrows(num_heads, split, merge):
    ways = "split\n" + ("view,\ntranspose" if split else "view\nalone")
    back = "merge\n" + ("transpose,\nflatten" if merge else "reshape\nalone")
    arrows = [Arrow("X", "Q", "project"), Arrow("Q", "head 0", ways, wrong=not split)]
    for h in range(num_heads):
        attend, times_v = ("attend", "× V") if h == 0 else ("", "")
        arrows.append(Arrow(f"head {h}", f"weights {h}", attend, "left"))
        arrows.append(Arrow(f"weights {h}", f"context {h}", times_v, "left"))
    last = Arrow("context 0", "merged", back, wrong=not merge)
    return [*arrows, last, Arrow("merged", "out", "× W_out")]


# --- heads in a loop --------------------------------------------------------------------------

MOVED, STILL = "#4a4a4a", "white"  # a cell of the input or the output


def heads_beside_cut(words, X, heads, W_out, token, number):
    """Draw heads that read the whole token, and beside them the mistake that cuts it first.

    X: (tokens, d_model). heads: [(W_Q, W_K, W_V), …], causal. Dark cells move when one number,
    X[token, number], is raised by 1; the others stay.
    """
    X, W_out = torch.as_tensor(X), torch.as_tensor(W_out)
    raised = X.clone()
    raised[token, number] += 1.0
    grids, arrows, notes, reached = {}, [], [], []
    width = 29 * X.shape[1] + 12 * (len(heads) - 1)
    for cut in (False, True):
        before, after = (_in_a_loop(x, heads, W_out, cut) for x in (X, raised))
        moved = [(b - a).abs() > 1e-6 for a, b in zip(before, after, strict=True)]
        side = _loop_side((width + 44) * cut, words, raised != X, moved, len(heads), cut)
        grids, arrows = grids | side[0], arrows + side[1]
        reached.append(sum(m.any().item() for m in moved[: len(heads)]))
        said = "The token cut first: a mistake" if cut else "The whole token for each head"
        notes.append(((width + 44) * cut, -30, said, "bold"))
    raised_one = f"number {number} of {words[token]}"
    notes.append((0, grids["output"].edges[3] + 18, f"dark: moves when {raised_one} is raised"))
    told = f"Raising {raised_one} reaches {reached[0]} of {len(heads)} heads where each reads the "
    told += f"whole token, and {reached[1]} where the token is cut first."
    return flow(grids, arrows, f"Where does {raised_one} arrive?", told, notes)


def _in_a_loop(x, heads, W_out, cut):
    """Return the context of each head, all joined, and the output."""
    size = x.shape[1] // len(heads)
    owned = [slice(i * size, (i + 1) * size) if cut else slice(None) for i in range(len(heads))]
    contexts = [
        attention(*(x[:, own] @ W[own] for W in matrices), causal_mask(len(x)))[0]
        for own, matrices in zip(owned, heads, strict=True)
    ]
    joined = torch.cat(contexts, dim=-1)
    return [*contexts, joined, joined @ W_out]


def _loop_side(x, words, raised, moved, num_heads, cut):
    """Return the grids and arrows of one half: X, the heads, joined, the output."""
    key, tokens, d_model = "cut " * cut, len(words), raised.shape[1]
    size, step = d_model // num_heads, 29 * d_model // num_heads + 12
    tall = 13 * tokens + 60

    def grid(left, level, marks, name, dark, pale, rows=()):
        tint = [[dark[j] if m else pale[j] for j, m in enumerate(row)] for row in marks.tolist()]
        cells = [[None] * marks.shape[1]] * tokens
        return Grid(x + left, level * tall, cells, name, cell=(29, 13), rows=rows, tint=tint)

    of_head = [[colours[h] for h in range(num_heads) for _ in range(size)]
               for colours in (DARK, LIGHT)]  # fmt: skip
    plain, rows = ([MOVED] * d_model, [STILL] * d_model), () if cut else words
    middle = 6 * (num_heads - 1)
    grids, arrows = {}, []
    if not cut:
        grids["X"] = grid(middle, 0, raised, "X", *plain, rows)
    for h in range(num_heads):
        own = slice(h * size, (h + 1) * size)
        if cut:
            grids[f"cut X{h}"] = grid(h * step, 0, raised[:, own], f"X, part {h}", *plain)
        colours = [part[own] for part in of_head]
        grids[f"{key}Z{h}"] = grid(h * step, 1, moved[h], f"Z{h}", *colours)
        source, style = (f"cut X{h}", "") if cut else ("X", "fork")
        arrows.append(Arrow(source, f"{key}Z{h}", f"head {h}", style, wrong=cut))
        arrows.append(Arrow(f"{key}Z{h}", f"{key}joined", "join" * (h == 0)))
    grids[f"{key}joined"] = grid(middle, 2, moved[-2], "joined", *of_head)
    grids[f"{key}output"] = grid(middle, 3, moved[-1], "output", *plain)
    return grids, [*arrows, Arrow(f"{key}joined", f"{key}output", "× W_out")]


# --- the task with roles ----------------------------------------------------------------------

ROLES = (5, 1, 6, 7, 3, 0, 2, 4)  # of tokens 0 to 7 in the example; 0 is the noun, 1 the verb


def role_task(weights=None, title="One example of the task"):
    """Draw one example: eight tokens with roles and 8 numbers each; "it", the last, reports two.

    weights: (heads, 8), the weights of "it" on each role; with them what each head brings back.
    """
    numbers = torch.randn(8, 8, generator=torch.Generator().manual_seed(5))
    names = ["noun", "verb", *(f"role {i}" for i in range(2, 8))]
    rows, colour = [*(f"token {i}" for i in range(7)), "it"], {0: KEY, 1: QUERY}
    tint = [[colour.get(role, "white")] for role in ROLES]
    wide = {"cell": (31, 17), "decimals": 1}
    shown, count = [["?"]] * 8, 1
    if weights is not None:
        by_token = weights.detach()[:, list(ROLES)].mT  # (8 tokens, heads)
        shown, count = by_token.tolist(), by_token.shape[1]
    x, low = 92 + 34 * count + 28, 8 * 17 + 62
    grids = {
        "role": Grid(0, 0, [[names[role]] for role in ROLES], "role", "", (48, 17), rows, tint),
        "weight": Grid(86, 0, shown, "weights of it", "", (34, 17)),
        "numbers": Grid(x, 0, numbers.tolist(), "numbers", tint=[t * 8 for t in tint], **wide),
    }
    arrows = [Arrow("weight", "numbers", "×", "word")]
    told = "The noun is token 5, the verb token 1; it must report the numbers of both."
    if weights is not None:
        grids["weight"] = replace(grids["weight"], tint=_shade(by_token))
        heads = [f"head {h}" for h in range(count)]
        back = (by_token.mT @ numbers).tolist()
        grids["back"] = Grid(x, low, back, "what comes back", "", rows=heads, **wide)
        arrows.append(Arrow("numbers", "back", "weigh and add up"))
        low += 17 * count + 40
        told += " One head brings" if count == 1 else f" {count} heads bring"
        told += f" back {'one blend' if count == 1 else 'a blend each'}."
    asked, faces = (
        [numbers[ROLES.index(role)].tolist() for role in (0, 1)],
        [[KEY] * 8, [QUERY] * 8],
    )
    grids["asked"] = Grid(
        x, low, asked, "what it must report", "", rows=names[:2], tint=faces, **wide
    )
    return flow(grids, arrows, title, told)
