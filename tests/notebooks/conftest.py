"""Every test here that asks for `path` or `book` runs once for each notebook."""

import books
import pytest


def pytest_generate_tests(metafunc):
    if "path" in metafunc.fixturenames:
        metafunc.parametrize("path", books.PATHS, ids=[path.stem for path in books.PATHS])


@pytest.fixture
def book(path):
    return books.read(path)
