"""How numbers are shown: rounded, named, as text in a terminal and as HTML in a notebook."""

import nbformat
import pytest
import torch
from nbclient import NotebookClient

from attention_course.tables import largest_difference, power_text, table, table_text

VALUES = torch.tensor([[1.0, -0.001, 12.345], [2.0, 0.5, -3.0]])


def test_text_has_every_name_and_number(capsys):
    table(VALUES, ["a", "long"], ["first", "second", "third"])
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        "        first    second    third",
        "----  -------  --------  -------",
        "   a     1.00      0.00    12.35",
        "long     2.00      0.50    -3.00",
    ]
    assert printed == table_text(VALUES, ["a", "long"], ["first", "second", "third"]) + "\n"


def test_without_names_and_with_other_decimals():
    assert table_text(VALUES[0], decimals=1) == "1.0  0.0  12.3"
    assert table_text([["word", 3, True, 0.25]]) == "word  3  True  0.25"


def test_each_row_and_column_needs_its_name():
    with pytest.raises(ValueError, match="2 rows need 2 names, but 1 were given"):
        table_text(VALUES, ["only one"])
    with pytest.raises(ValueError, match="3 columns need 3 names, but 4 were given"):
        table_text(VALUES, columns=["a", "b", "c", "d"])


def test_html_in_a_notebook():
    source = """
from attention_course.tables import table
table([[1.5, "1e-6"]], ["<b>"], ["x", "y"])
"""
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    NotebookClient(book, kernel_name="python3").execute()
    (output,) = book.cells[0].outputs
    assert output.data["text/plain"] == table_text([[1.5, "1e-6"]], ["<b>"], ["x", "y"])
    html = output.data["text/html"]
    assert html.startswith('<div style="overflow-x:auto"><table>')
    cells = [part.partition("</t")[0].split(">")[-1].strip() for part in html.split("<t")]
    number = "1e\N{NON-BREAKING HYPHEN}6"
    assert [cell for cell in cells if cell] == ["x", "y", "&lt;b&gt;", "1.50", number]


def test_largest_difference():
    moved = VALUES.clone()
    assert largest_difference(VALUES, moved) == "below 1e-6"
    moved[1, 2] += 5e-7
    assert largest_difference(VALUES, moved, floor=1e-7) == "4.8e-07"  # as float32 has it
    assert largest_difference(VALUES, moved, floor=1e-6) == "below 1e-6"
    moved[1, 2] -= 0.25
    assert largest_difference(VALUES, moved) == "0.25"
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(3, 2\) differ"):
        largest_difference(VALUES, VALUES.mT)


def test_power_text():
    assert power_text(1e-6) == "1e-6"
    assert power_text(1e-12) == "1e-12"
