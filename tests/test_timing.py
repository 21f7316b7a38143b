"""Comparisons that refuse to compare unequal things. No test looks at the clock."""

import os
import subprocess
import sys
from functools import partial

import pytest
import torch
from torch import nn

from attention_course import (
    MultiHeadAttention,
    attention,
    causal_mask,
    compare_on_gpu,
    compare_times,
    timing,
)
from attention_course.timing import (
    TimeMap,
    Times,
    duration,
    loop_and_split,
    map_times,
    peak_memory,
    price_per_head,
    take_turns,
)

BATCH, TOKENS, HEADS, HEAD_DIM = 2, 5, 3, 4
D_MODEL = HEADS * HEAD_DIM


@pytest.fixture
def x():
    return torch.randn(BATCH, TOKENS, D_MODEL, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def ways():
    torch.manual_seed(2)
    return loop_and_split(D_MODEL, HEADS)


def compare(functions, *inputs, **keywords):
    return compare_times(functions, *inputs, seconds=0, **keywords)


def test_loop_split_and_torch_can_be_compared(ways, x):
    theirs, hidden = ways["split fused"].to_torch(), causal_mask(TOKENS)
    ways["torch"] = lambda x: theirs(x, x, x, attn_mask=hidden)
    times = compare(ways, x)
    assert list(times.seconds) == [*loop_and_split(D_MODEL, HEADS), "torch"]
    assert {len(taken) for taken in times.seconds.values()} == {timing.FEWEST_ROUNDS}
    assert min(min(taken) for taken in times.seconds.values()) > 0


def test_no_gradients_are_recorded(x):
    layer, seen = nn.Linear(D_MODEL, 1), set()

    def watched(x):
        seen.add(torch.is_grad_enabled())
        return layer(x)

    compare({"layer": layer, "watched": watched}, x)
    assert seen == {False}
    assert torch.is_grad_enabled()


def test_functions_take_turns_and_each_goes_first(monkeypatch, x):
    order = []

    class FakeTimer:
        def __init__(self, statement, globals, num_threads):
            assert num_threads == torch.get_num_threads()
            self.function = globals["function"]

        def timeit(self, calls):
            order.append(self.function(x).item())
            self.median = 1.0
            return self

    monkeypatch.setattr(timing, "Timer", FakeTimer)
    functions = {name: lambda x, n=n: torch.tensor(n) for n, name in enumerate("abc")}
    take_turns(functions, [x], seconds=0)
    rounds = order[-3 * timing.FEWEST_ROUNDS :]
    assert rounds[:9] == [0, 1, 2, 1, 2, 0, 2, 0, 1]


# --- a GPU, of which these tests have a stand-in only ---------------------------------------


@pytest.fixture
def moved(monkeypatch):
    """The moves to a device, in order; nothing is moved, as there is only one device to be on."""
    moves = []

    def to(thing, device):
        moves.append((type(thing), torch.device(device).type))
        return thing

    monkeypatch.setattr(nn.Module, "to", to)
    monkeypatch.setattr(torch.Tensor, "to", to)
    return moves


def test_modules_and_inputs_go_to_the_device_and_modules_come_home(ways, x, moved):
    compare(ways, x, device="meta")  # a device that is always there, and is not the CPU
    there, back = (nn.ModuleList, "meta"), (nn.ModuleList, "cpu")
    assert moved == [there, there, there, (torch.Tensor, "meta"), back, back, back]


def test_modules_come_home_after_an_error(x, moved):
    ways = {"fits": nn.Linear(D_MODEL, 7, bias=False), "wide": nn.Linear(7, D_MODEL, bias=False)}
    with pytest.raises(ValueError, match="'wide' raised"):
        compare(ways, x, device="meta")
    assert moved[-2:] == [(nn.ModuleList, "cpu")] * 2


def test_without_a_device_nothing_moves(ways, x, moved):
    compare(ways, x)
    assert moved == []


def test_a_device_that_is_not_there(ways, x):
    with pytest.raises(ValueError, match="no device 'gpu' here; 'cpu' is always there"):
        compare(ways, x, device="gpu")


def test_the_clock_waits_for_the_gpu_before_and_after_each_block(monkeypatch, x):
    log = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda *_: log.append("w"))
    functions = {name: lambda x, name=name: log.append(name) for name in "ab"}
    monkeypatch.setattr(timing, "BLOCK_SECONDS", 0)  # one call in a block
    take_turns(functions, [x], seconds=0)
    # each block: two calls to warm up, then one that counts; the first tells how long one takes
    order = "ab" + ("abba" * timing.FEWEST_ROUNDS)[: 2 * timing.FEWEST_ROUNDS]
    assert "".join(log) == "".join(f"w{name}{name}ww{name}w" for name in order)


def test_without_a_gpu_one_line_says_so(monkeypatch, ways, x, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    compare_on_gpu(ways, x, seconds=1)
    assert capsys.readouterr().out == "No CUDA GPU here, so there are the times of the CPU alone.\n"


def test_with_a_gpu_its_table_is_shown(monkeypatch, ways, x, capsys):
    def fake(functions, *inputs, **options):
        assert functions is ways
        assert inputs == (x,)
        assert options == {"seconds": 1, "tolerance": 1e-4, "device": "cuda"}
        return TIMES

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(timing, "compare_times", fake)
    compare_on_gpu(ways, x, seconds=1)
    TIMES.table()
    shown = capsys.readouterr().out
    assert shown[: len(shown) // 2] == shown[len(shown) // 2 :]


# --- what may not be compared ---------------------------------------------------------------


@pytest.mark.parametrize("functions", [{}, {"one": torch.relu}, [torch.relu, torch.relu]])
def test_one_function_is_no_comparison(functions, x):
    with pytest.raises(ValueError, match="two functions or more"):
        compare(functions, x)


def test_a_name_without_a_function(x):
    with pytest.raises(ValueError, match="'loop' must be a function, but is a Tensor"):
        compare({"split": torch.relu, "loop": x}, x)


def test_different_results(x):
    with pytest.raises(ValueError, match="results of 'leaky' and 'relu' differ by up to"):
        compare({"relu": torch.relu, "leaky": nn.functional.leaky_relu}, x)


def test_a_difference_is_judged_by_the_tolerance(x):
    nearly = {"one": torch.relu, "other": lambda x: torch.relu(x) * 1.001}
    with pytest.raises(ValueError, match="differ"):
        compare(nearly, x)
    assert compare(nearly, x, tolerance=0.01).tolerance == 0.01


def test_not_a_number_equals_nothing(x):
    with pytest.raises(ValueError, match="differ by up to nan"):
        compare({"relu": torch.relu, "none": lambda x: torch.relu(x) / 0 * 0}, x)


def test_different_shapes(x):
    with pytest.raises(ValueError, match=r"different shapes, \(2, 5\) and \(2, 5, 12\)"):
        compare({"relu": torch.relu, "sum": lambda x: torch.relu(x).sum(-1)}, x)


def test_a_function_that_raises(x):
    with pytest.raises(ValueError, match="'wide' raised ValueError: The input must be"):
        compare({"relu": torch.relu, "wide": MultiHeadAttention(10, 2)}, x)


def test_a_function_that_returns_no_tensor(x):
    with pytest.raises(ValueError, match="'shape' must return a tensor"):
        compare({"relu": torch.relu, "shape": lambda x: x.dim()}, x)


def test_a_function_that_changes_its_input(x):
    with pytest.raises(ValueError, match="'in place' changed its input"):
        compare({"in place": torch.relu_, "relu": torch.relu}, x)


def test_dropout_in_training_mode(x):
    split = MultiHeadAttention(D_MODEL, HEADS, dropout=0.5)
    with pytest.raises(ValueError, match=r"training mode draws its dropout anew: \.eval\(\)"):
        compare({"one": split, "two": split}, x)
    compare({"one": split.eval(), "two": split}, x)


def _call(module, x):
    return module(x, x, x, attn_mask=causal_mask(TOKENS))


def lambda_of(module):
    return lambda x: module(x, x, x, attn_mask=causal_mask(TOKENS))


@pytest.mark.parametrize(
    "call",
    [lambda_of, lambda m: partial(lambda_of(m)), lambda m: m.call, lambda m: partial(_call, m)],
)
def test_zero_biases_are_found_though_the_results_are_equal(call, x):
    split = MultiHeadAttention(D_MODEL, HEADS)
    biased = nn.MultiheadAttention(D_MODEL, HEADS, batch_first=True)
    state = split.to_torch().state_dict()
    biased.load_state_dict(state, strict=False)
    type(biased).call = lambda self, x: lambda_of(self)(x)
    try:
        with pytest.raises(ValueError, match="ours 576, biased 624"):
            compare({"ours": split, "biased": call(biased)}, x)
    finally:
        del type(biased).call


def test_unknown_parameters_are_not_counted(ways, x):
    by_hand = partial(_attend, ways["split fused"].state_dict())
    compare({"loop": ways["loop"], "by hand": by_hand}, x)


def _attend(weights, x):
    names = ("W_query", "W_key", "W_value")
    heads = [
        (x @ weights[f"{name}.weight"].mT).view(*x.shape[:2], HEADS, -1).transpose(1, 2)
        for name in names
    ]
    context, _ = attention(*heads, causal_mask(TOKENS))
    return context.transpose(1, 2).flatten(-2) @ weights["W_out.weight"].mT


# --- the numbers ----------------------------------------------------------------------------

TIMES = Times(
    {"loop": [2.0, 9.0, 4.0, 6.0, 8.0], "split": [1.0, 3.0, 4.0, 2.0, 2.0]}, "a machine", 1e-5
)


def test_ratio_is_taken_pair_by_pair():
    assert TIMES.ratios("loop", "split") == [2, 3, 1, 3, 4]
    assert TIMES.ratio("loop", "split") == 3  # the ratio of the medians also is 3
    assert TIMES.ratio("split", "loop") == pytest.approx(1 / 3)
    late = Times({"a": [1.0, 8.0, 9.0], "b": [4.0, 2.0, 6.0]}, "", 0)
    assert late.ratio("a", "b") == 1.5  # the ratio of the medians would be 2


def test_median_and_quartiles():
    assert TIMES.median("loop") == 6
    assert TIMES.quartiles("loop") == [4, 6, 8]
    assert TIMES.quartiles("split") == [2, 2, 3]
    with pytest.raises(ValueError, match=r"'fused' was not timed\. Timed: loop, split"):
        TIMES.median("fused")


def test_table_names_everything(capsys):
    TIMES.table()
    printed = capsys.readouterr().out
    names = " ".join(printed.splitlines()[0].split())
    assert names == "median quartiles ratio to loop ratio quartiles"
    line = " ".join(printed.splitlines()[3].split())
    assert line == "split 2 s 2 s to 3 s 0.333 0.333 to 0.5"
    assert "5 rounds" in printed
    assert "a machine" in printed


def test_times_draw_themselves():
    data, metadata = TIMES._repr_mimebundle_()
    assert set(data) == {"image/png", "text/plain"}
    assert "Medians: loop 6 s, split 2 s." in metadata["image/png"]["alt"]


def test_machine_names_threads_and_versions(x):
    line = timing.machine([x])
    assert f"{torch.get_num_threads()} thread(s); torch {torch.__version__}; Python 3." in line


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.234, "1.23 s"), (0.05, "50 ms"), (5.55e-5, "55.5 µs"), (2e-9, "2 ns"), (0.0, "0 ns")],
)
def test_duration(seconds, text):
    assert duration(seconds) == text


def test_price_per_head_of_a_line_is_exact():
    heads = [2, 20, 200, 4000]
    line = price_per_head(heads, [0.001 + 55e-6 * count for count in heads])
    assert line.start == pytest.approx(0.001)
    assert line.price == pytest.approx(55e-6)
    assert line(400) == pytest.approx(0.023)


def test_each_point_counts_by_its_relative_error():
    heads = [2, 20, 200, 4000]
    seconds = [0.0002, 0.002, 0.02, 0.8]  # the last is twice as slow as the line
    assert price_per_head(heads, seconds)(20) == pytest.approx(0.002, rel=0.3)


@pytest.mark.parametrize(
    ("heads", "seconds", "message"),
    [
        ([2], [1.0], "two different numbers of heads"),
        ([2, 2], [1.0, 1.0], "two different numbers of heads"),
        ([2, 3], [1.0], "there are 1 times"),
        ([2, 3], [1.0, 0.0], "must be above 0"),
    ],
)
def test_no_line_without_two_points(heads, seconds, message):
    with pytest.raises(ValueError, match=message):
        price_per_head(heads, seconds)


def test_map_has_a_cell_for_each_size(monkeypatch):
    sizes = iter(range(100))

    def fake(functions, x, seconds):
        split = functions["split fused"]
        assert split.d_model == D_MODEL
        assert x.shape[-1] == D_MODEL
        loop = float(split.num_heads * x.shape[1])
        next(sizes)
        return Times(
            {"loop": [loop], "split written out": [20.0], "split fused": [2.0]}, "machine", 0
        )

    monkeypatch.setattr(timing, "compare_times", fake)
    found = map_times([1, 2, 3], [(4, 7), (2, 16)], D_MODEL)
    assert next(sizes) == 6
    assert found.written_out.tolist() == pytest.approx(
        torch.tensor([[0.35, 0.8], [0.7, 1.6], [1.05, 2.4]])
    )
    assert found.fused[2, 1] == 24
    assert (found.heads, found.sizes) == ([1, 2, 3], [(4, 7), (2, 16)])
    assert "written out 3, loop / split fused 0" in found.picture().description


def test_map_draws_itself_and_counts_where_the_loop_won():
    ratios = torch.tensor([[0.5, 1.5, 2.0], [1.1, 0.9, 3.0]])
    found = TimeMap([2, 4], [(1, 3), (1, 5), (1, 6)], 8, ratios, ratios + 1, "machine")
    drawn = found.picture()
    told = "below 1 and framed: loop / split written out 2, loop / split fused 0"
    assert told in drawn.description
    left, _ = drawn.figure.axes
    assert [label.get_text() for label in left.get_xticklabels()] == ["1×3", "1×5", "1×6"]


def test_times_and_memory_of_a_real_size():
    found = map_times([1, 2], [(1, 4)], 6, seconds=0)
    assert (found.written_out > 0).all()
    assert (found.fused > 0).all()


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell the peak")
def test_written_out_keeps_the_weights_and_fused_does_not():
    sizes = (1, 1024, 32, 8)
    weights = 8 * 1024 * 1024 * 4  # bytes of (batch, heads, tokens, tokens) in float32
    assert peak_memory(*sizes, need_weights=True) > weights
    assert peak_memory(*sizes, need_weights=False) < weights / 2


def test_memory_of_an_impossible_size():
    with pytest.raises(ValueError, match="cannot be shared equally"):
        peak_memory(1, 4, 6, 4, need_weights=True)


def test_the_fresh_process_looks_where_this_one_found_the_package(monkeypatch, tmp_path):
    """In a notebook that brings the package along, nobody else knows the folder."""
    (tmp_path / "attention_course").mkdir()
    file = tmp_path / "attention_course" / "__init__.py"
    file.write_text("raise SystemExit('found here')", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ValueError, match="failed: found here"):
        peak_memory(1, 16, 6, 2, need_weights=True)


@pytest.mark.parametrize(("module", "warns"), [("torch.utils.benchmark", 1), (timing.__name__, 0)])
def test_nothing_is_said_of_a_device_that_is_not_there(tmp_path, module, warns):
    code = f"""
import torch
torch.version.cuda = "13.0"
torch.cuda._is_compiled, torch.cuda.is_available = lambda: True, lambda: False
import {module}
"""
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUDA_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stderr.count("No CUDA runtime is found") == warns
    assert bool(loaded.stderr) == bool(warns)
