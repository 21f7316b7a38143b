"""The notebooks as the tests read them: cells, tags, outputs, one form to compare."""

from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
NAMES = [
    "01_qkv_by_hand",
    "02_causal_mask",
    "03_heads_in_a_loop",
    "04_weight_split",
    "05_shape_tracing",
    "06_word_order",
]
PATHS = [ROOT / "notebooks" / f"{name}.ipynb" for name in NAMES]
FURTHER = sorted((ROOT / "notebooks" / "further").glob("*.ipynb"))
ALL = PATHS + FURTHER


def number(path):
    """Return what exercises call the notebook: its number, or its name in further/."""
    return path.stem if path in FURTHER else int(path.stem[:2])


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(book):
    return [cell for cell in book.cells if cell.cell_type == "code"]


def is_compared(cell):
    return "nbval-ignore-output" not in cell.metadata.get("tags", [])


def has_picture(cell):
    return any("image/png" in output.get("data", {}) for output in cell.outputs)


def texts(cell):
    """Return what a cell printed and showed as text, in the order of a stored notebook."""
    streams = "".join(o.text for o in cell.outputs if o.output_type == "stream")
    shown = [
        o.data[kind]
        for o in cell.outputs
        if "data" in o
        for kind in ("text/plain", "text/html")
        if kind in o.data
    ]
    errors = [f"{o.ename}: {o.evalue}" for o in cell.outputs if o.output_type == "error"]
    return [streams, *shown, *errors]
