"""Write the address of the published course wherever it stands (`make publish`).

One place holds it: [tool.attention-course] in pyproject.toml. From there it goes into the
header and the set-up cell of each notebook and under the title of the README. An empty
repository takes the badges out again, to the byte.
"""

import re
import sys
import tomllib
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]
FIRST = "notebooks/01_qkv_by_hand.ipynb"
BADGES = re.compile(r"^\[Open in Colab\]\(.*\n\n", re.MULTILINE)
TITLE = re.compile(r"^(# .*\n\n)")
ADDRESS = re.compile(r'^_REPOSITORY = "[^"]*"\n_BRANCH = "[^"]*"$', re.MULTILINE)


def address(root=ROOT):
    """Return (repository, branch) as pyproject.toml has them."""
    course = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["attention-course"]
    return course["repository"], course["branch"]


def badges(repository, branch, notebook):
    """Return the line of links that opens one notebook elsewhere, or nothing."""
    if not repository:
        return ""
    colab = f"https://colab.research.google.com/github/{repository}/blob/{branch}/{notebook}"
    binder = f"https://mybinder.org/v2/gh/{repository}/{branch}?urlpath=lab/tree/{notebook}"
    github = f"https://github.com/{repository}/blob/{branch}/{notebook}"
    return f"[Open in Colab]({colab}) · [Open in Binder]({binder}) · [Read on GitHub]({github})\n\n"


def with_badges(text, line):
    """Return a text with its badges, which stand under the title, exchanged."""
    return TITLE.sub(lambda title: title[1] + line, BADGES.sub("", text), count=1)


def set_up(source, repository, branch):
    """Return the set-up cell with the address exchanged."""
    pair = (f"https://github.com/{repository}", branch) if repository else ("", "")
    return ADDRESS.sub('_REPOSITORY = "{}"\n_BRANCH = "{}"'.format(*pair), source)


def publish(repository, branch, root=ROOT):
    if repository and not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
        raise SystemExit(f"REPOSITORY is owner/name, such as ada/attention, not {repository!r}.")
    if not re.fullmatch(r"[\w./-]+", branch):
        raise SystemExit(f"BRANCH is the name of a branch, such as main, not {branch!r}.")
    _rewrite(
        root / "pyproject.toml",
        lambda text: re.sub(
            r'^repository = ".*"\nbranch = ".*"$',
            f'repository = "{repository}"\nbranch = "{branch}"',
            text,
            flags=re.MULTILINE,
        ),
    )
    readme = badges(repository, branch, FIRST)
    _rewrite(root / "README.md", lambda text: with_badges(text, readme))
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        line = badges(repository, branch, f"notebooks/{path.name}")
        book.cells[0].source = with_badges(book.cells[0].source, line)
        book.cells[1].source = set_up(book.cells[1].source, repository, branch)
        nbformat.write(book, path)


def _rewrite(path, change):
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    publish(*sys.argv[1:3])
