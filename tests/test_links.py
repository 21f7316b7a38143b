"""Links within the repository lead somewhere; links out of it stand in one list."""

import re

import books

LIST = books.ROOT / "tests" / "external_links.txt"
BRANCH = "../../tree/colab"  # on GitHub, the branch of the very repository that shows the README


def links():
    """Yield (file, target) for every Markdown link of the README and the notebooks."""
    texts = {books.ROOT / "README.md": (books.ROOT / "README.md").read_text(encoding="utf-8")}
    for path in books.ALL:
        cells = books.read(path).cells
        texts[path] = "\n".join(c.source for c in cells if c.cell_type == "markdown")
    for path, text in texts.items():
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            yield path, target


def test_links_within_lead_to_a_file_and_a_heading():
    for path, target in links():
        if "://" in target or target == BRANCH:
            continue
        file, _, anchor = target.partition("#")
        goal = path.parent / file if file else path
        assert goal.exists(), f"{path.name}: {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", goal.read_text(encoding="utf-8"), re.MULTILINE)
            names = {re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in headings}
            assert anchor in names, f"{path.name}: {target}"


def test_links_out_are_the_listed_ones():
    out = {target for _, target in links() if "://" in target}
    assert out == set(LIST.read_text(encoding="utf-8").split())
