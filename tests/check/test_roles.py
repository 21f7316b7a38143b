"""Which input and which layer plays which part."""

from registry import faults_of, look_alikes_of


@faults_of("roles")
def test_faults_are_found(fault):
    fault.judge()


@look_alikes_of("roles")
def test_look_alikes_are_left_alone(correct):
    correct.judge()
