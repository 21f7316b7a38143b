"""Layers, parameters and buffers."""

from registry import faults_of, look_alikes_of


@faults_of("layers")
def test_faults_are_found(fault):
    fault.judge()


@look_alikes_of("layers")
def test_look_alikes_are_left_alone(correct):
    correct.judge()
