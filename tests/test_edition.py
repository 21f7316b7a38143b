"""The learners' edition: each notebook alone in an empty folder gives the stored outputs."""

import subprocess
import sys

import books
import nbformat
import pytest
from nbclient import NotebookClient

from notebooks import FOLDED

NAMES = [p.relative_to(books.ROOT / "notebooks").with_suffix("").as_posix() for p in books.ALL]

WITHOUT_PACKAGE = """
import importlib.util, sys
sys.meta_path = [finder for finder in sys.meta_path if "__editable__" not in str(finder)]
sys.path = [folder for folder in sys.path if not folder.endswith("src")]
assert importlib.util.find_spec("attention_course") is None
"""


@pytest.fixture(scope="module")
def edition(tmp_path_factory):
    folder = tmp_path_factory.mktemp("edition")
    subprocess.run([sys.executable, "tools/colab.py", str(folder)], cwd=books.ROOT, check=True)
    return folder


@pytest.mark.parametrize("name", NAMES)
def test_one_file_without_outputs(edition, name):
    path = edition / f"{name}.ipynb"
    book = books.read(path)
    nbformat.validate(book)
    assert path.stat().st_size < 1_000_000
    assert "save a copy" in book.cells[0].source
    assert "After a disconnect" in book.cells[0].source
    assert book.cells[1].metadata == FOLDED
    assert book.cells[1].source.startswith("# @title Set-up")
    assert sum("ModuleNotFoundError" in cell.source for cell in books.code_cells(book)) == 0
    for cell in books.code_cells(book):
        assert (cell.outputs, cell.execution_count) == ([], None)


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_alone_in_an_empty_folder_it_gives_the_stored_outputs(edition, tmp_path, name):
    book = books.read(edition / f"{name}.ipynb")
    where = nbformat.v4.new_code_cell("import attention_course; print(attention_course.__path__)")
    book.cells = [nbformat.v4.new_code_cell(WITHOUT_PACKAGE), *book.cells, where]
    NotebookClient(
        book, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()

    assert str(books.ROOT / "src") not in where.outputs[0].text
    course = books.read(books.ROOT / "notebooks" / f"{name}.ipynb")
    stored = {cell.id: cell for cell in course.cells}
    compared = 0
    for cell in books.code_cells(book):
        if cell.id in stored and books.is_compared(cell):
            assert books.texts(cell) == books.texts(stored[cell.id]), cell.source
            assert books.has_picture(cell) == books.has_picture(stored[cell.id]), cell.source
            compared += 1
    assert compared == sum(map(books.is_compared, books.code_cells(course))) > 0
