"""Pictures of measured times."""

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from .basic import Picture, draw_heat_map


def time_bars(quartiles, xlabel, title, text=str):
    """Draw {name: (lower quartile, median, upper quartile)} as bars on a logarithmic axis.

    The bar ends at the median, the line runs from quartile to quartile, and text(median)
    stands beside it.
    """
    figure = Figure(figsize=(6.8, 1.1 + 0.5 * len(quartiles)), layout="constrained")
    ax = figure.subplots()
    low, median, high = zip(*quartiles.values(), strict=True)
    rows = range(len(median))
    ax.barh(rows, median, color="#9ecae1", height=0.6)
    ax.hlines(rows, low, high, color="black", linewidth=2)
    for row in rows:
        ax.annotate(
            text(median[row]),
            (high[row], row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
        )
    ax.set_yticks(rows, list(quartiles))
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xlim(min(low) / 3, max(high) * 3)
    ax.set_xlabel(xlabel)
    ax.set_title(title, fontsize=11)
    ax.spines[["top", "right"]].set_visible(False)
    listed = ", ".join(f"{name} {text(quartiles[name][1])}" for name in quartiles)
    return Picture(figure, f"Bar chart: {title}. {xlabel}. Medians: {listed}.")


def ratio_maps(maps, rows, columns, axes):
    """Draw {title: ratios} side by side as heat maps; a thick frame marks a ratio below 1.

    Each map: (rows, columns). axes: what the rows and the columns are.
    """
    figure = Figure(
        figsize=((1.4 + 0.7 * len(columns)) * len(maps), 1.6 + 0.45 * len(rows)),
        layout="constrained",
    )
    panels = figure.subplots(1, len(maps), squeeze=False)[0]
    below = {}
    for ax, (title, ratios) in zip(panels, maps.items(), strict=True):
        draw_heat_map(ax, ratios, rows, columns, title, limits=(0.0, 2.0), axes=axes)
        framed = (ratios < 1).nonzero().tolist()
        for i, j in framed:
            ax.add_patch(Rectangle((j - 0.47, i - 0.47), 0.94, 0.94, fill=False, linewidth=2.5))
        below[title] = len(framed)
    counts = ", ".join(f"{title} {count}" for title, count in below.items())
    return Picture(
        figure,
        f"Heat maps of ratios, {axes[0]} down, {axes[1]} across. Of {len(rows) * len(columns)} "
        f"cells each, below 1 and framed: {counts}.",
    )
