"""Progress stays out of files: a bar for somebody who looks on, a line for a file."""

import os
import subprocess
import sys

import pytest

SCRIPT = """
from attention_course.bars import bar
print(list(bar(range(3), "training")), list(bar(range(2), "timing", leave=False)))
"""
COMMAND = [sys.executable, "-c", SCRIPT]


def test_a_file_gets_a_line_for_each_part():
    result = subprocess.run(COMMAND, capture_output=True, encoding="utf-8")
    assert result.stdout == "[0, 1, 2] [0, 1]\n"
    assert result.stderr == "training: done\n"


def test_a_terminal_gets_the_bar():
    pty = pytest.importorskip("pty")
    mine, its = pty.openpty()
    pytest.importorskip("termios").tcsetwinsize(its, (24, 80))
    result = subprocess.run(COMMAND, stdout=subprocess.PIPE, stderr=its, encoding="utf-8")
    said = os.read(mine, 10_000).decode()
    os.close(mine)
    os.close(its)
    assert result.stdout == "[0, 1, 2] [0, 1]\n"
    assert "training: 100%" in said
    assert "3/3" in said
    assert "done" not in said
