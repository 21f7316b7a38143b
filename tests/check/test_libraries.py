"""The bases themselves, the course, torch and transformers."""

from registry import look_alikes_of


@look_alikes_of()
def test_what_others_wrote_is_left_alone(correct):
    correct.judge()
