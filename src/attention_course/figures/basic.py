"""The picture and the plots that notebooks and results draw."""

import base64
import io

import torch
from matplotlib.figure import Figure

WEIGHTS = "Blues"  # for numbers from 0 up
SIGNED = "RdBu_r"  # for numbers on both sides of 0
HIDDEN = "#f2f2f2"  # a cell that a mask hides: this grey, hatched, without a number
DPI = 110
MOST_NUMBERED = 12  # more columns than this, and the numbers would not be legible


class Picture:
    """A matplotlib Figure that a notebook shows as PNG, with its description in words.

    `.figure` is the matplotlib Figure, `.description` one sentence or two for a reader who
    cannot see it. The text/plain form is the description too.
    """

    def __init__(self, figure, description, dpi=DPI):
        self.figure, self.description, self.dpi = figure, description, dpi

    def png(self):
        """Return the picture as PNG bytes."""
        buffer = io.BytesIO()
        self.figure.savefig(
            buffer,
            format="png",
            dpi=self.dpi,
            facecolor="white",
            pil_kwargs={"compress_level": 3},  # quicker than the usual 6, and no larger
        )
        return buffer.getvalue()

    def __repr__(self):
        return self.description

    def _repr_mimebundle_(self, include=None, exclude=None):
        png = base64.b64encode(self.png()).decode()
        return (
            {"image/png": png, "text/plain": self.description},
            {"image/png": {"alt": self.description}},
        )


def heat_map(values, rows, columns, title, hidden=None, decimals=2, limits=None, axes=None):
    """Draw a table of numbers as coloured cells, rows attending down, columns attended across.

    values: (rows, columns). hidden: Boolean of the same shape, True = hatched and numberless.
    limits: (lowest, highest) of the colour scale; without it, 0 to the largest, or symmetric
    where a number is negative. axes: what the rows and the columns are, such as
    ("token that attends", "token attended to").
    """
    values = values.detach()
    figure = Figure(
        figsize=(1.6 + 0.62 * len(columns), 1.3 + 0.45 * len(rows)), layout="constrained"
    )
    draw_heat_map(figure.subplots(), values, rows, columns, title, hidden, decimals, limits, axes)
    note = "" if hidden is None else f", {int(hidden.sum())} cells hidden"
    return Picture(figure, f"Heat map: {title}. {len(rows)} rows, {len(columns)} columns{note}.")


def heat_maps(panels, rows, columns, hidden=None, decimals=2, limits=None, axes=None):
    """Draw tables of equal size side by side, with one colour scale: {title: values}.

    Other arguments as for `heat_map`; `hidden` and `axes` hold for every panel.
    """
    panels = {title: values.detach() for title, values in panels.items()}
    shown = torch.stack(list(panels.values()))
    if hidden is not None:
        shown = shown.masked_fill(hidden, 0.0)
    limits = limits or _limits(shown)
    width = 1.2 + 0.6 * len(columns)
    figure = Figure(figsize=(width * len(panels), 1.3 + 0.45 * len(rows)), layout="constrained")
    places = figure.subplots(1, len(panels), squeeze=False)[0]
    for ax, (title, values) in zip(places, panels.items(), strict=True):
        draw_heat_map(ax, values, rows, columns, title, hidden, decimals, limits, axes)
    names = "; ".join(panels)
    note = "" if hidden is None else f", {int(hidden.sum())} cells hidden"
    size = f"{len(rows)} rows, {len(columns)} columns{note} in each"
    return Picture(figure, f"{len(panels)} heat maps: {names}. {size}.")


def draw_heat_map(
    ax, values, rows, columns, title, hidden=None, decimals=2, limits=None, axes=None
):
    """Draw one heat map on a matplotlib Axes; arguments as for `heat_map`."""
    shown = values if hidden is None else values.masked_fill(hidden, 0.0)
    low, high = limits or _limits(shown)
    image = ax.imshow(shown.numpy(), cmap=SIGNED if low < 0 else WEIGHTS, vmin=low, vmax=high)
    ax.set_aspect("auto")
    ax.set_xticks(range(len(columns)), columns, rotation=0 if _short(columns) else 45)
    ax.set_yticks(range(len(rows)), rows)
    ax.tick_params(length=0)
    ax.set_title(title, fontsize=11)
    if axes:
        ax.set(ylabel=axes[0], xlabel=axes[1])
    for i in range(len(rows)):
        for j in range(len(columns)):
            if hidden is not None and hidden[i, j]:
                place = [j - 0.5, j + 0.5], i - 0.5, i + 0.5
                ax.fill_between(*place, facecolor=HIDDEN, edgecolor="#999999", hatch="////")
            elif len(columns) <= MOST_NUMBERED:
                number = values[i, j].item()
                dark = sum(image.to_rgba(number)[:3]) < 1.5
                text = ax.text(j, i, f"{number:.{decimals}f}", ha="center", va="center", fontsize=9)
                text.set_color("white" if dark else "black")
    return image


def _limits(values):
    low, high = values.min().item(), values.max().item()
    largest = max(high, -low) or 1.0
    return (-largest if low < 0 else 0.0), largest


def _short(names):
    return max(len(str(name)) for name in names) <= 6


def plain_axes(width, height, xlabel, title):
    """Return (figure, ax): an empty plot, without a frame at its top and its right."""
    figure = Figure(figsize=(width, height), layout="constrained")
    ax = figure.subplots()
    ax.set_xlabel(xlabel)
    ax.set_title(title, fontsize=11)
    ax.spines[["top", "right"]].set_visible(False)
    return figure, ax


def lines(curves, xlabel, ylabel, title, logx=False, logy=False, yticks=None):
    """Draw curves {name: (xs, ys)} with a marker at each measured point and a legend.

    yticks: the numbers that stand beside the vertical axis, if not matplotlib's choice.
    """
    figure, ax = plain_axes(6.4, 4, xlabel, title)
    ax.set_ylabel(ylabel)
    markers = "osD^v<>"
    for (name, (xs, ys)), marker in zip(curves.items(), markers, strict=False):
        ax.plot(_numbers(xs), _numbers(ys), marker=marker, markersize=5, label=name)
    if logx:
        ax.set_xscale("log")
        _tick_each(ax, _numbers(xs))
    if logy:
        ax.set_yscale("log")
        ax.yaxis.set_major_formatter("{x:g}")
    if yticks is not None:
        ax.set_yticks(yticks, [f"{y:g}" for y in yticks])
        ax.yaxis.minorticks_off()
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    if len(curves) > 1:  # below, where no curve runs
        figure.legend(frameon=False, loc="outside lower center", ncols=2)
    names = ", ".join(curves)
    return Picture(figure, f"Line plot: {title}. {ylabel} over {xlabel}; curves: {names}.")


def bars(panels, names, ylabel, title, columns=3, decimals=2):
    """Draw small bar charts {heading: values} side by side, all on one scale from 0 up.

    names: the name under each bar, the same in every panel. columns: panels in one row. The
    number stands above each bar, unless it rounds to 0.
    """
    rows = -(-len(panels) // columns)
    size = (columns * (0.9 + 0.42 * len(names)), 0.8 + 1.9 * rows)
    figure = Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(h_pad=0.1)
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False)
    axes = iter(axes.flat)
    for (heading, values), ax in zip(panels.items(), axes, strict=False):
        numbers = _numbers(values)
        drawn = ax.bar(list(names), numbers, color="#4c78a8")
        labels = [f"{n:.{decimals}f}" if round(n, decimals) else "" for n in numbers]
        ax.bar_label(drawn, labels, fontsize=8, padding=2)
        ax.set_title(heading, fontsize=10)
        ax.spines[["top", "right"]].set_visible(False)
        ax.margins(y=0.15)
    for ax in list(axes):  # places that no panel takes
        ax.remove()
    figure.suptitle(title, fontsize=11)
    figure.supylabel(ylabel, fontsize=10)
    headings = "; ".join(panels)
    return Picture(figure, f"Bar charts on one scale: {title}. {ylabel} for each of: {headings}.")


def spread(series, xlabel, title, lowest=1e-18):
    """Draw every value as a dot on a logarithmic axis, one line for each group.

    series: {series: {group: values}} with the same groups in each, such as one series for each
    precision. Values below `lowest`, zeros among them, stand at `lowest`.
    """
    groups = list(next(iter(series.values())))
    figure, ax = plain_axes(7.2, 1.2 + 0.45 * len(groups), xlabel, title)
    for i, (name, values) in enumerate(series.items()):
        shift = 0.3 * (i - (len(series) - 1) / 2)
        xs = [max(value, lowest) for group in groups for value in values[group]]
        ys = [row + shift for row, group in enumerate(groups) for _ in values[group]]
        ax.plot(xs, ys, "oD^s"[i % 4], markersize=4, alpha=0.3, label=name)
    ax.set_xscale("log")
    ax.set_yticks(range(len(groups)), groups)
    ax.invert_yaxis()
    ax.grid(axis="x", alpha=0.3)
    figure.legend(frameon=False, loc="outside right upper")
    text = f"Dots on a logarithmic axis: {title}. {xlabel}, for each of: {'; '.join(groups)}"
    return Picture(figure, f"{text}. Drawn for {' and '.join(series)}.")


def _tick_each(ax, xs):
    """Put a plain number under each measured point of a logarithmic axis, if they are few."""
    if len(xs) <= 8:
        ax.set_xticks(xs, [f"{x:g}" for x in xs])
        ax.minorticks_off()


def _numbers(values):
    return values.tolist() if isinstance(values, torch.Tensor) else list(values)
