"""What goes wrong with a call as a whole: crash, lengths, NaN, chance, state, time."""

import time

import pytest
from bases import Plain
from faults.calls import SpareDropout
from registry import faults_of, look_alikes_of, notes
from torch import nn

from attention_check import check_attention


@faults_of("calls")
def test_faults_are_found(fault):
    fault.judge()


@look_alikes_of("calls")
def test_look_alikes_are_left_alone(correct):
    correct.judge()


@pytest.mark.parametrize("dropout", [0, 0.0, 0.1])
def test_a_spare_dropout_layer_is_a_note_where_the_kernel_drops(dropout):
    module = SpareDropout(24, 3, dropout)
    report = check_attention(module)
    assert report.ok, report
    assert notes(report) == ["dropout-unused"]
    assert "attn_dropout is never used here" in report.notes[0].message
    module.out_dropout, module.left_out = nn.Identity(), nn.Dropout(dropout)
    [finding] = check_attention(module).findings  # two spare layers, one kernel
    assert "The dropout layers attn_dropout and left_out never drop anything" in finding.message


def test_a_slow_module_is_cut_off(one_second):
    class Slow(Plain):
        def forward(self, x):
            time.sleep(0.15)
            return super().forward(x)

    report = check_attention(Slow)
    assert "stopped after 1 seconds" in str(report)
    assert report.ok


def test_one_endless_call_is_cut_off(one_second):
    class Endless(Plain):
        def forward(self, x):
            while True:
                pass

    report = check_attention(Endless)
    assert "not checked" in report.headline
    with pytest.raises(AssertionError, match="nothing was judged"):
        report.raise_if_wrong()
