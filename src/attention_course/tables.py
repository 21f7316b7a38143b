"""How numbers are printed: with names beside them, rounded so that each processor agrees."""

import torch
from tabulate import tabulate


def table(values, rows=None, columns=None, decimals=2):
    """Print a tensor, or a list of rows, with its row and column names.

    values: a tensor of one or two dimensions, or a list of rows. Decimal numbers are
    rounded to `decimals` places; a rounded zero has no minus sign.
    """
    print(table_text(values, rows, columns, decimals))


def table_text(values, rows=None, columns=None, decimals=2):
    """Return what `table` prints, as text."""
    cells = values.detach().tolist() if isinstance(values, torch.Tensor) else list(values)
    if not isinstance(cells[0], list | tuple):
        cells = [cells]
    cells = [[_text(cell, decimals) for cell in row] for row in cells]
    if rows is not None:
        cells = [[name, *row] for name, row in zip(rows, cells, strict=True)]
        columns = None if columns is None else ["", *columns]
    return tabulate(
        cells,
        headers=columns or (),
        tablefmt="simple" if columns else "plain",
        disable_numparse=True,
        stralign="right",
    )


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
