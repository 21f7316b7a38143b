"""Notebook 5: the tensor of every step, and where numbers go."""

import math

import ipywidgets as widgets
import torch

from ..attention import MultiHeadAttention, attention
from ..figures.sheet import BLUE, FAINT, INK, MOST_NUMBERS, ORANGE, TINTS, Sheet
from .explorer import Explorer
from .parts import LABEL, ROUNDING, WIDE, check_heads, choice, count, random_input, untrained, whole

_STEPS = ["project", "split", "attend", "merge", "W_out"]
_TRANSPOSES = [
    ("right: view, transpose", "right"),
    ("wrong: view alone", "view"),
    ("wrong: no transpose", "none"),
]


def explore_shapes():
    """Explore the shapes of multi-head attention, step by step, and where numbers go.

    Entries are numbered 100 · token + feature, both from 0. Two numbers of token 1 in batch
    item 0 are followed: one of its query, one of its input. No mask.
    Source: lecture 8, 26:51 to 36:25.
    """
    controls = {
        "batch": whole("batch", 1, 3, 2),
        "tokens": whole("tokens", 1, 8, 5),
        "d_model": whole("d_model", 1, 24, 12),
        "num_heads": whole("num_heads", 1, 12, 3),
        "step": widgets.SelectionSlider(
            options=_STEPS,
            value="split",
            description="step",
            continuous_update=False,
            layout=WIDE,
            style=LABEL,
        ),
        "transpose": choice("transpose", _TRANSPOSES, "right"),
    }
    return Explorer("explore_shapes", controls, _render_shapes)


def _render_shapes(state):
    batch, tokens, d_model, num_heads = (
        state[name] for name in ("batch", "tokens", "d_model", "num_heads")
    )
    step, way = state["step"], state["transpose"]
    check_heads(d_model, num_heads)
    token, feature = min(1, tokens - 1), min(4, d_model - 1)
    module = untrained(MultiHeadAttention, d_model, num_heads)
    x = random_input(batch, tokens, d_model)
    nudged = x.clone()
    nudged[0, token, feature] += 1.0
    before = _walk(module, x, way)
    by_query = _walk(module, x, way, nudge=(0, token, feature))
    by_input = _walk(module, nudged, way)
    reach_query, reach_input = (
        (before[step] - after[step]).abs() > ROUNDING for after in (by_query, by_input)
    )
    numbers = 100 * torch.arange(tokens)[:, None] + torch.arange(d_model)  # (tokens, d_model)
    numbers = _number(module, numbers.expand(batch, -1, -1), way, step)
    names = _axes(step, way)
    picture = draw(
        numbers, names, reach_query, reach_input, f"step {step}: {tuple(numbers.shape)}",
        _note(step, way),
    )  # fmt: skip
    heads = _reached(reach_query, step, way), _reached(reach_input, step, way)
    axes = ", ".join(names)
    return picture, (
        f"Step {_STEPS.index(step) + 1} of 5, {step}: shape {tuple(numbers.shape)}, ({axes}). "
        f"{_note(step, way).capitalize()}. Number {feature} of token {token}'s query reaches "
        f"{heads[0]}; number {feature} of its input reaches {heads[1]}."
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
        context, _ = attention(*split)
        joined = _merge(module, context, way)
        steps = (queries, split[0], context, joined, module.W_out(joined))
    return dict(zip(_STEPS, steps, strict=True))


def _split(module, projected, way):
    if way == "view":  # straight to (batch, num_heads, tokens, head_dim): cuts memory in order
        return projected.reshape(len(projected), module.num_heads, -1, module.head_dim)
    split = module._split(projected)
    return (
        split if way == "right" else split.transpose(1, 2)
    )  # (batch, tokens, num_heads, head_dim)


def _merge(module, context, way):
    return context.flatten(-2) if way == "none" else module._merge(context)


def _number(module, numbers, way, step):
    """Return the numbered entries where `step` puts them; W_out numbers its own output."""
    if step in ("project", "W_out"):
        return numbers
    split = _split(module, numbers, way)
    return _merge(module, split, way) if step == "merge" else split


def _axes(step, way):
    if step not in ("split", "attend"):
        return ("batch", "tokens", "d_model")
    if way == "none":
        return ("batch", "tokens", "num_heads", "head_dim")
    return ("batch", "num_heads", "tokens", "head_dim")


def _note(step, way):
    if step == "project":
        return "queries of all heads in one row"
    if step == "W_out":
        return "every output number is a mix of its row"
    notes = {
        ("split", "right"): "each head has its own columns of every token",
        ("split", "view"): "the shape is right, but memory is cut in order: rows are no tokens",
        ("split", "none"): "each block is one token, its rows are heads",
        ("attend", "right"): "each row is now a mix over the tokens of its head",
        ("attend", "view"): "each row is now a mix over pieces of a few tokens",
        ("attend", "none"): "each row is now a mix over heads: tokens never meet",
        ("merge", "right"): "the heads' numbers of a token stand side by side again",
        ("merge", "view"): "the shape is right, but a row holds pieces of several tokens",
        ("merge", "none"): "the numbers are in place, but no token has seen another",
    }
    return notes[step, way]


def _reached(reach, step, way):
    """Say in words where a changed number arrived, from what moved in batch item 0."""
    if not reach.any():
        return "nothing here"
    entries = count(int(reach.sum()), "entry", "entries")
    if step not in ("split", "attend") or way == "none":
        return entries
    found = reach[0].any(dim=(-1, -2)).nonzero().flatten().tolist()
    heads = f"head {found[0]}" if len(found) == 1 else f"heads {', '.join(map(str, found))}"
    return f"{entries} in {heads}"


def draw(numbers, names, reach_query, reach_input, title, note):
    """Draw a tensor as labelled blocks, entries numbered 100 · token + feature.

    numbers: (batch, tokens, d_model) or (batch, blocks, rows, columns), whole numbers. names: its
    axes. reach_query, reach_input: Boolean, the same shape: where a followed number arrived.
    """
    batch, (rows, columns) = numbers.shape[0], numbers.shape[-2:]
    blocked = [tensor.reshape(batch, -1, rows, columns) for tensor in (numbers, reach_query)]
    blocked.append(reach_input.reshape(batch, -1, rows, columns))
    blocks = blocked[0].shape[1]
    across = max(1, min(blocks, 20 // columns))
    lines = math.ceil(blocks / across)
    wide = min(36.0, (440 - 10 * across) / (across * columns))
    high = 17
    block = (columns * wide + 10, rows * high + 24)
    sheet = Sheet(int(88 + batch * (lines * block[1] + 12) + 44))
    sheet.title(20, 16, title)
    sheet.text(20, 37, ", ".join(f"{n} {s}" for n, s in zip(names, numbers.shape, strict=True)))
    sheet.text(20, 58, note, 11.5, color=FAINT)
    numbered = numbers.numel() <= MOST_NUMBERS and wide >= 20
    kind = names[1].removeprefix("num_").rstrip("s")  # of a block: head or token
    for b in range(batch):
        for k in range(blocks):
            x = 58 + k % across * block[0]
            y = 92 + b * (lines * block[1] + 12) + k // across * block[1]
            if blocks > 1:
                sheet.text(x, y - 9, f"{kind} {k}" if block[0] > 52 else str(k), 11)
            _block(sheet, x, y, (wide, high), *[part[b, k] for part in blocked], numbered)
        middle = 92 + b * (lines * block[1] + 12) + (lines * block[1] - 24) / 2
        size = 11.5 if lines * block[1] > 50 else 9  # a single row is lower than its name is long
        sheet.text(22, middle, f"sequence {b}", size, "center", rotation=90)
    y = sheet.height - 30
    sheet.box(58, y - 6, 16, 12, ORANGE)
    sheet.text(80, y, "bold, orange: one number of a query", 11.5)
    sheet.box(300, y - 6, 16, 12, TINTS[0], BLUE)
    sheet.text(322, y, "italic, blue: one of the input", 11.5)
    if not numbered:
        sheet.text(58, y + 17, "too many entries for numbers in the cells", 11.5, color=FAINT)
    return sheet.picture(
        f"Blocks: {title}, {', '.join(names)} = {tuple(numbers.shape)}, entries numbered by "
        f"token and feature."
    )


def _block(sheet, x, y, cell, numbers, reach_query, reach_input, numbered):
    wide, high = cell
    rows, columns = numbers.shape
    colours = torch.ones(rows, columns, 3)
    colours[reach_input] = torch.tensor([0.80, 0.88, 0.96])
    colours[reach_query] = torch.tensor([0.76, 0.33, 0.04])
    extent = (x, x + columns * wide, y + rows * high, y)
    sheet.ax.imshow(colours.numpy(), extent=extent, aspect="auto", interpolation="nearest")
    sheet.box(x, y, columns * wide, rows * high, edge=INK, line=1)
    sheet.grid(x, y, cell, rows, columns)
    if not numbered:
        return
    size = min(11.0, wide / 2.1)
    for i in range(rows):
        for j in range(columns):
            centre = (x + (j + 0.5) * wide, y + (i + 0.5) * high)
            style = {"style": "italic"} if reach_input[i, j] else {}
            if reach_query[i, j]:
                style = {"color": "white", "weight": "bold"}
            sheet.number(*centre, str(int(numbers[i, j])), size, **style)
