"""What `make bench` adds to the course's comparisons. No test looks at the clock."""

from pathlib import Path

import faults  # noqa: F401 (they register themselves)
import pytest
import torch
from registry import PLANTED
from torch import nn

from attention_course import compare_times

TOOLS = Path(__file__).parents[1] / "tools"
STANDS_IN = """
def check_attention(factory):
    assert callable(factory)
    with open({log!r}, "a", encoding="utf-8") as log:
        log.write({name!r})
"""


@pytest.fixture(autouse=True)
def _tools(monkeypatch):
    monkeypatch.syspath_prepend(str(TOOLS))


def test_backward_gives_the_gradient_of_the_input():
    from bench import with_backward

    layer, x = nn.Linear(3, 2, bias=False), torch.randn(4, 3)
    found = with_backward(layer, layer)(x)
    torch.testing.assert_close(found, layer(x) @ layer.weight)  # of half the output's square
    assert x.grad is None
    assert layer.weight.grad is None


def test_equal_results_with_different_gradients_are_not_compared():
    from bench import with_backward

    layer, x = nn.Linear(3, 3), torch.randn(4, 3)
    ways = {"layer": layer, "detached": lambda x: layer(x.detach()) + 0 * x}
    compare_times(ways, x, seconds=0)
    backward = {name: with_backward(way, layer) for name, way in ways.items()}
    with pytest.raises(ValueError, match="results of 'detached' and 'layer' differ"):
        compare_times(backward, x, seconds=0)


def test_the_check_and_the_check_before_take_turns(tmp_path):
    from bench_check import planted_seconds

    log = tmp_path / "log"
    for name in "nb":
        folder = tmp_path / name / "attention_check"
        folder.mkdir(parents=True)
        stands_in = STANDS_IN.format(log=str(log), name=name)
        (folder / "__init__.py").write_text(stands_in, encoding="utf-8")
    taken = planted_seconds({"now": tmp_path / "n", "before": tmp_path / "b"}, rounds=1)
    assert [len(seconds) for seconds in taken.values()] == [len(PLANTED)] * 2
    assert log.read_text(encoding="utf-8") == "nb" + ("nbbn" * len(PLANTED))[: 2 * len(PLANTED)]


def test_a_first_check_is_measured_in_a_fresh_process():
    from bench_check import first_check_seconds

    for (seconds,) in first_check_seconds(rounds=1):
        assert seconds > 0
