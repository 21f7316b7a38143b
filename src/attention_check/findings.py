"""What a rule may answer."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Finding:
    """One fault.

    message: what was seen and what to do. evidence: a small tensor, or None; shows: what stands
    in it; wrong: where it should be zero, if not in the places that the code says. code: the
    kind, such as "softmax-axis"; the registry enters that of the rule.
    """

    message: str
    evidence: torch.Tensor | None = None
    shows: str = ""
    wrong: torch.Tensor | None = None
    code: str = ""

    def __str__(self):
        return f"{self.code}: {self.message}"


@dataclass(frozen=True)
class Note(Finding):
    """Good to know, and no fault."""


@dataclass(frozen=True)
class Unjudged:
    """Why a rule cannot tell: the words after "because".

    of: an argument, where it is but one. without: the context that was not given, if it was that.
    """

    reason: str
    of: str = ""
    without: str = ""
