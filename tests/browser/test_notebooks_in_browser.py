"""Notebooks as a learner opens them: all cells run, each explorer appears and answers.

The course's own six in JupyterLab, where each takes as long as its cells; of the learners'
edition, which needs nothing but itself, two on either stack.
"""

import shutil
import subprocess
import sys

import books
import pytest

import attention_course

expect = pytest.importorskip("playwright.sync_api").expect

pytestmark = pytest.mark.long
EXPLORERS = dict(
    zip(books.NAMES, ["query", "mask", "heads", "split", "shapes", "word_order"], strict=True)
)
SLOW = 300_000  # milliseconds, for a whole notebook on a busy machine


@pytest.mark.parametrize("name", books.NAMES)
def test_a_notebook_of_the_course_runs_and_its_explorer_answers(name, server, page):
    if server.classic:
        pytest.skip("in JupyterLab only; on Notebook 6 the learners' edition is opened")
    folder = server.folder / "notebooks"
    folder.mkdir(exist_ok=True)
    shutil.copy(books.ROOT / "notebooks" / f"{name}.ipynb", folder)
    opened_and_run(name, "notebooks", server, page)


@pytest.mark.parametrize("name", ["02_causal_mask", "06_word_order"])
def test_a_notebook_of_the_edition_runs_and_its_explorer_answers(name, server, page):
    command = [sys.executable, "tools/colab.py", str(server.folder / "edition")]
    subprocess.run(command, cwd=books.ROOT, check=True)
    opened_and_run(name, "edition", server, page)


def opened_and_run(name, folder, server, page):
    """Run all cells; then find the explorer's starting picture, and move one control.

    In some notebooks a second explorer comes after it, of the learner's own module.
    """
    page.set_default_timeout(SLOW)
    server.run(page, f"{folder}/{name}.ipynb")
    picture = page.locator(".explorer img").first
    picture.wait_for()
    twin = getattr(attention_course, f"explore_{EXPLORERS[name]}")()
    status = page.locator(".explorer [role=status]").first
    assert status.text_content() == twin.status
    assert picture.get_attribute("alt") == twin.picture.description
    assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 400

    first = page.locator(".explorer-controls > *").first
    if first.locator("select").count():
        first.locator("select").select_option(index=1)
    elif first.locator("input[type=checkbox]").count():
        first.locator("input").press("Space")
    elif first.locator("input[type=text]").count():
        first.locator("input").fill("cats chase dogs")
        first.locator("input").press("Enter")
    else:
        first.locator(server.handle).press("ArrowRight")
    expect(status).not_to_have_text(twin.status, timeout=SLOW)
    assert page.locator(server.complaints).count() == 0
