"""A drawing surface for pictures that are drawn anew at each change: see `drawing.py`."""

from functools import cache, lru_cache
from itertools import groupby

from matplotlib import colormaps, font_manager, ft2font

from .basic import SIGNED, WEIGHTS, _limits
from .drawing import DPI, FAINT, INK, LINE, Box, Cells, Drawing, Line, Text

WIDTH = 500  # narrow enough that a phone's 400 pixels still show legible numbers
MOST_NUMBERS = 400  # more numbers than this are not legible

BLUE, ORANGE = "#2a6fb0", "#c2540a"
TINTS = ("#dbe7f3", "#f6ead2")  # neighbouring heads
__all__ = ["BLUE", "FAINT", "INK", "LINE", "MOST_NUMBERS", "ORANGE", "TINTS", "WIDTH", "Sheet"]


class Sheet:
    """A white sheet, `width` CSS pixels wide; `.items` is what was drawn, in order."""

    def __init__(self, width=WIDTH):
        self.width, self.items = width, []

    def picture(self, height, description):
        """Return what was drawn as a `Drawing`, cut off at `height` pixels."""
        return Drawing(self.width, round(height), self.items, description)

    def text(self, x, y, text, size=12, ha="left", color=INK, **style):
        """Write text, `size` pixels high, as it stands: no markup of any kind."""
        self.items.append(Text(x, y, text, size, ha, color, **style))

    def title(self, x, y, text, note=""):
        """Write the bold line above a part of the picture, and a note beneath it."""
        self.text(x, y, text, 12.5, bold=True)
        self.text(x, y + 18, note, 11, color=FAINT) if note else None

    def box(self, x, y, width, height, face="none", edge="none", line=1.0, **style):
        """Draw a rectangle; (x, y) is its top left corner."""
        self.items.append(Box(x, y, width, height, face, edge, line, **style))

    def line(self, points, color=LINE, **style):
        """Draw a line through the points."""
        self.items.append(Line(points, color, **style))

    def cells(self, x, y, cell, colours):
        """Draw coloured cells, `cell` (width, height) each; colours: bytes (rows, columns, 3)."""
        self.items.append(Cells(x, y, cell, colours))

    def matrix(
        self, x, y, values, cell, rows=(), columns=(), hidden=None, limits=None, decimals=2, size=11
    ):
        """Draw a table of numbers as coloured cells, `cell` (width, height) pixels each.

        values: (rows, columns). rows, columns: the names beside and above. hidden: True =
        hatched and numberless. decimals=None leaves the numbers out.
        """
        (high, wide), (step_x, step_y) = values.shape, cell
        colours = _colours(values, hidden, limits)
        self.cells(x, y, cell, colours)
        for i, row in enumerate([] if hidden is None else hidden.tolist()):
            for covered, run in groupby(range(wide), row.__getitem__):  # neighbours as one box
                if covered:
                    first, *_, last = 2 * list(run)
                    place = (
                        x + first * step_x,
                        y + i * step_y,
                        (last + 1 - first) * step_x,
                        step_y,
                    )
                    self.box(*place, edge="#999999", line=0.5, hatched=True)
        if decimals is not None:
            self._numbers(x, y, values, cell, hidden, colours, decimals, min(size, step_x / 2.2))
        self.box(x, y, wide * step_x, high * step_y, edge=LINE)
        self.row_names(x - 5, y, step_y, rows)
        self.column_names(x, y - 4, step_x, columns)

    def _numbers(self, x, y, values, cell, hidden, colours, decimals, size):
        dark = (colours.sum(-1, dtype=int) < 382).tolist()
        for i, row in enumerate(values.tolist()):
            for j, number in enumerate(row):
                if hidden is None or not hidden[i, j]:
                    text = short_number(number, decimals, cell[0] / size)
                    middle = (x + (j + 0.5) * cell[0], y + (i + 0.5) * cell[1])
                    self.text(*middle, text, size, "center", "white" if dark[i][j] else INK)

    def row_names(self, x, y, step, names):
        """Write names that end at x, one every `step` pixels below y."""
        for i, name in enumerate(names):
            self.text(x, y + (i + 0.5) * step, name, min(12, step), "right")

    def column_names(self, x, y, step, names):
        """Write names above y, one every `step` pixels; upright where they would touch."""
        upright = turned(names, step)
        for j, name in enumerate(names):
            if upright:
                self.text(x + (j + 0.5) * step, y, name, 11.5, upright=True)
            else:
                self.text(x + (j + 0.5) * step, y - 6, name, 11.5, "center")

    def bar(self, x, y, length, height, color=BLUE):
        """Draw a bar from x to the right, or to the left where its length is negative."""
        self.box(min(x, x + length), y, max(abs(length), 0.8), height, color)


def _colours(values, hidden, limits):
    """Return the colour of each cell as bytes (rows, columns, 3)."""
    shown = values if hidden is None else values.masked_fill(hidden, 0.0)
    low, top = limits or _limits(shown)
    share = ((shown - low) / (top - low)).nan_to_num(0.0).numpy()
    return _colormap(SIGNED if low < 0 else WEIGHTS)(share, bytes=True)[..., :3]


@cache
def _colormap(name):
    return colormaps[name]  # a copy each time, with a table of its own to make


def turned(names, step):
    """Return whether names above columns `step` pixels wide must stand upright."""
    return any(_width(name) + 4 > step for name in names)


def short_number(number, decimals, room=3.0):
    """Return a rounded number; without its leading 0 where the cell is narrow; never "-0.00"."""
    text = f"{number:.{decimals}f}"
    if float(text) == 0:
        text = text.lstrip("-")
    return text.replace("0.", ".", 1) if room < 2.6 and abs(number) < 1 else text


def drawable(word, place, room):
    """Return a word cut to `room` pixels at size 12, or "word 3" where the font lacks letters."""
    if not all(ord(letter) in _letters() for letter in word):
        return f"word {place}"
    if _width(word) <= room:
        return word
    kept = next(n for n in range(len(word) - 1, -1, -1) if _width(word[:n] + "…") <= room)
    return word[:kept] + "…"


@lru_cache(1000)
def _width(text):
    """Return how many pixels wide a text of size 12 is drawn."""
    font = _font()
    # At the dots it is drawn with: matplotlib 3.11 sets each letter on a whole one.
    font.set_size(9, DPI)
    font.set_text(text)
    return font.get_width_height()[0] / 64 * 96 / DPI


@lru_cache
def _font():
    return ft2font.FT2Font(font_manager.findfont(font_manager.FontProperties()))


@lru_cache
def _letters():
    return frozenset(_font().get_charmap())
