"""Pictures of measured times."""

from matplotlib.patches import Rectangle

from .basic import Picture, heat_maps, plain_axes


def time_bars(quartiles, xlabel, title, text=str):
    """Draw {name: (lower quartile, median, upper quartile)} as bars on a logarithmic axis.

    The bar ends at the median, the line runs from quartile to quartile, and text(median)
    stands beside it.
    """
    figure, ax = plain_axes(6.8, 1.1 + 0.5 * len(quartiles), xlabel, title)
    low, median, high = zip(*quartiles.values(), strict=True)
    rows = range(len(median))
    ax.barh(rows, median, color="#9ecae1", height=0.6)
    ax.hlines(rows, low, high, color="black", linewidth=2)
    beside = {"xytext": (5, 0), "textcoords": "offset points", "va": "center", "fontsize": 9}
    for row in rows:
        ax.annotate(text(median[row]), (high[row], row), **beside)
    ax.set_yticks(rows, list(quartiles))
    ax.invert_yaxis()
    ax.set_xscale("log")
    ax.set_xlim(min(low) / 3, max(high) * 3)
    listed = ", ".join(f"{name} {text(quartiles[name][1])}" for name in quartiles)
    return Picture(figure, f"Bar chart: {title}. {xlabel}. Medians: {listed}.")


def ratio_maps(maps, rows, columns, axes):
    """Draw {title: ratios} side by side as heat maps; a thick frame marks a ratio below 1.

    Each map: (rows, columns). axes: what the rows and the columns are.
    """
    figure = heat_maps(maps, rows, columns, limits=(0.0, 2.0), axes=axes).figure
    for ax, ratios in zip(figure.axes, maps.values(), strict=True):
        for i, j in (ratios < 1).nonzero().tolist():
            ax.add_patch(Rectangle((j - 0.47, i - 0.47), 0.94, 0.94, fill=False, linewidth=2.5))
    counts = ", ".join(f"{title} {int((ratios < 1).sum())}" for title, ratios in maps.items())
    return Picture(
        figure,
        f"Heat maps of ratios, {axes[0]} down, {axes[1]} across. Of {len(rows) * len(columns)} "
        f"cells each, below 1 and framed: {counts}.",
    )
