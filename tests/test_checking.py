"""`check_attention` against planted faults, right variants, and modules that misbehave."""

import pytest
import torch
from correct import CORRECT
from planted import PLANTED, make

from attention_course import check_attention
from attention_course.checking import check

CODES = [code for code, _, _ in PLANTED]


@pytest.fixture(autouse=True)
def _loud(monkeypatch):
    """A test of the check that fails itself is an error here, not a silent `not judged`."""
    monkeypatch.setattr(check, "_safely", lambda test, subject: test(subject))


def names(cases):
    return [f"{code}-{base}-{n}" for n, (code, base, _) in enumerate(cases)]


def codes(report):
    return [finding.code for finding in report.findings]


@pytest.mark.parametrize(("code", "base", "changes"), PLANTED, ids=names(PLANTED))
def test_planted_fault_is_found(code, base, changes):
    report = check_attention(make(base, *changes))
    assert codes(report) == [code], report


@pytest.mark.parametrize("name", CORRECT)
def test_right_variants_are_left_alone(name):
    report = check_attention(CORRECT[name])
    assert report.ok, report


def test_each_code_is_planted_in_two_bases():
    bases = {code: {base for c, base, _ in PLANTED if c == code} for code in CODES}
    assert len(PLANTED) >= 55
    assert all(len(found) >= 2 for found in bases.values()), bases


def test_the_module_is_as_it_was():
    module = CORRECT["course split"](24, 4).train()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    module(torch.randn(2, 5, 24)).sum().backward()
    grads = [p.grad.clone() for p in module.parameters()]
    state = torch.get_rng_state()
    check_attention(module)
    assert torch.equal(state, torch.get_rng_state())
    assert module.training
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert all(torch.equal(a, p.grad) for a, p in zip(grads, module.parameters(), strict=True))
