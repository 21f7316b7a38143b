"""The command: a file and a name in it, and what it ends with."""

import subprocess
import sys

import pytest

from attention_check.__main__ import main

FILE = """
import torch
from torch import nn
from attention_course import MultiHeadAttention as Right

class Wrong(Right):
    def forward(self, x):
        return super().forward(x.flip(1)).flip(1)

def make(d_model, num_heads):
    return Wrong(d_model, num_heads)

class Config(nn.Module):
    def __init__(self, config):
        super().__init__()

module = Right(12, 3)
"""


@pytest.mark.parametrize(
    ("name", "status"),
    [("Right", 0), ("module", 0), ("Wrong", 1), ("make", 1), ("Config", 2), ("absent", 2)],
)
def test_the_command_ends_with_a_status(name, status, tmp_path, capsys):
    file = tmp_path / "learner.py"
    file.write_text(FILE, encoding="utf-8")
    sizes = [] if name == "module" else ["--d-model", "24", "--num-heads", "4"]
    assert main([f"{file}:{name}", *sizes]) == status
    printed = capsys.readouterr()
    assert ("def make(d_model, num_heads):" in printed.err) == (name == "Config")
    assert ("past-hidden" in printed.out) == (status == 1)


def test_the_command_runs_as_a_module(tmp_path):
    file = tmp_path / "learner.py"
    file.write_text(FILE, encoding="utf-8")
    command = [sys.executable, "-m", "attention_check", f"{file}:make"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stderr
    assert "past-hidden" in run.stdout
