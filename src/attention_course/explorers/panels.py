"""Parts of a picture that several explorers draw: a head's weights, what moved, every head."""

import math

from ..figures.sheet import BLUE, FAINT, INK, ORANGE, drawable, turned

MOST_NUMBERED_TOKENS = 8  # more rows than this, and the cells stay without numbers
WIDEST_WORD = 56  # pixels


def names_of(words):
    """Return the words as they stand beside a table: cut where they are long."""
    return [drawable(word, i, WIDEST_WORD) for i, word in enumerate(words)]


def head_table(sheet, top, weights, words, columns=None, hidden=None, limits=(0.0, 1.0)):
    """Draw the weights of one head with the sums of its rows.

    weights, hidden: (queries, keys). top: where the names of the columns begin. Returns (left,
    top, step) for what stands to the right of the table: where it begins, and the rows' height.
    """
    (rows, keys), left, columns = weights.shape, 62, columns or words
    cell = (min(44, 264 / keys), max(17, min(30, 190 / rows)))
    top += names_height(columns, cell[0])
    decimals = 2 if max(rows, keys) <= MOST_NUMBERED_TOKENS else None
    sheet.matrix(left, top, weights, cell, words, columns, hidden, limits, decimals, 10.5)
    right = left + cell[0] * keys + 24
    sheet.text(right, top - 10, "sum", 11.5, "center")
    for i, total in enumerate(weights.sum(-1).tolist()):
        odd = not abs(total - 1) < 1e-3
        style = {"color": ORANGE if odd else INK, "bold": odd}
        sheet.text(right, top + (i + 0.5) * cell[1], f"{total:.2f}", 11.5, "center", **style)
    return right + 38, top, cell[1]


def names_height(names, step):
    """Return how many pixels the names above columns `step` pixels wide take."""
    return 10 + 8 * max(map(len, names)) if turned(names, step) else 20


def moved_bars(sheet, left, top, step, moved, disturbed, odd=()):
    """Draw how far each token's output moved; moved: (tokens,), disturbed: the token changed.

    odd: the tokens that should not have moved.
    """
    sheet.text(left, top - 28, "output moved", 11.5, bold=True)
    sheet.text(left, top - 10, "▶ disturbed", 11, color=ORANGE)
    unit = min(60, 445 - left) / (moved.nan_to_num(0.0).max().item() or 1)
    for i, amount in enumerate(moved.tolist()):
        y = top + (i + 0.5) * step
        if i == disturbed:
            sheet.text(left - 10, y, "▶", 12, "center", ORANGE)
        if not amount > 0:
            sheet.text(left, y, "NaN" if math.isnan(amount) else "stays", 11.5, color=FAINT)
            continue
        color = ORANGE if i in odd else BLUE
        sheet.bar(left, y - 0.28 * step, amount * unit, 0.56 * step, color)
        text = f"{amount:.2g} ✗" if i in odd else f"{amount:.2g}"
        sheet.text(left + amount * unit + 4, y, text, 11.5, bold=i in odd)


def every_head(sheet, left, top, weights, chosen, limits, hidden=None):
    """Draw a small table for each head, the chosen one framed; return where they end below.

    weights, hidden: (num_heads, queries, keys), all on one scale.
    """
    num_heads, rows, keys = weights.shape
    # as many in a row as leave the tables square and at most 90 pixels wide
    across = min(num_heads, math.ceil(math.sqrt(num_heads * 460 / 200)))
    step = min(460 / across, 90)
    side = step - 10
    cell = (side / keys, side / max(rows, keys))
    for h in range(num_heads):
        x = left + h % across * step
        y = top + 18 + h // across * (cell[1] * rows + 22)
        covered = None if hidden is None else hidden[h]
        sheet.matrix(x, y, weights[h], cell, (), (), covered, limits, None)
        head_name(sheet, x + side / 2, y - 9, h, num_heads)
        if h == chosen:
            sheet.box(x, y, side, cell[1] * rows, edge=INK, line=2.4)
    return top + math.ceil(num_heads / across) * (cell[1] * rows + 22)


def head_name(sheet, x, y, h, num_heads):
    name, size = f"head {h}" if num_heads <= 4 else str(h), 10.5 if num_heads < 10 else 9
    sheet.text(x, y, name, size, "center")
