"""Who sees whom: future-visible, mask-off-by-one, past-hidden, future-hidden."""

import math

import pytest
import torch
import torch.nn.functional as F
from bases import TwoWay, fused
from faults.visible import Asked, AskedInVain, NoDecoder
from registry import faults_of, look_alikes_of, notes
from torch import nn

from attention_check import check_attention


@faults_of("visible")
def test_faults_are_found(fault):
    fault.judge()


@look_alikes_of("visible")
def test_look_alikes_are_left_alone(correct):
    correct.judge()


def test_a_two_way_module_is_noted_and_no_more():
    assert notes(check_attention(TwoWay)) == ["two-way"]


@pytest.mark.parametrize(("module", "name"), [(Asked, "causal"), (NoDecoder, "is_decoder")])
def test_a_mask_that_must_be_asked_for(module, name):
    [note] = check_attention(module).notes
    assert f"Two-way, as {name} is False; where it is True, the future is hidden" in note.message
    [finding] = check_attention(module, causal=True).findings
    assert finding.code == "future-visible"
    assert f"only when it is asked for: {name} is False" in finding.message


def test_a_mask_that_is_asked_for_in_vain():
    [note] = check_attention(AskedInVain).notes
    assert "but where it is True, position 3 sees position 4 as well" in note.message
    [finding] = check_attention(AskedInVain, causal=True).findings
    assert "never reaches the softmax" in finding.message


def test_no_line_is_quoted_where_the_source_is_not_to_be_had():
    space = {"torch": torch, "nn": nn, "F": F, "math": math}
    exec(fused.but("att = att.masked_fill", "att.masked_fill").source, space)
    report = check_attention(space["Attention"])
    assert "the result of masked_fill is thrown away. " in report.findings[0].message
