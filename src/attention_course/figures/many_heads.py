"""Several heads, at once and in a loop, each number coloured by where it comes from."""

import torch

from ..attention import attention, causal_mask
from .flow import Arrow, Grid, flow, shades

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
        more |= {"tint": shades(weights), "hidden": causal_mask(tokens).tolist(), "step": 3}
        more |= {"cell": (side, side), "behind": self.batch - 1}
        return Grid(x, y, [[None] * tokens] * tokens, "weights" * named, shape * named, **more)


def _head_grids(paint, numbered, parts, merged, weights, kept, split, merge):
    heads, tokens, head_dim = parts.shape
    side = max(10, head_dim * paint.wide / tokens)
    block = max(side * tokens, head_dim * paint.wide) + 12
    x1 = (12 if paint.labelled else 6) * paint.d_model + 74  # room for "× W_out" and its arrow
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
