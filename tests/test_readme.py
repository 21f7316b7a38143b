"""What the README shows is what comes out."""

import re

import books
import torch
from torch import nn

from attention_check import check_attention
from notebooks import picture

README = (books.ROOT / "README.md").read_text(encoding="utf-8")


def block(start):
    """Return the fenced block of the README whose first line begins with `start`."""
    blocks = re.findall(r"^```\w*\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    return next(text for text in blocks if text.startswith(start))


def test_the_report_shown_is_the_report_given(tmp_path):
    file = tmp_path / "mine.py"  # a report quotes the line, so there must be a file to read
    file.write_text(block("class MyAttention"), encoding="utf-8")
    names = {"torch": torch, "nn": nn}
    exec(compile(file.read_text(encoding="utf-8"), file, "exec"), names)
    report = check_attention(names["MyAttention"])
    assert str(report).strip() == block("MyAttention: ").strip()
    assert [finding.code for finding in report.findings] == ["future-visible", "scale"]


def test_the_commands_are_there():
    targets = set(re.findall(r"(?:`|^    )make ([\w-]+)", README, re.MULTILINE))
    makefile = (books.ROOT / "Makefile").read_text(encoding="utf-8")
    assert targets <= set(re.findall(r"^([\w-]+):", makefile, re.MULTILINE))


def test_the_picture_is_the_stored_one_and_described():
    file, description = re.search(r'<img src="([^"]+)" width="\d+" alt="([^"]+)">', README).groups()
    assert (books.ROOT / file).read_bytes() == picture()
    assert len(picture()) < 100_000
    assert len(description.split()) >= 6


def test_the_minutes_are_those_of_the_notebooks():
    rows = re.findall(r"\(notebooks/([\w/]+)\.ipynb\) \| (\d+) \|", README)
    folder = books.ROOT / "notebooks"
    assert [folder / f"{name}.ipynb" for name, _ in rows] == books.ALL
    for name, minutes in rows:
        header = books.read(folder / f"{name}.ipynb").cells[0].source
        assert f"bout {minutes} minutes" in header, name
