"""What a clean bill covers: lines that never ran, and arguments that were never given."""

import sys

import pytest
from bases import Plain, cached, kernel
from registry import CORRECT, factory

from attention_check import check_attention
from attention_check.__main__ import main


class Sixty(Plain):
    """What is in the branch runs for sentences longer than those that the check gives."""

    def forward(self, x):
        if x.shape[1] > 60:
            x = x * 2
            x = x + 1
        if x.shape[-1] < 3:
            width = x.shape[-1]
            print(width)
            raise ValueError("too narrow")
        return super().forward(x)


class Tempered(Plain):
    def forward(self, x, temperature=1.0, style="plain"):
        assert temperature, "what only raises does not count"
        if style == "double":
            return super().forward(2 * x)
        else:
            return super().forward(x)


def test_all_that_ran_is_whole():
    report = check_attention(kernel.make)
    assert report.covered.whole
    assert report.headline == "nothing wrong found"
    assert report.raise_if_wrong(strict=True) is report


def test_lines_that_never_ran_are_named():
    report = check_attention(Sixty)
    [lines] = report.covered.lines
    first = Sixty.forward.__code__.co_firstlineno + 2
    assert (lines.first, lines.last) == (first, first + 1)
    assert lines.file == __file__
    said = f"never run: lines {first} to {first + 1} (x.shape[1] > 60)"
    assert report.headline == f"nothing wrong found in what ran; {said}"
    assert report.ok
    assert report.raise_if_wrong() is report
    with pytest.raises(AssertionError, match="nothing wrong found in what ran"):
        report.raise_if_wrong(strict=True)


def test_arguments_that_were_never_given_are_named():
    report = check_attention(Tempered)
    assert report.covered.arguments == ("temperature", "style")
    assert "never given: temperature and style" in report.headline
    [lines] = report.covered.lines
    assert lines.condition == "style == 'double'"


def test_a_cache_is_given_and_its_lines_run():
    assert check_attention(cached.make).covered.whole


def test_what_was_not_judged_is_part_of_it():
    module = next(c for c in CORRECT if str(c) == "LearnedTemperature")
    covered = check_attention(factory(module)).covered
    assert not covered.whole
    assert covered.not_judged
    assert not covered.lines
    assert not covered.arguments


def test_the_trace_function_of_others_stays():
    def mine(*_):
        return None

    before = sys.gettrace()
    sys.settrace(mine)
    try:
        report = check_attention(Sixty)
        assert sys.gettrace() is mine
    finally:
        sys.settrace(before)
    assert report.covered.lines == ()  # it stands aside


def test_no_trace_function_is_left_behind():
    before = sys.gettrace()
    check_attention(Sixty)
    assert sys.gettrace() is before


@pytest.mark.parametrize(("name", "strict"), [("Attention", 0), ("Partly", 2)])
def test_the_command_can_be_strict(name, strict, tmp_path, capsys):
    file = tmp_path / "learner.py"
    file.write_text(
        f"import torch, math\nfrom torch import nn\nfrom torch.nn import functional as F\n"
        f"{kernel.source.strip()}\n"
        "class Partly(Attention):\n"
        "    def forward(self, x):\n"
        "        if len(x) > 99:\n"
        "            return x\n"
        "        return super().forward(x)\n",
        encoding="utf-8",
    )
    sizes = "--d-model", "24", "--num-heads", "4"
    assert main([f"{file}:{name}", *sizes]) == 0
    assert main([f"{file}:{name}", *sizes, "--strict"]) == strict
    assert ("(len(x) > 99)" in capsys.readouterr().out) == (name == "Partly")
