"""Draw a calculation: tensors are grids of cells, operations are arrows with a word.

`flow` draws what it is given: grids {key: Grid} and the arrows between them. The drawings of the
notebooks are such data: `calculation`, `many_heads` and `roles`.
"""

from dataclasses import dataclass, replace

from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb

from .basic import WEIGHTS
from .sheet import FAINT, INK, ORANGE, WIDTH, Sheet, _width, short_number

QUERY, KEY, VALUE = "#f8dcc4", "#d3e4f5", "#d3d69f"  # orange, blue, olive: apart for all eyes
LATER, FRAME, CELLS = "#858585", "#8c8c8c", "#d5d5d5"
MARGIN, ABOVE, BELOW = 12, 17, 15  # pixels: around all, for the name of a grid, for its shape


@dataclass(frozen=True)
class Grid:
    """A tensor of two axes; (x, y) is the top left corner of its cells, in pixels downwards.

    cells: rows of numbers or texts; None leaves a cell empty. name: written above. shape: written
    below; by default that of the cells, "" leaves it out. cell: width and height of one. rows:
    names beside it. tint: one colour, or rows of colours. hidden: rows of truth, hatched. strong:
    (row, column) of the framed cells. behind: outlines behind it, as in a stack. step: when it
    is computed. wrong: framed as the outcome of a mistake.
    """

    x: float
    y: float
    cells: list
    name: str = ""
    shape: str | None = None
    cell: tuple = (30, 19)
    rows: tuple = ()
    tint: str | list = "white"
    hidden: list | None = None
    strong: tuple = ()
    behind: int = 0
    decimals: int = 2
    step: int = 0
    wrong: bool = False

    @property
    def told(self):
        return f"({len(self.cells)}, {len(self.cells[0])})" if self.shape is None else self.shape

    @property
    def across(self):
        """The left and the right end of the cells."""
        return self.x, self.x + len(self.cells[0]) * self.cell[0]

    @property
    def down(self):
        """The upper and the lower end of the cells."""
        return self.y, self.y + len(self.cells) * self.cell[1]

    @property
    def edges(self):
        """Left, top, right and bottom of all that belongs to it."""
        names = 5 + max(map(_width, self.rows)) if self.rows else 0
        top = self.y - 3 * self.behind - ABOVE * bool(self.name)
        bottom = self.down[1] + BELOW * bool(self.told)
        return self.x - names, top, self.across[1] + 3 * self.behind, bottom

    @property
    def overhang(self):
        """How far its name reaches beyond the cells on either side."""
        return max(0, 1.2 * _width(self.name) - (self.across[1] - self.across[0])) / 2


@dataclass(frozen=True)
class Arrow:
    """An operation that leads from one grid to another, named by their keys.

    Straight where the two face each other, else round one corner. word: over a level arrow stands
    its first line, beside an upright one all of it. style: "fork" for an arrow that leaves its
    source from below, beside others; "left" for a word on the left; "word" for no line at all.
    wrong: a mistake. step: when it happens, if not with its target.
    """

    source: str
    target: str
    word: str = ""
    style: str = ""
    wrong: bool = False
    step: int | None = None


def flow(grids, arrows, title, description, notes=(), step=None):
    """Draw grids {key: Grid} and the arrows between them; return a `Picture`.

    description: what is to be seen, for a reader who cannot see it; the title is put before it.
    notes: (x, y, text), or with "bold" as a fourth. step: what this step computes has a thick
    frame and dark arrows, what comes later is dotted and empty; None shows all alike.
    """
    lefts, tops, rights, bottoms = zip(*(grid.edges for grid in grids.values()), strict=True)
    left, top = min(lefts) - MARGIN, min([*tops, *(note[1] - 8 for note in notes)]) - MARGIN
    bottom = max([*bottoms, *(note[1] + 8 for note in notes)]) + MARGIN
    rights = [right + grid.overhang for right, grid in zip(rights, grids.values(), strict=True)]
    right = max([*rights, *(note[0] + 1.15 * _width(note[2]) for note in notes)]) + MARGIN
    width = round(max(WIDTH, right - left, _width(title) * 1.25 + 2 * MARGIN))
    across, under = (width - right - left) / 2, 28 * bool(title) - top
    sheet = Sheet(width)
    grids = {k: replace(grid, x=grid.x + across, y=grid.y + under) for k, grid in grids.items()}
    sheet.text(left + across + MARGIN, 18, title, 13.5, bold=True)
    for x, y, text, *bold in notes:
        sheet.text(x + across, y + under, text, bold=bool(bold))
    for grid in grids.values():
        _draw_grid(sheet, grid, step)
    for arrow in arrows:
        _draw_arrow(sheet, arrow, grids[arrow.source], grids[arrow.target], step)
    stop = "" if title.endswith("?") else "."
    description = f"{title}{stop} {description}" if title else description
    return sheet.picture(bottom + under, description)


def shades(weights):
    """Return the colours of weights (rows, columns), as in the heat maps."""
    return [[to_hex(colormaps[WEIGHTS](0.05 + 0.9 * w)) for w in row] for row in weights.tolist()]


def _draw_grid(sheet, grid, step):
    later, now = step is not None and grid.step > step, grid.step == step
    (left, right), (top, bottom) = grid.across, grid.down
    for back in range(3 * grid.behind, 0, -3):
        sheet.box(left + back, top - back, right - left, bottom - top, "white", "#b5b5b5", 0.8)
    if not later:
        _fill(sheet, grid)
        sheet.text((left + right) / 2, bottom + 8, grid.told, 11, "center", color=FAINT)
    color = ORANGE if grid.wrong else LATER if later else INK if now else FRAME
    _frame(sheet, left, top, right, bottom, color, 2.4 if now or grid.wrong else 1.2, later)
    ink = LATER if later else INK
    for i, name in enumerate(grid.rows):
        sheet.text(left - 5, top + (i + 0.5) * grid.cell[1], name, 12, "right", ink)
    sheet.text((left + right) / 2, grid.edges[1] + 8, grid.name, 12, "center", ink, bold=True)


def _fill(sheet, grid):
    wide, high = grid.cell
    texts = [[_text(value, grid.decimals) for value in row] for row in grid.cells]
    size = 12 if max(len(text) for row in texts for text in row) <= 4 else 11
    for i, row in enumerate(texts):
        for j, text in enumerate(row):
            x, y = grid.x + j * wide, grid.y + i * high
            face = grid.tint if isinstance(grid.tint, str) else grid.tint[i][j]
            if grid.hidden is not None and grid.hidden[i][j]:
                sheet.box(x, y, wide, high, edge="#999999", line=0.5, hatched=True)
                continue
            sheet.box(x, y, wide, high, face, CELLS, 0.8)
            if text:
                dark, strong = sum(to_rgb(face)) < 1.6, (i, j) in grid.strong
                ink, middle = "white" if dark else INK, (x + wide / 2, y + high / 2)
                sheet.text(*middle, text, size, "center", ink, bold=dark or strong)
    for i, j in grid.strong:
        x, y = grid.x + j * wide, grid.y + i * high
        _frame(sheet, x, y, x + wide, y + high, INK, 2.1)


def _text(value, decimals):
    if value is None:
        return ""
    return short_number(value, decimals) if isinstance(value, float) else str(value)


def _frame(sheet, left, top, right, bottom, color, width, dashed=False):
    corners = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    sheet.line(corners, color, width=width, dashed=dashed)


def _draw_arrow(sheet, arrow, source, target, step):
    when = target.step if arrow.step is None else arrow.step
    later, now = step is not None and when > step, when == step
    color = ORANGE if arrow.wrong else LATER if later else INK if now else FAINT
    points, (x, y), level = _route(source, target, arrow.style)
    ink, side = INK if color == FAINT else color, "right" if arrow.style == "left" else "left"
    if arrow.style == "word":
        sheet.text(x, y, arrow.word, 12, "center", ink)
        return
    width = 2.4 if now else 1.5
    sheet.line(points, color, width=width, dashed=arrow.wrong)
    sheet.line(_head(*points[-2:]), color, width=width)
    if level:
        for place, line in zip((-10, 11, 24), arrow.word.split("\n"), strict=False):
            sheet.text(x, y + place, line, 11, "center", ink)
    else:
        sheet.text(x - 6 if side == "right" else x + 6, y, arrow.word, 11, side, ink)


def _head(before, tip):
    """Return the points of an arrow's head: two short strokes that meet at its tip."""
    (x, y), along = tip, (tip[0] - before[0], tip[1] - before[1])
    if along[0] == 0:
        back = y - 5 * (1 if along[1] > 0 else -1)
        return [(x - 4, back), tip, (x + 4, back)]
    back = x - 5 * (1 if along[0] > 0 else -1)
    return [(back, y - 4), tip, (back, y + 4)]


def _route(source, target, style):
    """Return the points of an arrow, the place of its word, and whether it is level."""
    s, t = source.edges, target.edges
    start, end = (s[3] + 2, t[1] - 2) if target.y > source.y else (s[1] - 2, t[3] + 2)
    first, last = (s[2] + 3, t[0] - 3) if target.x > source.x else (s[0] - 3, t[2] + 3)
    x, y = _facing(source.across, target.across), _facing(source.down, target.down)
    if style == "fork":
        stem, x = sum(source.across) / 2, sum(target.across) / 2
        bend = start + 9
        return [(stem, start), (stem, bend), (x, bend), (x, end)], (x, (bend + end) / 2), False
    if x is not None:
        return [(x, start), (x, end)], (x, (start + end) / 2), False
    if y is not None:
        return [(first, y), (last, y)], ((first + last) / 2, y), True
    x, y = sum(target.across) / 2, sum(source.down) / 2
    return [(first, y), (x, y), (x, end)], (x, (y + end) / 2), False


def _facing(one, other):
    """Return where two spans face each other: the middle of the second, or of the first."""
    a, b = sum(one) / 2, sum(other) / 2
    return b if one[0] < b < one[1] else a if other[0] < a < other[1] else None
