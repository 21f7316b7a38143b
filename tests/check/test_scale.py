"""The scale of the scores, and rotary positions."""

import pytest
from registry import FAULTS, faults_of, judged, look_alikes_of


@faults_of("scale")
def test_faults_are_found(fault):
    fault.judge()


@look_alikes_of("scale")
def test_look_alikes_are_left_alone(correct):
    correct.judge()


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.code == "rotary"], ids=str)
def test_the_scores_of_wrong_rotary_positions_are_shown(fault):
    [finding] = judged(fault).findings
    if "values" in finding.message:
        return
    distances = [finding.evidence.diagonal(d) for d in range(-4, 5)]
    differ = any((d - d[0]).abs().max() > 0.01 for d in distances)
    assert differ == ("differ" in finding.message)
