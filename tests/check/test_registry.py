"""That every code is planted often enough, and has correct modules that look like it."""

import pytest
from bases import Text
from registry import CODES, CORRECT, FAULTS


@pytest.mark.parametrize("code", CODES)
def test_each_code_is_planted_in_two_styles(code):
    styles = {fault.style for fault in FAULTS if fault.code == code}
    assert len(styles) >= 2, styles


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_two_correct_look_alikes(code):
    modules = {str(correct) for correct in CORRECT if code in correct.looks_like}
    assert len(modules) >= 2, modules


def test_enough_is_planted():
    assert sum(isinstance(fault.module, Text) for fault in FAULTS) >= 55
    assert len(CORRECT) >= 30
