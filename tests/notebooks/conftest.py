"""Every test here that asks for `path` or `book` runs once for each notebook.

One that asks for `core` runs for the six alone, without those of notebooks/further.
"""

import books
import pytest


def pytest_generate_tests(metafunc):
    if "path" in metafunc.fixturenames:
        paths = books.PATHS if "core" in metafunc.fixturenames else books.EVERY
        metafunc.parametrize("path", paths, ids=[path.stem for path in paths])


@pytest.fixture
def book(path):
    return books.read(path)


@pytest.fixture
def core(book):
    return book
