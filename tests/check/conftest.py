"""What the tests of the check share."""

import faults  # noqa: F401 (they register themselves)
import pytest

from attention_check import check
from attention_check.rules import registry


@pytest.fixture(autouse=True)
def _loud(monkeypatch):
    """A rule that fails itself is an error here, not a silent `not judged`."""
    monkeypatch.setattr(registry, "_asked", registry.answers)


@pytest.fixture
def one_second(monkeypatch):
    monkeypatch.setattr(check, "SECONDS", 1)
