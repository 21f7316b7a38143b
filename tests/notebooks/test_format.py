"""How a notebook is stored: the form that GitHub, Colab, nbviewer and nbval all read."""

import base64
import io

import books
import nbformat
from PIL import Image

from notebooks import FOLDED, paths

KNOWN_TAGS = {"nbval-ignore-output", "progress", "exercise", "optional"}


def test_the_six_notebooks_are_there():
    assert sorted(books.PATHS[0].parent.glob("*.ipynb")) == books.PATHS
    assert paths() == books.ALL  # what `make notebooks` stores


def test_valid_format_and_fixed_metadata(book):
    nbformat.validate(book)
    assert (book.nbformat, book.nbformat_minor) == (4, 5)
    assert book.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }


def test_ids_are_unique(book):
    ids = [cell.id for cell in book.cells]
    assert len(set(ids)) == len(ids)


def test_counts_run_from_one(book):
    code = books.code_cells(book)
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        for output in cell.outputs:
            assert output.get("execution_count", cell.execution_count) == cell.execution_count


def test_cells_carry_known_tags_and_nothing_else_but_the_folded_set_up(book):
    header, set_up, *cells = book.cells
    assert set_up.metadata == FOLDED
    for cell in (header, *cells):
        assert set(cell.metadata) <= {"tags"}
        assert set(cell.metadata.get("tags", [])) <= KNOWN_TAGS


def test_no_widget_no_stderr_no_error_is_stored(book):
    for cell in books.code_cells(book):
        for output in cell.outputs:
            assert output.output_type != "error", cell.source
            assert output.get("name") != "stderr", cell.source
            assert not [kind for kind in output.get("data", {}) if "widget" in kind]


def test_a_file_stays_below_a_megabyte_and_all_below_three(path):
    assert path.stat().st_size < 1_000_000
    assert sum(each.stat().st_size for each in books.ALL) < 3_000_000


def test_stored_pictures_have_a_palette_and_are_small(book):
    for cell in books.code_cells(book):
        for output in cell.outputs:
            if png := output.get("data", {}).get("image/png"):
                assert Image.open(io.BytesIO(base64.b64decode(png))).mode == "P", cell.source
                assert len(png) < 100_000, cell.source
