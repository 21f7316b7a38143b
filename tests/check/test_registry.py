"""That every code is planted often enough, and has correct modules that look like it."""

import inspect

import pytest
from bases import Text
from registry import CODES, CORRECT, FAULTS

from attention_check.rules import RULES

NOTES_ALONE = {"cache", "one-projection", "unused-argument", "hidden-row"}


@pytest.mark.parametrize("code", CODES)
def test_each_code_is_planted_in_two_styles(code):
    styles = {fault.style for fault in FAULTS if fault.code == code}
    assert len(styles) >= 2, styles


@pytest.mark.parametrize("code", CODES)
def test_each_code_has_two_correct_look_alikes(code):
    modules = {str(correct) for correct in CORRECT if code in correct.looks_like}
    assert len(modules) >= 2, modules


def test_each_rule_is_planted_or_gives_notes_alone():
    codes = [rule.code for rule in RULES]
    assert len(set(codes)) == len(codes)
    assert set(codes) == {*CODES, *NOTES_ALONE}
    assert not NOTES_ALONE & set(CODES)


@pytest.mark.parametrize("code", sorted(NOTES_ALONE))
def test_a_rule_that_gives_notes_alone_makes_no_finding(code):
    asked = inspect.getsource(next(rule.ask for rule in RULES if rule.code == code))
    assert "Note(" in asked or " note" in asked
    assert "Finding(" not in asked


def test_enough_is_planted():
    assert sum(isinstance(fault.module, Text) for fault in FAULTS) >= 55
    assert len(CORRECT) >= 30
