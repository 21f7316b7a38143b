"""Build the learners' edition in dist/colab (`make colab`).

The same six notebooks without stored outputs, which would give every prediction away, and
each one file: the packages travel, zipped, in a folded first cell.
"""

import base64
import io
import shutil
import sys
import zipfile
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"
PACKAGES = ("attention_check", "attention_course", "shape_tracing")
NOTE = """

> **Before you start:** save a copy of this notebook first (in Colab: File, Save a copy in Drive),
> or your work is lost when the tab closes. After a disconnect, run everything above the cell
> you were at: Runtime, Run before."""
CARRIER = """#@title The course's packages, packed. Run this cell first. {{ display-mode: "form" }}
import base64, io, sys, tempfile, zipfile

_packed = "{packed}"
if "attention_course" not in sys.modules:
    _folder = tempfile.mkdtemp()
    zipfile.ZipFile(io.BytesIO(base64.b64decode(_packed))).extractall(_folder)
    sys.path.insert(0, _folder)"""


def packed():
    """Return the packages as a zip file in base64, the same bytes for the same files."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(file for package in PACKAGES for file in (SRC / package).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                name = path.relative_to(SRC).as_posix()
                archive.writestr(zipfile.ZipInfo(name), path.read_bytes(), zipfile.ZIP_DEFLATED)
    return base64.b64encode(buffer.getvalue()).decode()


def edition(book, package):
    """Return a notebook for learners: its own package first, no outputs, a note on saving."""
    carrier = nbformat.v4.new_code_cell(CARRIER.format(packed=package), id="package")
    carrier.metadata = {"cellView": "form", "jupyter": {"source_hidden": True}}
    book.cells.insert(1, carrier)
    book.cells[0].source += NOTE
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return book


def main(target):
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    package = packed()
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        nbformat.write(edition(nbformat.read(path, as_version=4), package), target / path.name)
    print(f"Six notebooks for learners are in {target}.")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist" / "colab")
