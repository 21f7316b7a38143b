"""On terminals that lack signs: words in their place, the same status, never a traceback."""

import os
import subprocess
import sys

import pytest

from shape_tracing.terminal import printable

FILE = """
import torch
from torch import nn

class Maßstab(nn.Module):  # no sign of 漢字 stops a report that quotes this file
    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.qkv, self.out = nn.Linear(d_model, 3 * d_model), nn.Linear(d_model, d_model)

    def forward(self, 漢):
        batch, tokens, d_model = 漢.shape
        parts = self.qkv(漢).chunk(3, dim=-1)
        q, k, v = (p.view(batch, tokens, self.num_heads, -1).transpose(1, 2) for p in parts)
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        scores = (q @ k.mT / d_model**0.5).masked_fill(
            hidden, -torch.inf
        )
        context = scores.softmax(dim=-1) @ v
        return self.out(context.transpose(1, 2).reshape(batch, tokens, d_model))
"""
SCRIPT = """
import sys, torch
from mine import Maßstab
from attention_check import check_attention
from attention_check.__main__ import main
from attention_course.timing import Times
from shape_tracing import trace_shapes

print(check_attention(Maßstab, d_model=24, num_heads=4))
print(trace_shapes(Maßstab(24, 4), torch.randn(3, 5, 24)).text(lines=True))
print(Times({"loop": [3e-6] * 5, "split": [2e-6] * 5}, "this machine", 1e-5))
sys.exit(main(["mine.py:Maßstab", "--d-model=24", "--num-heads=4"]))
"""
UTF8 = {"PYTHONIOENCODING": "utf-8", "PYTHONUTF8": "0"}
PLAIN_C = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """A function that runs the script under settings and returns what it printed."""
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "mine.py").write_text(FILE, encoding="utf-8")
    (folder / "script.py").write_text(SCRIPT, encoding="utf-8")

    def run(**settings):
        env = {**os.environ, **settings}
        result = subprocess.run(
            [sys.executable, "script.py"], cwd=folder, env=env, capture_output=True
        )
        assert result.returncode == 1, result.stderr  # a finding: nothing stopped on the way
        assert result.stderr == b""
        return result.stdout

    return run


@pytest.mark.parametrize(
    ("encoding", "settings", "there", "in_words"),
    [
        ("cp1252", {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}, "×µ…ß", "√"),
        ("cp437", {"PYTHONIOENCODING": "cp437", "PYTHONUTF8": "0"}, "√µß", "×…"),
        ("ascii", {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}, "", "√×µ…"),
        ("ascii", PLAIN_C, "", "√×µ…"),
    ],
    ids=["cp1252", "cp437", "ascii", "LC_ALL=C"],
)
def test_signs_become_words(printed, encoding, settings, there, in_words):
    text = printed(**settings).decode(encoding)
    for sign in there:
        assert sign in text
    words = {"√": "sqrt 24 (d_model)", "×": "3 x (3, 5, 24)", "µ": "3 us", "…": "masked_fill( ..."}
    for sign in in_words:
        assert words[sign] in text
    assert "\\u6f22" in text  # what has no word is told by its code
    assert text.count("[scale] You divide by") == 2  # by print(report) and by the command


def test_where_all_signs_are_there_they_stay(printed):
    text = printed(**UTF8).decode()
    for told in ("√24 (d_model)", "3 × (3, 5, 24)", "3 µs", "Maßstab", "self.qkv(漢)", "…"):
        assert told in text


def test_no_terminal_at_all(monkeypatch):
    monkeypatch.setattr(sys, "stdout", None)  # as under pythonw
    assert printable("√24") == "√24"


def test_half_a_sign_in_a_files_name_is_told_by_its_code():
    assert printable("no file \udcff.py") == "no file \\udcff.py"
