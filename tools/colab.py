"""Build the learners' edition in dist/colab (`make colab`).

The same notebooks without stored outputs, which would give every prediction away, and each
one file: the packages travel, zipped, in the folded set-up cell. With the address of a
repository, such as ada/attention, a README is added that links each of them on its branch
colab, where the workflow `publish` puts them.
"""

import base64
import io
import shutil
import sys
import zipfile
from pathlib import Path

import nbformat

from notebooks import NOTEBOOKS, paths

ROOT = NOTEBOOKS.parent
SRC = ROOT / "src"
PACKAGES = ("attention_check", "attention_course", "shape_tracing")
NOTE = """

> **Before you start:** save a copy of this notebook first (in Colab: File, Save a copy in Drive),
> or your work is lost when the tab closes. After a disconnect, run everything above the cell
> you were at: Runtime, Run before."""
CARRIER = """\
# @title Set-up: run this first. It unpacks the course's package.
import base64, io, sys, tempfile, zipfile

_packed = "{packed}"
if "attention_course" not in sys.modules:
    _folder = tempfile.mkdtemp()
    zipfile.ZipFile(io.BytesIO(base64.b64decode(_packed))).extractall(_folder)
    sys.path.insert(0, _folder)"""
README = """\
# The attention course, ready to run

Each of these notebooks is one file that brings along all it needs. The answers are left out.

| notebook | in Colab | on Binder |
|---|---|---|
{rows}

[Download all as one archive](https://github.com/{repository}/archive/refs/heads/colab.zip).
Binder opens the notebooks of [the course itself](https://github.com/{repository}), in which the
answers are stored; it may take minutes to start.

This branch is made anew by each push to the course. What is changed here is lost.
"""


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
    book.cells[0].source += NOTE
    book.cells[1].source = CARRIER.format(packed=package)
    for cell in book.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return book


def linked(book, name, repository):
    """Return it with links to all notebooks, and to what the branch colab does not have."""
    book.cells[0].source += f" [All notebooks](https://github.com/{repository}/tree/colab)."
    out = "](" + "../" * len(name.parts)
    for cell in book.cells:
        cell.source = cell.source.replace(out, f"](https://github.com/{repository}/blob/HEAD/")
    return book


def row(book, name, repository):
    """Return one notebook's line of the README: its title, and where it opens."""
    title = book.cells[0].source.partition("\n")[0].removeprefix("# ")
    colab = f"https://colab.research.google.com/github/{repository}/blob/colab/{name}"
    binder = f"https://mybinder.org/v2/gh/{repository}/HEAD?urlpath=lab/tree/notebooks/{name}"
    return f"| [{title}]({name}) | [open]({colab}) | [open]({binder}) |"


def main(target, repository=""):
    shutil.rmtree(target, ignore_errors=True)
    package, rows = packed(), []
    for path in paths():
        name = path.relative_to(NOTEBOOKS)
        book = edition(nbformat.read(path, as_version=4), package)
        rows.append(row(book, name.as_posix(), repository))
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(linked(book, name, repository) if repository else book, target / name)
    if repository:
        text = README.format(rows="\n".join(rows), repository=repository)
        (target / "README.md").write_text(text, encoding="utf-8")
    print(f"{len(rows)} notebooks for learners are in {target}.")


if __name__ == "__main__":
    folder, *repository = sys.argv[1:] or [ROOT / "dist" / "colab"]
    main(Path(folder), *repository)
