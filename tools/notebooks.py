"""Execute the notebooks in place and store them in one fixed form (`make notebooks`).

Stored: outputs, execution counts 1..n, tags; pictures with a palette of 256 colours, a third
of the size. Not stored: widget state, widget views, timestamps, versions, the bars of a progress
display.
"""

import base64
import io
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


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


def main(names):
    paths = [NOTEBOOKS / name for name in names] or sorted(NOTEBOOKS.glob("*.ipynb"))
    for path in paths:
        book = nbformat.read(path, as_version=4)
        execute(book, path.parent)
        normalise(book)
        nbformat.write(book, path)
        print(f"stored {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
