"""A notebook as HTML without a kernel, as GitHub and nbviewer show it: every explorer's picture."""

import re

import books
import nbformat
import pytest
from nbconvert import HTMLExporter

import attention_course

EXPLORERS = ["query", "mask", "heads", "split", "shapes", "word_order"]


def pictures(html):
    """Return the PNG pictures of a page, in base64."""
    return re.findall(r'<img[^>]*src="data:image/png;base64,([^"]+)"', html.replace("\n", ""))


def as_stored(png):
    return png.replace("\n", "")


@pytest.fixture(scope="module")
def export():
    exporter = HTMLExporter(template_name="lab")
    return lambda book: exporter.from_notebook_node(book)[0]


@pytest.mark.parametrize(("core", "name"), list(zip(books.PATHS, EXPLORERS, strict=True)))
def test_a_stored_explorer_is_a_picture(core, name, export):
    book = books.read(core)
    shown = [
        output.data
        for cell in books.code_cells(book)
        for output in cell.outputs
        if output.get("data", {}).get("text/plain", "").startswith(f"explore_{name}: ")
    ]
    assert len(shown) == 1
    html = export(book)
    assert as_stored(shown[0]["image/png"]) in pictures(html)
    assert "widget-view" not in html


@pytest.mark.parametrize("name", EXPLORERS)
def test_an_explorer_stored_by_another_tool_is_a_picture_too(name, export):
    """The widget's view stays in the file then, without the state that it names."""
    data, metadata = getattr(attention_course, f"explore_{name}")()._repr_mimebundle_()
    cell = nbformat.v4.new_code_cell()
    cell.outputs = [nbformat.v4.new_output("display_data", data, metadata=metadata)]
    html = export(nbformat.v4.new_notebook(cells=[cell]))
    assert len(pictures(html)) == 1
