"""Every test here that asks for `path` or `book` runs once for each notebook."""

import books
import pytest


def pytest_generate_tests(metafunc):
    if "path" in metafunc.fixturenames:
        ids = [path.relative_to(books.ROOT / "notebooks").as_posix() for path in books.ALL]
        metafunc.parametrize("path", books.ALL, ids=ids)


@pytest.fixture
def book(path):
    return books.read(path)
