"""How numbers are printed: with names beside them, rounded so that each processor agrees."""

import re

import torch
from tabulate import tabulate


def table(values, rows=None, columns=None, decimals=2):
    """Show a tensor, or a list of rows, with its row and column names.

    values: a tensor of one or two dimensions, or a list of rows. Decimal numbers are
    rounded to `decimals` places; a rounded zero has no minus sign.
    Raises ValueError where the names are not as many as the rows or columns.
    """
    from IPython.display import display

    display(_Table(values, rows, columns, decimals))


def table_text(values, rows=None, columns=None, decimals=2):
    """Return the table as text."""
    return repr(_Table(values, rows, columns, decimals))


class _Table:
    """Text in a terminal; in a notebook a table that scrolls sideways where a page is narrow."""

    def __init__(self, values, rows, columns, decimals):
        cells = values.detach().tolist() if isinstance(values, torch.Tensor) else list(values)
        if not isinstance(cells[0], list | tuple):
            cells = [cells]
        for names, count, what in ((rows, len(cells), "rows"), (columns, len(cells[0]), "columns")):
            if names is not None and len(names) != count:
                raise ValueError(f"{count} {what} need {count} names, but {len(names)} were given.")
        cells = [[_text(cell, decimals) for cell in row] for row in cells]
        if rows is not None:
            cells = [[name, *row] for name, row in zip(rows, cells, strict=True)]
            columns = None if columns is None else ["", *columns]
        self.cells, self.columns = cells, columns or ()

    def _tabulate(self, form):
        return tabulate(
            self.cells,
            headers=self.columns,
            tablefmt=form,
            disable_numparse=True,
            stralign="right",
        )

    def __repr__(self):
        from shape_tracing.terminal import printable

        return printable(self._tabulate("simple" if self.columns else "plain"))

    def _repr_html_(self):
        # with a hyphen that does not break: else 1e-6 falls into two lines where it is narrow
        html = re.sub(r"(?<=\de)-(?=\d)", "\N{NON-BREAKING HYPHEN}", self._tabulate("html"))
        return f'<div style="overflow-x:auto">{html}</div>'


def largest_difference(first, second, floor=1e-6):
    """Return the largest absolute difference as text: "below 1e-6", or a number with 2 digits.

    Rounding differs from one processor to the next, so a difference below `floor` is never
    printed as a number. Raises ValueError where the shapes differ.
    """
    if first.shape != second.shape:
        raise ValueError(
            f"Shapes {tuple(first.shape)} and {tuple(second.shape)} differ, so there is nothing "
            f"to compare entry by entry."
        )
    largest = (first - second).abs().max().item()
    return f"below {power_text(floor)}" if largest < floor else f"{largest:.2g}"


def power_text(number):
    """Return a small number as text with one digit: 1e-6, where Python writes 1e-06."""
    return f"{number:.0e}".replace("e-0", "e-")


def _text(cell, decimals):
    if not isinstance(cell, float):
        return str(cell)
    text = f"{cell:.{decimals}f}"
    return text.lstrip("-") if float(text) == 0 else text
