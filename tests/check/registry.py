"""Where planted faults, and the correct modules that look like them, register themselves.

    @fault("scale", "√24")             the one finding that the check must make, words it must say
    class DividedByTheWidth(Plain): ...

    @correct("scale", "rotary")        the codes that it looks like; the check must find nothing
    class LearnedTemperature(Plain): ...

Both also take a text (`Text`) or a module, and `correct` a factory f(d_model, num_heads). The tests
of a family judge the faults of its codes, and what looks most like one of its codes.
"""

from dataclasses import dataclass

import pytest
from bases import Text
from torch import nn

from attention_check import check_attention

FAMILIES = {
    "calls": "crash length width nan input-changed not-repeatable dropout-in-eval dropout-unused "
    "global-state batch-mixed",
    "layout": "split-by-view input-cut merge-by-view heads-attend-heads",
    "weights": "softmax-axis softmax-twice not-normalised",
    "roles": "attention-unused wrong-pair wrong-values one-for-all heads-alike no-effect",
    "visible": "future-visible mask-off-by-one past-hidden future-hidden",
    "mask_arguments": "mask-argument nan-gradient",
    "scale": "scale distance-bias rotary",
    "layers": "unused-layer layers-alike detached not-registered not-a-buffer",
    "relations": "beginning-changes modes-differ dropout-lost dropout-on-scores own-dtype "
    "key-length other-heads",
    "caches": "token-by-token",
}
FAMILIES = {family: tuple(listed.split()) for family, listed in FAMILIES.items()}
CODES = [code for listed in FAMILIES.values() for code in listed]
FAULTS, CORRECT = [], []
PLANTED = []  # those of FAULTS that are planted in a text


@dataclass(frozen=True)
class Fault:
    """A module with one planted fault: `code` must be found, and nothing else."""

    module: object
    code: str
    said: tuple
    causal: bool | None = None

    @property
    def style(self):
        """What it is written in: a text's name, or the first class that is no nn.Module."""
        if hasattr(self.module, "style"):
            return self.module.style
        kind = self.module if isinstance(self.module, type) else type(self.module)
        return kind.__mro__[kind.__mro__.index(nn.Module) - 1].__name__

    def judge(self):
        report = judged(self)
        assert codes(report) == [self.code], report
        assert all(words in report.findings[0].message for words in self.said), report

    def __str__(self):
        return f"{self.code} in {_name(self.module)}"


@dataclass(frozen=True)
class Correct:
    """A module with nothing wrong. note: must be among the notes; silent: there are none."""

    module: object
    looks_like: tuple
    note: str | None = None
    silent: bool = False
    causal: bool | None = None
    name: str = ""

    def judge(self):
        report = judged(self)
        assert report.ok, report
        assert self.note is None or self.note in notes(report), report
        assert not (self.silent and report.notes), report

    def __str__(self):
        return self.name or _name(self.module)


def fault(code, *said, causal=None):
    """Register what it decorates as a module in which the check must find `code`."""
    assert code in CODES, f"{code} is in no family"

    def register(module):
        FAULTS.append(Fault(module, code, said, causal))
        if isinstance(module, Text):
            PLANTED.append(FAULTS[-1])

    return _registrar(register)


def correct(*looks_like, **wanted):
    """Register what it decorates as a module that looks like `looks_like` and is correct."""
    assert set(looks_like) <= set(CODES), f"{looks_like} are not all in a family"
    return _registrar(lambda module: CORRECT.append(Correct(module, looks_like, **wanted)))


def _registrar(register):
    def registered(module):
        register(module)
        return module

    return registered


def faults_of(family):
    """Parametrize a test with `fault`: those of the codes of a family."""
    chosen = [fault for fault in FAULTS if fault.code in FAMILIES[family]]
    return pytest.mark.parametrize("fault", chosen, ids=str)


def look_alikes_of(family=None):
    """Parametrize a test with `correct`: what looks most like a code of a family, or like none."""
    wanted = FAMILIES.get(family, ("",))
    chosen = [correct for correct in CORRECT if (*correct.looks_like, "")[0] in wanted]
    return pytest.mark.parametrize("correct", chosen, ids=str)


def together(base, *codes):
    """Return a text with the first fault of each code that is planted in its style."""
    text = base
    for code in codes:
        planted = next(f for f in FAULTS if (f.code, f.style) == (code, base.style))
        for change in planted.module.changes:
            text = text.but(*change)
    return text


def factory(case):
    return case.module.make if isinstance(case.module, Text) else case.module


def judged(case):
    return check_attention(factory(case), causal=case.causal)


def codes(report):
    return [finding.code for finding in report.findings]


def notes(report):
    return [note.code for note in report.notes]


def _name(module):
    return getattr(module, "style", None) or getattr(module, "__name__", type(module).__name__)
