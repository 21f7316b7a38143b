"""How a notebook is written: short cells, names that mean one thing, prose that is covered."""

import re
import statistics
from collections import defaultdict
from pathlib import Path

import books
import nbformat
import pytest
from cell_source import Names, decimals, foreign_changes

from attention_course import lectures
from notebooks import ENDING, SET_UP

LONGEST, USUAL, MEDIAN = 25, 12, 4  # lines of code in a cell
WORDS, MOST = 180, 30  # words a minute, minutes of a core
STEP = 1 / 3  # minutes for a code cell, and for a prediction
FOLDED = re.compile(r"<details>.*?</details>", re.DOTALL)  # read only where it is opened
EXERCISE = re.compile(r"^### Try: .+, (\d+) minutes?\)$", re.MULTILINE)


def prose(book):
    return [cell.source for cell in book.cells if cell.cell_type == "markdown"]


def lines(cell):
    return len([line for line in cell.source.splitlines() if line.strip()])


def test_all_share_the_set_up_cell_and_the_end_of_the_header(book):
    header, set_up = book.cells[:2]
    assert set_up.source == SET_UP
    assert header.source.endswith(f"\n\n{ENDING}")
    assert header.source.count("vercel.app") == 1


def test_the_set_up_cell_is_short_and_neither_clones_nor_installs():
    assert SET_UP.startswith("# @title Set-up")
    assert len(SET_UP.splitlines()) <= 12
    assert not re.search(r"subprocess|os\.system|pip|git|^[!%]", SET_UP, re.MULTILINE)


def test_header_and_footer(path, book):
    header, footer = book.cells[0].source, book.cells[-1].source
    assert footer.startswith("## What you have seen")
    if path in books.FURTHER:
        assert header.startswith("# Further: ")
        core = next(name for name in books.NAMES if name.startswith(path.stem[:2]))
        assert f"(../{core}.ipynb)" in header
        return
    number = int(path.stem[:2])
    assert header.startswith(f"# {number}. ")
    assert "After this notebook you can" in header
    if number < len(books.NAMES):
        assert f"({books.NAMES[number]}.ipynb)" in footer


def counted_minutes(book):
    """Return the minutes of a notebook: words, code cells, predictions and exercises.

    What is folded, the set-up cell among it, is not read.
    """
    header, *parts = (FOLDED.sub("", source) for source in prose(book))
    text = "\n".join(parts)
    exercises = sum(int(minutes) for minutes in EXERCISE.findall(text))
    _set_up, *cells = books.code_cells(book)
    steps = len(cells) + text.count("**Predict**")  # the header has the word, and asks nothing
    return len(f"{header}\n{text}".split()) / WORDS + STEP * steps + exercises


def test_the_header_says_the_minutes_that_are_counted(path, book):
    (told,) = re.findall(r"[Aa]bout (\d+) minutes", book.cells[0].source)
    counted = counted_minutes(book)
    assert int(told) == 5 * round(counted / 5)
    if path in books.PATHS:
        assert counted <= MOST


def test_cells_are_short(book):
    setup, *cells = books.code_cells(book)
    counts = [lines(cell) for cell in cells]
    assert max(*counts, lines(setup)) <= LONGEST
    assert statistics.median(counts) <= MEDIAN
    assert sum(count <= USUAL for count in counts) >= 0.9 * len(counts)


def test_what_goes_further_stands_in_a_notebook_of_its_own(path, book):
    headings = [h for text in prose(book) for h in re.findall(r"^#+ (.+)$", text, re.MULTILINE)]
    assert not [heading for heading in headings[1:] if heading.startswith("Further")]
    if path in books.FURTHER:
        core = next(name for name in books.NAMES if name.startswith(path.stem[:2]))
        footer = books.read(path.parents[1] / f"{core}.ipynb").cells[-1].source
        assert f"(further/{path.name})" in footer


def test_prose_stands_before_code(book):
    for before, cell in zip(book.cells[2:], book.cells[3:], strict=False):
        if cell.cell_type == "code" and before.cell_type == "code":
            # a cell whose numbers differ from run to run has its compared cell beside it
            assert not books.is_compared(before), cell.source


def test_a_name_is_bound_in_one_cell(book):
    bound, loops, reads = defaultdict(set), defaultdict(set), defaultdict(set)
    for index, cell in enumerate(books.code_cells(book)):
        names = Names(cell.source)
        for name in names.bound:
            bound[name].add(index)
        for name in names.loops - names.bound:
            loops[name].add(index)
        for name in names.read - names.bound - names.loops:
            reads[name].add(index)
    twice = {name for name in bound if len(bound[name] | loops[name]) > 1}
    leaked = {name for name in loops if loops[name] and reads[name]}
    assert not twice
    assert not leaked


def test_no_cell_changes_what_another_made(book):
    _set_up, *cells = books.code_cells(book)  # which changes the path of this Python
    for cell in cells:
        assert not list(foreign_changes(cell.source)), cell.source


def test_no_plot_state_and_no_hidden_outputs(book):
    for cell in books.code_cells(book):
        assert "pyplot" not in cell.source
        assert not re.search(r"^%", cell.source, re.MULTILINE)
        assert not cell.source.rstrip().endswith(";")


def test_pictures_are_described(book):
    for cell in books.code_cells(book):
        for output in cell.outputs:
            if "image/png" in output.get("data", {}):
                words = output.metadata["image/png"]["alt"]
                assert len(words.split()) >= 6, words
                # an explorer's text says how to use it, which its picture does not
                is_explorer = re.match(r"explore_\w+: run this cell", output.data["text/plain"])
                assert output.data["text/plain"] == words or is_explorer


def test_decimals_in_prose_stand_in_an_output_or_in_the_lectures(book):
    shown = [text for cell in books.code_cells(book) for text in books.texts(cell)]
    known = decimals("\n".join(shown)) | decimals(
        Path(lectures.__file__).read_text(encoding="utf-8")
    )
    for text in prose(book):
        assert decimals(text) <= known, text


def test_links_lead_somewhere(path, book):
    for text in prose(book):
        for target in re.findall(r"\]\(([^)]+)\)", text):
            if not target.startswith(("https://", "#")):
                assert (path.parent / target.split("#")[0]).exists(), target


def test_minutes_are_counted():
    book = nbformat.v4.new_notebook()
    text = f"### Try: it (easy, 4 minutes)\n{'**Predict**: word ' * 2}<details>not read</details>"
    prose_cells = [nbformat.v4.new_markdown_cell(text) for text in ("**Predict** " * 349, text)]
    book.cells = [*prose_cells, *[nbformat.v4.new_code_cell("1")] * 6]
    assert counted_minutes(book) == pytest.approx(360 / 180 + (5 + 2) / 3 + 4, abs=0.02)


# --- the rules' own tools, each tried on a text that breaks its rule --------------------------


@pytest.mark.parametrize(
    "source",
    [
        "scores.masked_fill_(hidden, 0)",
        "weights[0] = 1",
        "head.W_query.weight.data.zero_()",
        "model.eval()",
        "loss.backward()",
        "torch.set_num_threads(1)",
        "head.dropout = 0.5",
        "del table[0]",
    ],
)
def test_foreign_changes_are_seen(source):
    assert list(foreign_changes(source))


def test_own_changes_are_allowed():
    assert not list(foreign_changes("x = torch.zeros(3)\nx[0] = 1\nx.add_(1)\nm = f().eval()"))


def test_names_are_seen():
    names = Names(
        "import torch\nfrom a import b as c\nx, (y, *z) = 1, (2, 3)\nfor i in x:\n    w = i\n"
        "def f(p):\n    q = p + r\n    return q\n[k for k in z]\nwith g() as h:\n    pass\n_u = 1"
    )
    assert names.bound == {"torch", "c", "x", "y", "z", "w", "f", "h"}
    assert names.loops == {"i"}
    assert {"r", "z", "g", "x"} <= names.read
    assert not {"k", "p", "q"} & names.read


def test_decimals_are_seen():
    text = "0.51 and −1.5. At 12:28, in 3.11.7 or [a](b/0.7) or 2. Then 0.25."
    assert decimals(text) == {"0.51", "1.5", "0.25"}


@pytest.mark.parametrize("second", ["x = 2", "for x in y: pass", "def x(): pass", "import x"])
def test_a_second_binding_is_seen(second):
    book = nbformat.v4.new_notebook()
    book.cells = [nbformat.v4.new_code_cell(text) for text in ("x = 1", second)]
    with pytest.raises(AssertionError):
        test_a_name_is_bound_in_one_cell(book)
