"""What a report says beyond its findings."""

import pytest
from bases import separate
from faults.weights import TokenByToken
from registry import together
from torch import nn

from attention_check import check_attention


def test_a_report_reads_and_draws_itself():
    wrong = together(separate, "dropout-unused", "future-visible", "scale")
    report = check_attention(wrong.make)
    assert not report.ok
    assert str(report).startswith("Attention: 3 things are wrong")
    drawn = report._repr_html_()
    assert drawn.count("<details open>") == 1
    assert "✗" in drawn
    assert check_attention(wrong.make)._repr_html_() == drawn
    with pytest.raises(AssertionError, match="scale"):
        report.raise_if_wrong()


def test_what_was_not_judged_stands_beside_ok():
    report = check_attention(TokenByToken)
    assert report.ok
    assert "scale not judged, because the softmax cannot be seen" in report.headline
    codes = "split-by-view and merge-by-view"
    assert f"{codes} not judged, because no softmax is in sight" in report.headline
    assert report.raise_if_wrong() is report


def test_tokens_that_mix_without_attention_are_said_to():
    report = check_attention(nn.LSTM(24, 24, batch_first=True))
    assert report.ok
    assert "may be no attention at all" in report.headline
