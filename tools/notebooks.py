"""Execute the notebooks in place and store them in one fixed form (`make notebooks`).

Stored: outputs, execution counts 1..n, tags, the set-up cell and the lines that all headers
share; pictures with a palette of 256 colours, a third of the size. Not stored: widget state, widget
views, timestamps, versions, the bars of a progress display. The picture of the README is taken from
one of the outputs.
"""

import base64
import io
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
PICTURE = NOTEBOOKS.parent / ".github" / "picture.png"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
SET_UP = Path(__file__).with_name("set_up.py").read_text(encoding="utf-8").strip()
FOLDED = {"cellView": "form", "jupyter": {"source_hidden": True}, "tags": ["hide-input"]}
ENDING = (  # of every header; an earlier wording that begins alike is exchanged
    "The lecturer's own: [the slides of lecture 8]"
    "(https://lecture8-attention-mechanisms.vercel.app) and [its notebook]"
    "(https://colab.research.google.com/drive/1WVYWQh4YcjQq-kPDi1Hug-KYDud-bDkK). "
    'Where an explorer says "Loading widget" or "model not found", its kernel has ended: '
    "run all cells again."
)


def paths():
    """Return the notebooks of the course in their order, those of `further` after the others."""
    return [*sorted(NOTEBOOKS.glob("*.ipynb")), *sorted(NOTEBOOKS.glob("further/*.ipynb"))]


def framed(book):
    """Give a notebook what all share: the end of its header, and the folded set-up cell."""
    header = book.cells[0]
    own = [part for part in header.source.split("\n\n") if not part.startswith(ENDING[:19])]
    header.source = "\n\n".join([*own, ENDING])
    if "find_spec" not in book.cells[1].source:
        book.cells.insert(1, nbformat.v4.new_code_cell())
    set_up = book.cells[1]
    set_up.id, set_up.source, set_up.metadata = "set-up", SET_UP, nbformat.from_dict(FOLDED)


def execute(book, folder):
    """Run every cell of a notebook in a fresh kernel that works in `folder`."""
    NotebookClient(
        book,
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder)}},
        store_widget_state=False,
        record_timing=False,
        coalesce_streams=True,  # how prints fall into messages differs from run to run
    ).execute()


def with_palette(png):
    """Return a PNG, in base64, with 256 colours at most and no dither."""
    picture = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB")
    buffer = io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def normalise(book):
    """Bring a notebook's metadata, counts and outputs into the one stored form."""
    book.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    book.nbformat, book.nbformat_minor = 4, 5
    code = [cell for cell in book.cells if cell.cell_type == "code"]
    for cell in book.cells:
        tags = cell.metadata.get("tags")
        if cell.metadata != FOLDED:
            cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        cell.source = cell.source.strip("\n")
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        if "progress" in cell.metadata.get("tags", []):
            cell.outputs = []  # a bar that stopped somewhere says nothing to a reader
        for output in cell.outputs:
            data = output.get("data", {})
            data.pop(WIDGET_VIEW, None)
            if "image/png" in data:
                data["image/png"] = with_palette(data["image/png"])
            if output.output_type == "execute_result":
                output.execution_count = count


def picture():
    """Return the picture of the README as PNG bytes: the stored explorer of notebook 2."""
    book = nbformat.read(NOTEBOOKS / "02_causal_mask.ipynb", as_version=4)
    outputs = [output.get("data", {}) for cell in book.cells for output in cell.get("outputs", [])]
    shown = next(d for d in outputs if d.get("text/plain", "").startswith("explore_mask: "))
    return base64.b64decode(shown["image/png"])


def main(names):
    for path in [NOTEBOOKS / name for name in names] or paths():
        book = nbformat.read(path, as_version=4)
        framed(book)
        execute(book, path.parent)
        normalise(book)
        nbformat.write(book, path)
        print(f"stored {path.name}")
    PICTURE.write_bytes(picture())


if __name__ == "__main__":
    main(sys.argv[1:])
