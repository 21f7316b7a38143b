"""Notebook 5: the tensor of every step, and where numbers go."""

import math

import torch

from ..attention import MultiHeadAttention, attention
from ..figures.sheet import BLUE, FAINT, INK, MOST_NUMBERS, ORANGE, TINTS, Sheet, short_number
from .explorer import Explorer
from .parts import ROUNDING, choice, count, head_dim, random_input, steps, untrained, whole

_STEPS = ["project", "split", "scores", "attend", "merge", "W_out"]
_TRANSPOSES = [
    ("right: view, transpose", "right"),
    ("wrong: view alone", "view"),
    ("wrong: no transpose", "none"),
]
_NOTES = {
    "project": "queries of all heads in one row",
    "W_out": "every output number is a mix of its row",
    ("split", "right"): "each head has its own columns of every token",
    ("split", "view"): "the shape is right, but memory is cut in order: rows are no tokens",
    ("split", "none"): "each block is one token, its rows are heads",
    ("scores", "right"): "each head: one score for each token with each token",
    ("scores", "view"): "the shape is right, but rows and columns are pieces of tokens",
    ("scores", "none"): "each token: one score for each head with each head",
    ("attend", "right"): "each row is now a mix over the tokens of its head",
    ("attend", "view"): "each row is now a mix over pieces of a few tokens",
    ("attend", "none"): "each row is now a mix over heads: tokens never meet",
    ("merge", "right"): "the heads' numbers of a token stand side by side again",
    ("merge", "view"): "the shape is right, but a row holds pieces of several tokens",
    ("merge", "none"): "the numbers are in place, but no token has seen another",
}
# of a cell that no followed number reached, one of the input, one of a query
_FACES = torch.tensor([[255, 255, 255], [219, 231, 243], [194, 84, 10]], dtype=torch.uint8).numpy()
_STYLES = ({}, {"italic": True}, {"color": "white", "bold": True})
_TASKS = (
    (
        "Try: turn step to scores. Why are there four axes, and two of them tokens?",
        lambda state: state["step"] == "scores",
    ),
    (
        "Every head of every sequence has a table of its own. Choose the wrong way, view alone: "
        "at which step does the shape show it?",
        lambda state: state["transpose"] == "view" and state["step"] != "scores",
    ),
    ("At none. Set it right and turn step to W_out: how far has one number of a query come?", None),
)


def explore_shapes():
    """Explore the shapes of multi-head attention, step by step, and where numbers go.

    Until the split a cell shows where its number comes from, as 100 · token + feature; from the
    scores on, numbers are mixtures, and a cell shows the number itself. Two numbers of token 1
    in batch item 0 are followed: one of its query, one of its input. No mask. All counts start
    at 0. Source: lecture 8, 26:51 to 36:25.
    """
    controls = {
        "batch": whole("batch", 1, 3, 2),
        "tokens": whole("tokens", 1, 8, 5),
        "d_model": whole("d_model", 1, 24, 12),
        "num_heads": whole("num_heads", 1, 12, 3),
        "step": steps("step", _STEPS, "split"),
        "transpose": choice("transpose", _TRANSPOSES, "right"),
    }
    return Explorer("explore_shapes", controls, _render, _TASKS)


def _render(state):
    batch, tokens, d_model = state["batch"], state["tokens"], state["d_model"]
    step, way = state["step"], state["transpose"]
    head_dim(state)  # says which sizes do not fit
    token, feature = min(1, tokens - 1), min(4, d_model - 1)
    module = untrained(MultiHeadAttention, d_model, state["num_heads"])
    x = 2 * random_input(batch, tokens, d_model)
    nudged = x.clone()
    nudged[0, token, feature] += 1.0
    before = _walk(module, x, way)
    by_query = _walk(module, x, way, nudge=(0, token, feature))
    by_input = _walk(module, nudged, way)
    reach_query, reach_input = (
        (before[step] - after[step]).abs() > ROUNDING for after in (by_query, by_input)
    )
    numbers = before[step]
    if step in ("project", "split"):
        numbers = _addresses(module, batch, tokens, way, step)
    names, note = _axes(step, way), _NOTES.get(step) or _NOTES[step, way]
    title = f"step {step}: {tuple(numbers.shape)}"
    picture = draw(numbers, names, reach_query, reach_input, title, note)
    heads = _reached(reach_query, step, way), _reached(reach_input, step, way)
    return picture, (
        f"Step {_STEPS.index(step) + 1} of 6, {step}: shape {tuple(numbers.shape)}, "
        f"({', '.join(names)}). {note.capitalize()}. Number {feature} of token {token}'s query "
        f"reaches {heads[0]}; number {feature} of its input reaches {heads[1]}."
    )


def _walk(module, x, way, nudge=None):
    """Return {step: tensor}; `nudge` is the entry of the projected queries to change."""
    with torch.no_grad():
        queries, keys, values = (
            layer(x) for layer in (module.W_query, module.W_key, module.W_value)
        )
        if nudge:
            queries[nudge] += 1.0
        split = [_split(module, tensor, way) for tensor in (queries, keys, values)]
        scores = split[0] @ split[1].mT / math.sqrt(module.head_dim)
        context, _ = attention(*split)
        joined = _merge(module, context, way)
        found = (queries, split[0], scores, context, joined, module.W_out(joined))
    return dict(zip(_STEPS, found, strict=True))


def _split(module, projected, way):
    if way == "view":  # straight to (batch, num_heads, tokens, head_dim): cuts memory in order
        return projected.reshape(len(projected), module.num_heads, -1, module.head_dim)
    split = module._split(projected)
    # without the transpose: (batch, tokens, num_heads, head_dim)
    return split if way == "right" else split.transpose(1, 2)


def _merge(module, context, way):
    return context.flatten(-2) if way == "none" else module._merge(context)


def _addresses(module, batch, tokens, way, step):
    """Return 100 · token + feature of each query number, where `step` puts it."""
    numbers = 100 * torch.arange(tokens)[:, None] + torch.arange(module.d_model)
    numbers = numbers.expand(batch, -1, -1)  # (tokens, d_model) -> (batch, tokens, d_model)
    return _split(module, numbers, way) if step == "split" else numbers


def _axes(step, way):
    if step in ("project", "merge", "W_out"):
        return ("batch", "tokens", "d_model")
    blocks, rows = ("tokens", "num_heads") if way == "none" else ("num_heads", "tokens")
    return ("batch", blocks, rows, rows if step == "scores" else "head_dim")


def _reached(reach, step, way):
    """Say in words where a changed number arrived, from what moved in batch item 0."""
    if not reach.any():
        return "nothing here"
    entries = count(int(reach.sum()), "entry", "entries")
    if reach.dim() == 3 or way == "none":
        return entries
    found = reach[0].any(dim=(-1, -2)).nonzero().flatten().tolist()
    heads = f"head {found[0]}" if len(found) == 1 else f"heads {', '.join(map(str, found))}"
    return f"{entries} in {heads}"


def draw(numbers, names, reach_query, reach_input, title, note):
    """Draw a tensor as labelled blocks.

    numbers: (batch, tokens, d_model) or (batch, blocks, rows, columns); whole numbers are
    addresses. names: its axes. reach_query, reach_input: Boolean, the same shape: where a
    followed number arrived.
    """
    batch, (rows, columns) = numbers.shape[0], numbers.shape[-2:]
    parts = [p.reshape(batch, -1, rows, columns) for p in (numbers, reach_query, reach_input)]
    blocks = parts[0].shape[1]
    across = max(1, min(blocks, 20 // columns))
    lines = math.ceil(blocks / across)
    wide, high = min(36.0, (440 - 10 * across) / (across * columns)), 17
    step_x, step_y = columns * wide + 10, rows * high + 24
    tall = lines * step_y + 12  # one sequence
    numbered = numbers.numel() <= MOST_NUMBERS and wide >= 20
    kind = names[1].removeprefix("num_").rstrip("s")  # of a block: head or token
    sheet = Sheet()
    sheet.title(20, 16, title)
    sheet.text(20, 37, ", ".join(f"{n} {s}" for n, s in zip(names, numbers.shape, strict=True)))
    sheet.text(20, 58, note, 11.5, color=FAINT)
    for b in range(batch):
        for k in range(blocks):
            x, y = 58 + k % across * step_x, 92 + b * tall + k // across * step_y
            if blocks > 1:
                sheet.text(x, y - 9, f"{kind} {k}" if step_x > 52 else str(k), 11)
            _block(sheet, x, y, (wide, high), *[part[b, k] for part in parts], numbered)
        middle = 92 + b * tall + (tall - 36) / 2
        size = 11.5 if tall > 62 else 9  # a single row is lower than its name is long
        sheet.text(22, middle, f"sequence {b}", size, "center", upright=True)
    shows = _legend(sheet, 102 + batch * tall, not numbers.is_floating_point(), numbered)
    return sheet.picture(138 + batch * tall, f"Blocks: {title}, {', '.join(names)}; {shows}.")


def _legend(sheet, y, addresses, numbered):
    """Write what colours and numbers mean; return what the numbers do."""
    sheet.box(58, y - 6, 16, 12, ORANGE)
    sheet.text(80, y, "bold, orange: one number of a query", 11.5)
    sheet.box(300, y - 6, 16, 12, TINTS[0], BLUE)
    sheet.text(322, y, "italic, blue: one of the input", 11.5)
    shows = "each cell: its number, by now a mixture"
    if addresses:
        shows = "each cell: 100 · token + feature, where its number comes from"
    if not numbered:
        shows = "too many entries for numbers in the cells"
    sheet.text(58, y + 19, shows, 11.5, color=FAINT)
    return shows


def _block(sheet, x, y, cell, numbers, reach_query, reach_input, numbered):
    """Draw one table of the tensor; what followed numbers reached is coloured."""
    (wide, high), (rows, columns) = cell, numbers.shape
    size, decimals = min(11.0, wide / 2.1), 2 if wide >= 30 else 1
    followed = reach_query.long().mul(2).where(reach_query, reach_input.long())
    sheet.cells(x, y, cell, _FACES[followed.numpy()])
    for i in range(1, rows):
        sheet.line([(x, y + i * high), (x + columns * wide, y + i * high)], "#dddddd", width=0.8)
    for j in range(1, columns):
        sheet.line([(x + j * wide, y), (x + j * wide, y + rows * high)], "#dddddd", width=0.8)
    sheet.box(x, y, columns * wide, rows * high, edge=INK)
    kinds = followed.tolist()
    for i, row in enumerate(numbers.tolist() if numbered else []):
        for j, number in enumerate(row):
            text = short_number(number, decimals, 0) if numbers.is_floating_point() else str(number)
            middle = (x + (j + 0.5) * wide, y + (i + 0.5) * high)
            sheet.text(*middle, text, size, "center", **_STYLES[kinds[i][j]])
