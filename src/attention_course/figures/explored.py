"""The pictures of the explorers: each takes numbers that are already computed and draws them."""

import math
import textwrap

import torch

from ..tables import power_text
from .sheet import BLUE, FAINT, INK, LINE, MOST_NUMBERS, ORANGE, TINTS, Sheet, drawable, turned

MOST_NUMBERED_TOKENS = 8  # more rows than this, and the cells stay without numbers


def sentence(text):
    """Draw a sentence in the place of a picture."""
    lines = textwrap.wrap(text, 62)
    sheet = Sheet(40 + 20 * len(lines))
    for i, line in enumerate(lines):
        sheet.text(20, 30 + 20 * i, line, 13)
    return sheet.picture(text)


def query(words, chosen, scores, weights, context, divided, size, curves):
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


def mask(words, weights, hidden, dropped, moved, disturbed):
    """Draw the weights, hidden cells hatched, their row sums, and how far each output moved.

    weights, hidden, dropped: (tokens, tokens). moved: (tokens,), None where no token is
    disturbed. disturbed: the number of that token.
    """
    left, top, wide, high = 62, 62, 44, 32
    sheet = Sheet(top + high * len(words) + 50)
    sheet.title(left, 14, "weights")
    sheet.text(left + 62, 14, "row: token that attends, column: attended to", 11, color=FAINT)
    sheet.matrix(left, top, weights, (wide, high), words, words, hidden, (0.0, 1.0))
    for i, j in dropped.nonzero().tolist():
        sheet.text(left + (j + 0.5) * wide + 14, top + i * high + 9, "×", 12, "center")
    right = left + wide * len(words)
    sheet.text(right + 24, top - 10, "sum", 11.5, "center")
    for i, total in enumerate(weights.sum(-1).tolist()):
        sheet.text(right + 24, top + (i + 0.5) * high, f"{total:.2f}", 11.5, "center")
    bottom = top + high * len(words)
    sheet.text(left, bottom + 16, "hatched: hidden by the mask", 11.5, color=FAINT)
    if dropped.any():
        sheet.text(left, bottom + 34, "×: dropped by dropout", 11.5, color=FAINT)
    _moved(sheet, right + 60, top, high, moved, disturbed)
    told = "no token is disturbed" if moved is None else f"{words[disturbed]} is disturbed"
    return sheet.picture(
        f"Heat map: weights of {len(words)} words, {int(hidden.sum())} cells hidden, "
        f"{int(dropped.sum())} dropped, with the sum of each row; bars: how far each output "
        f"moved; {told}."
    )


def _moved(sheet, left, top, step, moved, disturbed):
    sheet.title(left, 14, "output moved")
    if moved is None:
        sheet.text(left, top + step / 2, "no token disturbed", 11.5, color=FAINT)
        return
    unit = 60 / (max(moved.tolist()) or 1)
    for i, amount in enumerate(moved.tolist()):
        y = top + (i + 0.5) * step
        if i == disturbed:
            sheet.text(left - 12, y, "▶", 12, "center", color=ORANGE)
        if amount == 0:
            sheet.text(left, y, "stays", 11.5, color=FAINT)
            continue
        sheet.bar(left, y - 9, amount * unit, 18, ORANGE)
        sheet.text(left + amount * unit + 4, y, f"{amount:.2f}", 11.5)
    sheet.text(left, top - 10, "▶ disturbed", 11, color=ORANGE)


def heads(weights, d_model, chosen, followed, words):
    """Draw the heads as bands of W_Q and W_out, and the weights of every head on one scale.

    weights: (num_heads, tokens, tokens). chosen: a head, followed: an input number, from 0.
    """
    num_heads, tokens, _ = weights.shape
    head_dim = d_model // num_heads
    sheet = Sheet(570)
    plural = "" if num_heads == 1 else "s"
    sheet.title(20, 16, f"d_model {d_model} = {num_heads} head{plural} × {head_dim} (head_dim)")
    sheet.text(
        20,
        38,
        f"W_Q, W_K, W_V, W_out: 4 × {d_model} × {d_model} = {4 * d_model**2} parameters, "
        f"for any num_heads",
        12,
    )
    _project(sheet, d_model, num_heads, chosen, followed)
    _mix(sheet, d_model, num_heads, chosen)
    top = 330
    limits = (0.0, weights.max().item())
    sheet.title(20, top, f"head {chosen + 1}, untrained: its weights")
    cell = (35, 30)
    sheet.matrix(54, top + 42, weights[chosen], cell, words, words, None, limits, size=10.5)
    _small_multiples(sheet, 288, top, weights, chosen, limits)
    return sheet.picture(
        f"Diagram: number {followed + 1} of the input meets its own row of W_Q in all "
        f"{num_heads} heads; the joined heads and W_out, {d_model} by {d_model}, with the rows "
        f"of head {chosen + 1} outlined. Heat maps: the weights of {num_heads} untrained heads "
        f"over {tokens} words, on one scale."
    )


def _project(sheet, d_model, num_heads, chosen, followed):
    left, top, side = 60, 92, 168
    cell, band = side / d_model, side / num_heads
    sheet.text(left, 62, "input times W_Q", 11.5)
    for h in range(num_heads):
        x = left + h * band
        sheet.box(x, top, band, side, TINTS[h % 2])
        sheet.box(x, top + followed * cell, band, cell, ORANGE)
        _head_name(sheet, x + band / 2, top - 9, h, num_heads)
        sheet.box(x, top + side + 16, band, 14, TINTS[h % 2], LINE)
    for i in range(d_model):
        face = ORANGE if i == followed else "white"
        sheet.box(left - 22, top + i * cell, 14, cell, face, LINE, 0.6)
    sheet.box(left, top, side, side, edge=LINE)
    sheet.box(left + chosen * band, top, band, side, edge=INK, line=1.8)
    y = top + (followed + 0.5) * cell
    sheet.text(left - 26, y, f"{followed + 1}", 12, "right", weight="bold", color=ORANGE)
    sheet.text(left - 5, top + side + 23, "joined", 11, "right", color=FAINT)
    sheet.text(left + side / 2, top + side + 44, _bands(num_heads), 11, "center", color=FAINT)


def _bands(num_heads):
    return "one band for each head" if num_heads > 1 else "one head, one band"


def _mix(sheet, d_model, num_heads, chosen):
    left, top, side = 310, 92, 168
    band = side / num_heads
    sheet.text(left, 62, "joined times W_out", 11.5)
    for h in range(num_heads):
        sheet.box(left - 22, top + h * band, 14, band, TINTS[h % 2], LINE)
        sheet.box(left, top + h * band, side, band, TINTS[h % 2])
        if num_heads <= 12:
            sheet.text(left - 26, top + (h + 0.5) * band, str(h + 1), 11, "right")
    sheet.box(left, top, side, side, edge=LINE)
    sheet.box(left, top + chosen * band, side, band, edge=INK, line=1.8)
    cell = side / d_model
    for j in range(d_model):
        sheet.box(left + j * cell, top + side + 16, cell, 14, "white", LINE, 0.6)
    sheet.text(left - 5, top + side + 23, "output", 11, "right", color=FAINT)
    sheet.text(
        left + side / 2, top + side + 44, "each output number uses all", 11, "center", color=FAINT
    )


def _head_name(sheet, x, y, h, num_heads):
    sheet.text(x, y, f"head {h + 1}" if num_heads <= 4 else str(h + 1), 10.5, "center")


def _small_multiples(sheet, left, top, weights, chosen, limits):
    num_heads, tokens, _ = weights.shape
    across = math.ceil(math.sqrt(num_heads))
    step = 204 / across
    side = step - 14
    sheet.title(left, top, f"all {num_heads}, one scale: 0 to {limits[1]:.2f}")
    for h in range(num_heads):
        x, y = left + h % across * step, top + 36 + h // across * (step + 6)
        sheet.matrix(x, y, weights[h], (side / tokens,) * 2, limits=limits, decimals=None)
        _head_name(sheet, x + side / 2, y - 9, h, num_heads)
        if h == chosen:
            sheet.box(x, y, side, side, edge=INK, line=2)


def split(w_query, order, difference, shape, largest, times):
    """Draw W_Q with its head bands, and where loop and split differ.

    w_query: (d_model, d_model), inputs down. order: the head in each band. difference:
    (tokens, d_model) of the first item. largest: text. times: {name: seconds}, may be empty.
    """
    d_model, num_heads = w_query.shape[0], len(order)
    side, top = 200, 78
    sheet = Sheet(380)
    sheet.title(34, 16, "W_Q: the heads side by side")
    decimals = 1 if d_model <= MOST_NUMBERED_TOKENS else None
    sheet.matrix(34, top, w_query, (side / d_model,) * 2, decimals=decimals, size=10.5)
    band = side / num_heads
    for place, h in enumerate(order):
        sheet.box(34 + place * band, top, band, side, edge=INK, line=1.6)
        _head_name(sheet, 34 + (place + 0.5) * band, top - 10, h, num_heads)
    sheet.text(20, top + side / 2, "input numbers", 11.5, "center", rotation=90)
    sheet.text(34, 40, f"{d_model} × {d_model}", 11.5, color=FAINT)
    sheet.title(284, 16, "output, |loop − split|")
    sheet.text(284, 40, f"both outputs have shape {shape}", 11.5, color=FAINT)
    tokens = difference.shape[0]
    cell = (side / d_model, min(side / tokens, 25))
    same = largest.startswith("below")
    shown = torch.zeros_like(difference) if same else difference
    decimals = None if same or max(d_model, tokens) > MOST_NUMBERED_TOKENS else 2
    sheet.matrix(284, top, shown, cell, limits=(0.0, shown.max().item() or 1.0), decimals=decimals)
    if same:
        place = (284 + side / 2, top + cell[1] * tokens / 2)
        sheet.text(*place, "0 up to rounding", 12, "center", color=FAINT)
    sheet.text(272, top + cell[1] * tokens / 2, "tokens", 11.5, "center", rotation=90)
    sheet.text(284 + side / 2, top - 10, "d_model", 11.5, "center")
    sheet.title(284, top + side + 18, f"difference: {largest}")
    if max(d_model, tokens) > MOST_NUMBERED_TOKENS:
        sheet.text(34, top + side + 18, "too many cells for numbers", 11.5, color=FAINT)
    _times(sheet, top + side + 40, times)
    return sheet.picture(
        f"Heat maps: W_Q, {d_model} by {d_model}, with the bands of {num_heads} heads, and the "
        f"difference between loop and split, {tokens} tokens by {d_model} numbers."
        + (" Bars: their times." if times else "")
    )


def _times(sheet, top, times):
    if not times:
        sheet.text(34, top + 12, "times: not measured for these sizes", 11.5, color=FAINT)
        return
    unit = 300 / max(times.values())
    for i, (name, seconds) in enumerate(times.items()):
        y = top + 4 + 22 * i
        sheet.text(76, y + 8, name, 12, "right")
        sheet.bar(84, y, seconds * unit, 16)
        sheet.text(90 + seconds * unit, y + 8, f"{seconds * 1e3:.3f} ms", 11.5)


def shapes(numbers, names, reach_query, reach_input, title, note):
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


def word_order(first, second, differences, rounding):
    """Draw the weights of two orders side by side and the difference of each word's output.

    first, second: (words, weights (tokens, tokens), hidden or None). differences: {word: size};
    sizes below `rounding` are rounding.
    """
    words = [drawable(word, i + 1, room=56) for i, word in enumerate(first[0])]
    tokens = len(words)
    high = max(17, min(36, 190 // tokens))
    top = 52 + 8 * max(map(len, words)) if turned(words, 178 / tokens) else 56
    bottom = top + high * tokens
    sheet = Sheet(bottom + 84 + 20 * tokens)
    names = dict(zip(first[0], words, strict=True))
    limits = (0.0, max(first[1].max().item(), second[1].max().item()))
    decimals = 2 if tokens <= MOST_NUMBERED_TOKENS else None
    for x, title, (order, weights, hidden) in (
        (66, "weights, first order", first),
        (316, "weights, second order", second),
    ):
        sheet.title(x, 14, title)
        labels = [names[word] for word in order]
        cell = (178 / tokens, high)
        size = min(11.0, cell[0] / 1.9)
        sheet.matrix(x, top, weights, cell, labels, labels, hidden, limits, decimals, size)
    sheet.title(20, bottom + 26, "difference of each word's output between the two orders")
    _differences(sheet, bottom + 42, words, list(differences), rounding)
    if decimals is None:
        text = f"more than {MOST_NUMBERED_TOKENS} words: no numbers in the cells"
        sheet.text(480, sheet.height - 12, text, 11, "right", color=FAINT)
    return sheet.picture(
        f"Two heat maps: the weights of {tokens} words in two orders, on one scale. Bars: how far "
        f"each word's output differs between them, against the rounding size "
        f"{power_text(rounding)}."
    )


def _differences(sheet, top, words, sizes, rounding):
    left, unit = 90, 32  # pixels for each power of ten, from 1e-9

    def place(size):
        return left + unit * max(0.0, math.log10(max(size, 1e-9)) + 9)

    for i, (word, size) in enumerate(zip(words, sizes, strict=True)):
        y, real = top + 20 * i, size >= rounding
        sheet.text(left - 6, y + 9, word, 12, "right")
        sheet.bar(left, y + 2, place(size) - left, 14, ORANGE if real else LINE)
        text = f"{size:.2g}" if real else "0" if size == 0 else "rounding"
        sheet.text(max(place(size), place(rounding)) + 6, y + 9, text, 11.5)
    bottom = top + 20 * len(words)
    sheet.line([place(rounding)] * 2, [top, bottom + 4], INK, linestyle="--")
    sheet.text(
        place(rounding), bottom + 14, f"rounding: below {power_text(rounding)}", 11, "center"
    )
