"""A picture as a list of boxes, lines and texts, each of which can write itself in two ways.

SVG for a live page, where it stands a few milliseconds after a change; matplotlib for the PNG
that is stored, which takes fifty more. Positions are CSS pixels, (0, 0) the top left corner.
"""

import html
from functools import cached_property
from typing import NamedTuple

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy import ndarray

from .basic import HIDDEN, Picture

INK, FAINT, LINE = "#1a1a1a", "#5a5a5a", "#b5b5b5"
FONT, CODE = "DejaVu Sans", "DejaVu Sans Mono"
DPI = 144  # one and a half times the size on the page, for sharp letters
_POINT = 0.75  # a CSS pixel in points
_ANCHORS = {"left": "start", "center": "middle", "right": "end"}


class Drawing(Picture):
    """`.svg()` is the picture as text; `.figure` and `.png()` are made when they are asked for.

    items: `Box`, `Cells`, `Line`, `Text`; what comes later lies over what came before.
    """

    def __init__(self, width, height, items, description):
        self.width, self.height, self.items = width, height, items
        self.description, self.dpi = description, DPI

    def svg(self):
        """Return the picture as SVG; the letters are the browser's, and all text is escaped."""
        size = f'width="{self.width}" height="{self.height}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} viewBox="0 0 {self.width} '
            f'{self.height}" font-family="{FONT},Verdana,sans-serif"><defs>'
            f'<pattern id="hidden" width="6" height="6" patternUnits="userSpaceOnUse" '
            f'patternTransform="rotate(45)"><rect width="6" height="6" fill="{HIDDEN}"/>'
            f'<path d="M0 0v6" stroke="#999" stroke-width="1.6"/></pattern></defs>'
            f'<rect {size} fill="#fff"/>{"".join(item.svg() for item in self.items)}</svg>'
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = super()._repr_mimebundle_(include, exclude)
        metadata["image/png"]["width"] = self.width  # else shown one and a half times as large
        return data, metadata

    @cached_property
    def figure(self):
        """The picture as a matplotlib Figure."""
        figure = Figure(figsize=(self.width / 96, self.height / 96))
        ax = figure.add_axes((0, 0, 1, 1), autoscale_on=False)
        ax.axis("off")
        ax.set(xlim=(0, self.width), ylim=(self.height, 0))
        for place, item in enumerate(self.items):
            item.draw(ax, place)
        return figure


class Box(NamedTuple):
    """A rectangle; hatched: a cell that a mask hides."""

    x: float
    y: float
    width: float
    height: float
    face: str = "none"
    edge: str = "none"
    line: float = 1.0
    hatched: bool = False

    def svg(self):
        edge = f' stroke="{self.edge}" stroke-width="{self.line}"' if self.edge != "none" else ""
        face = "url(#hidden)" if self.hatched else self.face
        return (
            f'<rect x="{self.x:.5g}" y="{self.y:.5g}" width="{self.width:.5g}" '
            f'height="{self.height:.5g}" fill="{face}"{edge}/>'
        )

    def draw(self, ax, place):
        shape = Rectangle(
            (self.x, self.y),
            self.width,
            self.height,
            facecolor=HIDDEN if self.hatched else self.face,
            edgecolor=self.edge,
            linewidth=0 if self.edge == "none" else self.line * _POINT,
            hatch="////" if self.hatched else None,
            zorder=place,
        )
        ax.add_artist(shape)


class Cells(NamedTuple):
    """A table of coloured cells, `cell` (width, height) each. colours: bytes (rows, columns, 3)."""

    x: float
    y: float
    cell: tuple
    colours: ndarray

    def svg(self):
        wide, high = self.cell
        shape = f"h{wide:.5g}v{high:.5g}h-{wide:.5g}z"
        cells = [
            f'<path fill="#{bytes(colour).hex()}" '
            f'd="M{self.x + j * wide:.5g} {self.y + i * high:.5g}{shape}"/>'
            for i, row in enumerate(self.colours)
            for j, colour in enumerate(row)
        ]
        return f'<g shape-rendering="crispEdges">{"".join(cells)}</g>'  # no seams between them

    def draw(self, ax, place):
        rows, columns, _ = self.colours.shape
        right, bottom = self.x + columns * self.cell[0], self.y + rows * self.cell[1]
        extent = (self.x, right, bottom, self.y)
        ax.imshow(self.colours, extent=extent, aspect="auto", interpolation="nearest", zorder=place)


class Line(NamedTuple):
    """A line through points (x, y)."""

    points: list
    color: str = LINE
    width: float = 1.3
    dashed: bool = False

    def svg(self):
        points = " ".join(f"{x:.5g},{y:.5g}" for x, y in self.points)
        dashes = ' stroke-dasharray="5 3"' if self.dashed else ""
        style = f'stroke="{self.color}" stroke-width="{self.width}"{dashes}'
        return f'<polyline points="{points}" fill="none" {style}/>'

    def draw(self, ax, place):
        style = "--" if self.dashed else "-"
        xs, ys = zip(*self.points, strict=True)
        ax.plot(xs, ys, style, color=self.color, lw=self.width * _POINT, zorder=place)


class Text(NamedTuple):
    """Text, `size` pixels high, its middle at height y. upright: it runs upwards instead."""

    x: float
    y: float
    text: str
    size: float = 12
    ha: str = "left"
    color: str = INK
    bold: bool = False
    italic: bool = False
    font: str = FONT
    upright: bool = False

    def svg(self):
        down = 0.36 * self.size  # from a capital's middle to its foot
        x, y = (self.x + down, self.y) if self.upright else (self.x, self.y + down)
        style = f' transform="rotate(-90 {x:.5g} {y:.5g})"' if self.upright else ""
        style += f' text-anchor="{_ANCHORS[self.ha]}"' if self.ha != "left" else ""
        style += ' font-weight="bold"' if self.bold else ""
        style += ' font-style="italic"' if self.italic else ""
        style += f' font-family="{CODE},monospace"' if self.font == CODE else ""
        place = f'x="{x:.5g}" y="{y:.5g}" font-size="{self.size:.3g}" fill="{self.color}"{style}'
        letters = filter(str.isprintable, self.text)  # some of the others are not allowed in XML
        return f"<text {place}>{html.escape(''.join(letters))}</text>"

    def draw(self, ax, place):
        ax.text(
            self.x,
            self.y,
            self.text,
            color=self.color,
            fontsize=self.size * _POINT,
            fontweight="bold" if self.bold else "normal",
            fontstyle="italic" if self.italic else "normal",
            fontfamily=self.font,
            ha="center" if self.upright else self.ha,
            va={"left": "bottom", "center": "center", "right": "top"}[self.ha]
            if self.upright
            else "center_baseline",
            rotation=90 if self.upright else 0,
            parse_math=False,
            zorder=place,
        )
