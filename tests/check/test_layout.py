"""How heads are cut from the columns and put back."""

from registry import faults_of, look_alikes_of


@faults_of("layout")
def test_faults_are_found(fault):
    fault.judge()


@look_alikes_of("layout")
def test_look_alikes_are_left_alone(correct):
    correct.judge()
