"""nbval is strict: one changed digit in a stored output, and it fails at that cell."""

import os
import random
import re
import subprocess
import sys

import books
import nbformat
import pytest

DIGIT = re.compile(r"\d")


def nbval(target, **environment):
    command = [sys.executable, "-m", "pytest", "-q", "--nbval", "--nbval-current-env"]
    options = ["--nbval-cell-timeout=300", "-p", "no:cacheprovider"]
    return subprocess.run(
        [*command, *options, str(target)],
        cwd=books.ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def test_one_changed_number_fails(book, tmp_path):
    seed = random.SystemRandom().randrange(10_000)
    draw = random.Random(seed)
    at, output, key, position = draw.choice(list(printed_digits(book)))
    text = output[key]
    changed = str((int(text[position]) + draw.randrange(1, 10)) % 10)
    output[key] = text[:position] + changed + text[position + 1 :]
    book.cells = book.cells[: at + 1]  # what comes after plays no part
    nbformat.write(book, tmp_path / "changed.ipynb")

    result = nbval(tmp_path / "changed.ipynb")

    last = len(books.code_cells(book)) - 1
    failed = re.findall(r"^FAILED .*::Cell (\d+)", result.stdout, re.MULTILINE)
    where = f"seed {seed}, cell {book.cells[-1].id}, digit {position} of:\n{text}\n"
    assert failed == [str(last)], where + result.stdout


def printed_digits(book):
    """Yield (cell index, dictionary, key, position) for every digit that nbval compares."""
    for at, cell in enumerate(book.cells):
        if cell.cell_type == "code" and books.is_compared(cell):
            for output in cell.outputs:
                for part, key in ((output, "text"), (output.get("data", {}), "text/plain")):
                    for match in DIGIT.finditer(part.get(key, "")):
                        yield at, part, key, match.start()


@pytest.mark.long
def test_another_processors_arithmetic_gives_the_same(path):
    result = nbval(path, ATEN_CPU_CAPABILITY="default")
    assert result.returncode == 0, result.stdout
