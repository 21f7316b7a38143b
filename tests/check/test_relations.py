"""Two ways to ask the same question."""

from registry import faults_of, look_alikes_of


@faults_of("relations")
def test_faults_are_found(fault):
    fault.judge()


@look_alikes_of("relations")
def test_look_alikes_are_left_alone(correct):
    correct.judge()
