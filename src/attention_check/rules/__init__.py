"""The rules of the check: one file a family, in the order of causes, one function a code."""

# isort: off
from . import calls, modes, layout, weights, roles, effect, visible, masks  # noqa: F401
from . import scale, layers, relations, caches  # noqa: F401
from .registry import RULES, Verdict, judge, judge_way

__all__ = ["RULES", "Verdict", "judge", "judge_way"]
