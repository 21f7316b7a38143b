"""The faults that the notebooks' exercise deals, as they stand in the course."""

from bases import Text
from registry import correct, fault

from attention_course.exercises.faults import IN_BOTH, IN_MANY, MANY_HEADS

many_heads = Text("many heads", MANY_HEADS)
correct()(many_heads)
for _code, _ways in (IN_BOTH | IN_MANY).items():
    for _old, _new in _ways:
        fault(_code)(many_heads.but(_old, _new))
