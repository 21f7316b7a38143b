"""Execute the notebooks in place and store them in one fixed form (`make notebooks`).

Stored: outputs, execution counts 1..n, tags; pictures in few colours. Not stored: widget state,
widget views, timestamps, versions, the bars of a progress display.
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
COLOURS = 128  # of a stored picture: a third of the size, and the eye sees no difference


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
                data["image/png"] = with_few_colours(data["image/png"])
            if output.output_type == "execute_result":
                output.execution_count = count


def with_few_colours(png):
    """Return a picture, PNG in base64, in at most 128 colours; one that has few already stays."""
    picture = Image.open(io.BytesIO(base64.b64decode(png)))
    if picture.mode == "P":
        return png
    buffer = io.BytesIO()
    few = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()


def main(names):
    paths = [NOTEBOOKS / name for name in names] or sorted(NOTEBOOKS.glob("**/*.ipynb"))
    for path in paths:
        book = nbformat.read(path, as_version=4)
        execute(book, path.parent)
        normalise(book)
        nbformat.write(book, path)
        print(f"stored {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
