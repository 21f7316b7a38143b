"""A drawing surface measured in CSS pixels, for pictures that are drawn anew at each change.

All of a picture stands on one Axes without layout engine: each further Axes costs 7 ms, and a
constrained layout draws everything twice.
"""

from functools import lru_cache

from matplotlib import colormaps, font_manager, ft2font
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch, Rectangle
from matplotlib.path import Path
from matplotlib.textpath import TextPath
from matplotlib.transforms import Affine2D

from .basic import HIDDEN, SIGNED, WEIGHTS, Picture, _limits

WIDTH = 500  # narrow enough that a phone's 400 pixels still show legible numbers
DPI = 144  # drawn at one and a half times the size, for sharp letters
MOST_NUMBERS = 400  # more numbers than this take too long to draw

INK, FAINT, LINE = "#1a1a1a", "#5a5a5a", "#b5b5b5"
BLUE, ORANGE = "#2a6fb0", "#c2540a"
TINTS = ("#dbe7f3", "#f6ead2")  # neighbouring heads


class Sheet:
    """A white sheet, `width` by `height` CSS pixels; (0, 0) is its top left corner."""

    def __init__(self, height, width=WIDTH):
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / 96, height / 96), dpi=DPI)
        self.ax = self.figure.add_axes((0, 0, 1, 1), autoscale_on=False)
        self.ax.axis("off")
        self.ax.set(xlim=(0, width), ylim=(height, 0))
        self._numbers = {}  # colour -> outlines

    def picture(self, description):
        """Return what was drawn as a `Picture`."""
        for color, paths in self._numbers.items():
            path = Path.make_compound_path(*paths)
            # add_patch would search each curve for the limits of the Axes, which are set
            self.ax.add_artist(PathPatch(path, facecolor=color, lw=0, zorder=3))
        return Picture(self.figure, description, dpi=DPI)

    def text(self, x, y, text, size=12, ha="left", va="center", color=INK, **style):
        """Write text, `size` pixels high, as it stands: no mathematical markup."""
        style = {"parse_math": False, **style}
        self.ax.text(x, y, text, fontsize=size * 0.75, ha=ha, va=va, color=color, **style)

    def number(self, x, y, text, size=11, color=INK, weight="normal", style="normal"):
        """Write a number centred on (x, y), over all that is drawn.

        A picture has up to hundreds of them: outlines, gathered by colour, are drawn in a small
        part of the time that as many texts take.
        """
        outline = Affine2D().translate(x, y).transform_path(_outline(text, size, weight, style))
        self._numbers.setdefault(color, []).append(outline)

    def title(self, x, y, text):
        """Write the bold line above a part of the picture."""
        self.text(x, y, text, size=12.5, weight="bold")

    def box(self, x, y, width, height, face="none", edge="none", line=1.0, **style):
        """Draw a rectangle; (x, y) is its top left corner."""
        self.ax.add_patch(
            Rectangle((x, y), width, height, facecolor=face, edgecolor=edge, lw=line, **style)
        )

    def line(self, xs, ys, color=LINE, **style):
        """Draw a line through the points."""
        self.ax.plot(xs, ys, color=color, **{"lw": 1, "clip_on": False, **style})

    def grid(self, x, y, cell, rows, columns, color="#dddddd", line=0.6):
        """Draw the lines between the cells of a table, as two artists: each one costs time."""
        (wide, high), right, bottom = cell, x + columns * cell[0], y + rows * cell[1]
        self.ax.hlines([y + i * high for i in range(1, rows)], x, right, color, lw=line)
        self.ax.vlines([x + j * wide for j in range(1, columns)], y, bottom, color, lw=line)

    def matrix(
        self, x, y, values, cell, rows=(), columns=(), hidden=None, limits=None, decimals=2, size=11
    ):
        """Draw a table of numbers as coloured cells, `cell` (width, height) pixels each.

        values: (rows, columns). rows, columns: the names beside and above. hidden: True =
        hatched and numberless. decimals=None leaves the numbers out.
        """
        (high, wide), (step_x, step_y) = values.shape, cell
        shown = values if hidden is None else values.masked_fill(hidden, 0.0)
        low, top = limits or _limits(shown)
        colours = colormaps[SIGNED if low < 0 else WEIGHTS]((shown - low).numpy() / (top - low))
        extent = (x, x + wide * step_x, y + high * step_y, y)
        self.ax.imshow(colours, extent=extent, aspect="auto", interpolation="nearest")
        for i in range(high if decimals is not None or hidden is not None else 0):
            for j in range(wide):
                left, upper = x + j * step_x, y + i * step_y
                if hidden is not None and hidden[i, j]:
                    self.box(left, upper, step_x, step_y, HIDDEN, "#999999", 0.4, hatch="////")
                elif decimals is not None:
                    ink = "white" if colours[i, j, :3].sum() < 1.5 else INK
                    number = short_number(shown[i, j].item(), decimals, step_x / size)
                    centre = (left + step_x / 2, upper + step_y / 2)
                    self.number(*centre, number, size, ink)
        self.box(x, y, wide * step_x, high * step_y, edge=LINE, line=0.8)
        self.row_names(x - 5, y, step_y, rows)
        self.column_names(x, y - 4, step_x, columns)

    def row_names(self, x, y, step, names):
        """Write names that end at x, one every `step` pixels below y."""
        for i, name in enumerate(names):
            self.text(x, y + (i + 0.5) * step, name, min(12, step), "right")

    def column_names(self, x, y, step, names):
        """Write names above y, one every `step` pixels; turned where they would touch."""
        style = {"rotation": 90} if turned(names, step) else {}
        for j, name in enumerate(names):
            self.text(x + (j + 0.5) * step, y, name, 11.5, "center", "bottom", **style)

    def bar(self, x, y, length, height, color=BLUE):
        """Draw a bar from x to the right, or to the left where its length is negative."""
        self.box(min(x, x + length), y, max(abs(length), 0.8), height, face=color)


def turned(names, step):
    """Return whether names above columns `step` pixels wide must stand upright."""
    return any(len(name) * 7 > step for name in names)


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


def _width(text):
    """Return how many pixels wide a text of size 12 is drawn."""
    font = _font()
    # At the dots it is drawn with: matplotlib 3.11 sets each letter on a whole one.
    font.set_size(9, DPI)
    font.set_text(text)
    return font.get_width_height()[0] / 64 * 96 / DPI


@lru_cache(1000)
def _outline(text, size, weight, style):
    """Return the outline of a text around (0, 0), in pixels downwards."""
    font = font_manager.FontProperties(weight=weight, style=style)
    path = TextPath((0, 0), text, size, font)
    box, digit = path.get_extents(), 0.73 * size  # a digit's height, so that signs sit right
    centre = Affine2D().translate(-(box.x0 + box.x1) / 2, -digit / 2)
    return centre.scale(1, -1).transform_path(path)


@lru_cache
def _font():
    return ft2font.FT2Font(font_manager.findfont(font_manager.FontProperties()))


@lru_cache
def _letters():
    return frozenset(_font().get_charmap())
