"""Token by token with a cache."""

from registry import faults_of, look_alikes_of


@faults_of("caches")
def test_faults_are_found(fault):
    fault.judge()


@look_alikes_of("caches")
def test_look_alikes_are_left_alone(correct):
    correct.judge()
