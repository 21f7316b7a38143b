"""From scores to weights: softmax-axis, softmax-twice, not-normalised."""

import pytest
from faults.weights import Logarithms, SharesOfTheSum, UnitLength
from registry import faults_of, look_alikes_of

from attention_check import check_attention


@faults_of("weights")
def test_faults_are_found(fault):
    fault.judge()


@look_alikes_of("weights")
def test_look_alikes_are_left_alone(correct):
    correct.judge()


@pytest.mark.parametrize("module", [Logarithms, SharesOfTheSum, UnitLength])
def test_the_most_negative_weight_is_said(module):
    [finding] = check_attention(module).findings
    assert f"negative, down to {finding.evidence.min():.2f}:" in finding.message
