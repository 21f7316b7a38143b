"""A trace as blocks: one for each stage at which the shape changes."""

import base64
import io
from dataclasses import dataclass
from itertools import pairwise
from math import log2
from textwrap import wrap
from typing import NamedTuple

MOST_STAGES = 24  # more would not fit a page
MOST_DRAWN = 6  # sheets of a stack, stacks side by side
DPI = 100
WIDTH, LEFT, RIGHT = 9.4, 2.9, 6.5  # inches: the picture, and where its blocks begin and end


class Stage(NamedTuple):
    """A shape, the operations that led to it, and how many tensors came out with it."""

    operations: tuple
    sizes: tuple
    count: int = 1


@dataclass
class Drawing:
    """A matplotlib Figure that a notebook shows as PNG, with its description in words."""

    figure: object
    description: str

    def png(self):
        """Return the drawing as PNG bytes."""
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format="png", dpi=DPI, facecolor="white")
        return buffer.getvalue()

    def __repr__(self):
        return self.description

    def _repr_mimebundle_(self, include=None, exclude=None):
        png = base64.b64encode(self.png()).decode()
        return (
            {"image/png": png, "text/plain": self.description},
            {"image/png": {"alt": self.description}},
        )


def stages(trace, module=None):
    """Return [(repeats, [stages])]: what the decimal tensors go through, in order.

    Operations that leave the shape as it was stand with the one before; neighbours that do
    the same again (queries, keys, values) are counted. Tensors of whole numbers or Booleans,
    such as masks, are left out. Raises ValueError where nothing ran inside `module`.
    """
    rows = [row for row in trace.rows if module is None or _inside(row, module)]
    if not rows:
        paths = sorted({row.module for row in trace.rows} - {""})
        raise ValueError(
            f"Nothing ran inside {module!r}. "
            + (f"Modules of this trace: {', '.join(paths)}." if paths else "No row has a module.")
        )
    found = _given(rows)
    last = None  # the row that the last stage ends with
    for row in rows:
        shapes = _decimal(row.outputs)
        if not shapes:
            continue
        if last and _keeps_shape(row) and row.sources[0] == last.number:
            joined = (*found[-1].operations, row.operation)
            found[-1] = found[-1]._replace(operations=joined)
        else:
            found.append(Stage((row.operation,), shapes[0].sizes, len(shapes)))
        last = row
    return _counted(found)


def picture(trace, module=None):
    """Draw the stages of a trace, top down, as a `Drawing`."""
    from matplotlib.figure import Figure  # only who draws needs matplotlib

    groups = stages(trace, module)
    title = trace.title if module is None else f"{trace.title}, {module}"
    shown, left_out = _first(groups)
    scale = (RIGHT - LEFT) / max(_width(stage.sizes) for _, part in shown for stage in part)
    scale = min(scale, 0.11)
    heights = [max(0.5, _height(s.sizes) * scale + 0.24) for _, part in shown for s in part]
    total = sum(heights) + 0.6
    figure = Figure(figsize=(WIDTH, total))
    ax = figure.add_axes((0, 0, 1, 1))
    ax.set_xlim(0, WIDTH)
    ax.set_ylim(total, 0)
    ax.axis("off")
    ax.text(0.2, 0.25, f"Stages of {title}", fontsize=11, va="center")
    top, tops = 0.5, iter(heights)
    for repeats, part in shown:
        begin = top
        for stage in part:
            height = next(tops)
            _draw(ax, trace, stage, top + height / 2, scale)
            top += height
        if repeats > 1:
            ax.plot(
                [0.34, 0.26, 0.26, 0.34], [begin + 0.08] * 2 + [top - 0.08] * 2, color="#555555"
            )
            ax.text(0.13, (begin + top) / 2, f"{repeats} ×", rotation=90, va="center", ha="center")
    if left_out:
        ax.text(0.45, top, f"… and {left_out} more stages", fontsize=9, va="center")
    return Drawing(figure, _description(title, shown, left_out))


def _inside(row, module):
    return any(visit.path == module for visit in row.visits)


def _decimal(shapes):
    return [one for one in shapes if one.dtype.is_floating_point and not one.parameter]


def _keeps_shape(row):
    """Whether a row changes one tensor entry by entry, with no parameter: div, softmax, …"""
    decimal = [one for one in row.inputs if one.dtype.is_floating_point]
    return len(decimal) == 1 and decimal == row.outputs and row.inputs[0] == decimal[0]


def _given(rows):
    """Return the stage that all begins with: the first decimal tensor from outside the rows."""
    numbers = {row.number for row in rows}
    for row in rows:
        for shape, source in zip(row.inputs, row.sources, strict=True):
            if source and source not in numbers and _decimal([shape]):
                return [Stage(("input",), shape.sizes)]
    return []


def _counted(found):
    """Join neighbouring runs of stages that are the same, the longest runs first."""
    groups, i = [], 0
    while i < len(found):
        repeats, length = _repeat(found[i:])
        groups.append((repeats, found[i : i + length]))
        i += repeats * length
    return groups


def _repeat(found):
    """Return (times, length) of the repetition at the front that covers most; (1, 1) if none."""
    best = (1, 1)
    for length in range(1, len(found) // 2 + 1):
        times = 1
        while found[times * length : (times + 1) * length] == found[:length]:
            times += 1
        if times > 1 and times * length > best[0] * best[1]:
            best = (times, length)
    return best


def _first(groups):
    """Return the groups that fit the page, and the number of stages that do not."""
    shown, count = [], 0
    for repeats, part in groups:
        room = MOST_STAGES - count
        if room > 0:
            shown.append((repeats, part[:room]))
        count += len(part)
    return shown, max(0, count - MOST_STAGES)


def _draw(ax, trace, stage, middle, scale):
    """One stage: the operations, the block, the sizes with their names."""
    ax.text(0.45, middle, _wrapped(stage.operations), fontsize=9.5, va="center")
    across, stacked, rows, columns = _parts(stage.sizes)
    width, height = _drawn(columns) * scale, _drawn(rows) * scale
    step = 0.55 * scale
    depth = min(stacked, MOST_DRAWN)
    left = LEFT
    for _ in range(min(across, MOST_DRAWN)):
        for sheet in reversed(range(depth)):  # the last sheet lies at the back
            x, y = left + sheet * step, middle - height / 2 + ((depth - 1) / 2 - sheet) * step
            _sheet(ax, x, y, width, height, rows, columns, front=sheet == 0)
        left += width + (depth - 1) * step + 1.2 * scale
    if across > MOST_DRAWN or stacked > MOST_DRAWN:
        ax.text(left, middle, "…", va="center")
    count = "" if stage.count == 1 else f"{stage.count} × "
    names = ", ".join(trace.axes(stage.sizes)) if trace.names else ""
    ax.text(
        RIGHT + 0.2,
        middle - (0.09 if names else 0),
        f"{count}{stage.sizes}",
        fontsize=10,
        va="center",
    )
    names = "\n".join(wrap(names, 42))  # what fits beside the blocks
    ax.text(RIGHT + 0.2, middle + 0.02, names, fontsize=8, va="top", color="#444444")


def _sheet(ax, x, y, width, height, rows, columns, front):
    """One matrix; the one in front shows its numbers as cells where they can be counted."""
    from matplotlib.patches import Rectangle

    face = "#cfe0f3" if front else "#eaf1f9"
    ax.add_patch(Rectangle((x, y), width, height, facecolor=face, edgecolor="#2b4a6f", lw=0.9))
    if front and rows <= 16 and columns <= 16:
        for i in range(1, columns):
            ax.plot([x + width * i / columns] * 2, [y, y + height], color="#7f9bbb", lw=0.4)
        for i in range(1, rows):
            ax.plot([x, x + width], [y + height * i / rows] * 2, color="#7f9bbb", lw=0.4)


def _parts(sizes):
    """Return (side by side, stacked, rows, columns): how the axes of a shape are drawn."""
    padded = (1, 1, 1, 1, *sizes)
    rows, columns = padded[-2:]
    if len(sizes) < 3:
        return 1, 1, rows, columns
    stacked = 1
    for size in sizes[1:-2]:
        stacked *= size
    return sizes[0], stacked, rows, columns


def _drawn(size):
    """Return how many units an axis is drawn long: its size, long ones shortened."""
    return max(size, 0.4) if size <= 16 else 16 + 2 * log2(size / 16)


def _width(sizes):
    across, stacked, _, columns = _parts(sizes)
    sheets = min(stacked, MOST_DRAWN) - 1
    return min(across, MOST_DRAWN) * (_drawn(columns) + 0.55 * sheets + 1.2)


def _height(sizes):
    _, stacked, rows, _ = _parts(sizes)
    return _drawn(rows) + 0.55 * (min(stacked, MOST_DRAWN) - 1)


def _wrapped(operations):
    """Return the operations on lines of at most 32 letters, the same ones in a row counted."""
    lines = [""]
    for word in _told(operations).split(" "):
        if len(lines[-1]) + len(word) > 32:
            lines.append("")
        lines[-1] += word + " "
    return "\n".join(line.rstrip() for line in lines)


def _told(operations):
    told = [operations[0]] + [b for a, b in pairwise(operations) if a != b]
    return ", ".join(told)


def _description(title, groups, left_out):
    told = []
    for repeats, part in groups:
        said = ", ".join(f"{_told(stage.operations)} {stage.sizes}" for stage in part)
        told.append(f"{repeats} times: {said}" if repeats > 1 else said)
    more = f"; and {left_out} more stages" if left_out else ""
    return f"Blocks: stages of {title}. {'; '.join(told)}{more}."
