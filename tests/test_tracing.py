"""Tracing: every operation, its shapes, and nothing changed by watching."""

import contextlib
import gc
import math
import re
import subprocess
import sys
import threading
import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.overrides import _get_current_function_mode_stack

from attention_course import CausalHead, LoopedMultiHeadAttention, MultiHeadAttention
from shape_tracing import Capture, trace_shapes
from shape_tracing.stages import stages
from shape_tracing.trace import unfolded

BATCH, TOKENS, NUM_HEADS, HEAD_DIM = 2, 5, 3, 4
D_MODEL = NUM_HEADS * HEAD_DIM
NAMES = {
    "batch": BATCH,
    "tokens": TOKENS,
    "num_heads": NUM_HEADS,
    "head_dim": HEAD_DIM,
    "d_model": D_MODEL,
}


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def x():
    return torch.randn(BATCH, TOKENS, D_MODEL)


def told(rows):
    """Write rows down: "linear (2,5,12) (12,12) -> (2,5,12) new @W_query"."""
    return [
        " ".join(
            [
                row.operation,
                *map(sizes, row.inputs),
                "->",
                *map(sizes, row.outputs),
                row.result,
                *([f"@{row.module}"] if row.module else []),
            ]
        )
        for row in rows
    ]


def sizes(shape):
    return "(" + ",".join(map(str, shape.sizes)) + ")"


def expect(trace, expected):
    assert trace.error is None
    assert told(trace.rows) == [line.strip() for line in expected.strip().splitlines()]


# --- exact traces ---------------------------------------------------------------------------

HEAD = """
ones -> (5,5) new
triu (5,5) -> (5,5) new
linear (2,5,12) (4,12) -> (2,5,4) new @W_query
linear (2,5,12) (4,12) -> (2,5,4) new @W_key
linear (2,5,12) (4,12) -> (2,5,4) new @W_value
div (2,5,4) -> (2,5,4) new
mT (2,5,4) -> (2,4,5) view
matmul (2,5,4) (2,4,5) -> (2,5,5) new
masked_fill_ (2,5,5) (5,5) -> (2,5,5) in place
softmax (2,5,5) -> (2,5,5) new
all (5,5) -> (5,1) new
any (5,1) -> () new
dropout (2,5,5) -> (2,5,5) same object
matmul (2,5,5) (2,5,4) -> (2,5,4) new
"""

SPLIT = """
linear (2,5,12) (12,12) -> (2,5,12) new @W_query
view (2,5,12) -> (2,5,3,4) view
transpose (2,5,3,4) -> (2,3,5,4) view
linear (2,5,12) (12,12) -> (2,5,12) new @W_key
view (2,5,12) -> (2,5,3,4) view
transpose (2,5,3,4) -> (2,3,5,4) view
linear (2,5,12) (12,12) -> (2,5,12) new @W_value
view (2,5,12) -> (2,5,3,4) view
transpose (2,5,3,4) -> (2,3,5,4) view
"""


def test_causal_head(x):
    expect(trace_shapes(CausalHead(D_MODEL, HEAD_DIM), x), HEAD)


def test_looped_heads(x):
    def head(i):
        lines = HEAD.strip().splitlines()
        return [
            line.replace("@", f"@heads.{i}.") if "@" in line else f"{line} @heads.{i}"
            for line in lines
        ]

    trace = trace_shapes(LoopedMultiHeadAttention(D_MODEL, 2, head_dim=HEAD_DIM), x)
    last = ["cat (2,5,4) (2,5,4) -> (2,5,8) new", "linear (2,5,8) (12,8) -> (2,5,12) new @W_out"]
    expect(trace, "\n".join(head(0) + head(1) + last))


def test_split_heads(x):
    trace = trace_shapes(MultiHeadAttention(D_MODEL, NUM_HEADS), x)
    expect(
        trace,
        SPLIT
        + """scaled_dot_product_attention (2,3,5,4) (2,3,5,4) (2,3,5,4) -> (2,3,5,4) new
        transpose (2,3,5,4) -> (2,5,3,4) view
        flatten (2,5,3,4) -> (2,5,12) view
        linear (2,5,12) (12,12) -> (2,5,12) new @W_out""",
    )


def test_split_heads_with_weights(x):
    trace = trace_shapes(MultiHeadAttention(D_MODEL, NUM_HEADS), x, need_weights=True)
    expect(
        trace,
        SPLIT
        + """ones -> (5,5) new
        triu (5,5) -> (5,5) new
        div (2,3,5,4) -> (2,3,5,4) new
        mT (2,3,5,4) -> (2,3,4,5) view
        matmul (2,3,5,4) (2,3,4,5) -> (2,3,5,5) new
        masked_fill_ (2,3,5,5) (5,5) -> (2,3,5,5) in place
        softmax (2,3,5,5) -> (2,3,5,5) new
        all (5,5) -> (5,1) new
        any (5,1) -> () new
        dropout (2,3,5,5) -> (2,3,5,5) same object
        matmul (2,3,5,5) (2,3,5,4) -> (2,3,5,4) new
        transpose (2,3,5,4) -> (2,5,3,4) view
        flatten (2,5,3,4) -> (2,5,12) new
        linear (2,5,12) (12,12) -> (2,5,12) new @W_out""",
    )
    assert isinstance(trace.output, tuple)
    assert trace.output[1].shape == (BATCH, NUM_HEADS, TOKENS, TOKENS)


PACKED = """
linear (5,2,12) (36,12) (36) -> (5,2,36) new
unflatten (5,2,36) -> (5,2,3,12) view
unsqueeze (5,2,3,12) -> (1,5,2,3,12) view
transpose (1,5,2,3,12) -> (3,5,2,1,12) view
squeeze (3,5,2,1,12) -> (3,5,2,12) view
contiguous (3,5,2,12) -> (3,5,2,12) new
index (3,5,2,12) -> (5,2,12) view
index (3,5,2,12) -> (5,2,12) view
index (3,5,2,12) -> (5,2,12) view
view (5,2,12) -> (5,6,4) view
transpose (5,6,4) -> (6,5,4) view
view (5,2,12) -> (5,6,4) view
transpose (5,6,4) -> (6,5,4) view
view (5,2,12) -> (5,6,4) view
transpose (5,6,4) -> (6,5,4) view
""".strip().splitlines()

WITH_WEIGHTS = """
mul (6,5,4) -> (6,5,4) new
transpose (6,5,4) -> (6,4,5) view
bmm (6,5,4) (6,4,5) -> (6,5,5) new
softmax (6,5,5) -> (6,5,5) new
bmm (6,5,5) (6,5,4) -> (6,5,4) new
transpose (6,5,4) -> (5,6,4) view
reshape (5,6,4) -> (10,12) new
linear (10,12) (12,12) (12) -> (10,12) new
view (10,12) -> (5,2,12) view
view (6,5,5) -> (2,3,5,5) view
mean (2,3,5,5) -> (2,5,5) new
""".strip().splitlines()

WITHOUT_WEIGHTS = """
view (6,5,4) -> (2,3,5,4) view
view (6,5,4) -> (2,3,5,4) view
view (6,5,4) -> (2,3,5,4) view
scaled_dot_product_attention (2,3,5,4) (2,3,5,4) (2,3,5,4) -> (2,3,5,4) new
permute (2,3,5,4) -> (5,2,3,4) view
reshape (5,2,3,4) -> (10,12) view
linear (10,12) (12,12) (12) -> (10,12) new
view (10,12) -> (5,2,12) view
""".strip().splitlines()


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_torch_multihead_attention(batch_first, weights, x):
    module = nn.MultiheadAttention(D_MODEL, NUM_HEADS, batch_first=batch_first)
    x = x if batch_first else x.transpose(0, 1).contiguous()
    trace = trace_shapes(module, x, x, x, need_weights=weights)
    also = " (2,5,5)" if weights else ""
    opaque = (
        "multi_head_attention_forward (5,2,12) (5,2,12) (5,2,12) (36,12) (36) (12,12) (12) "
        f"-> (5,2,12){also} new"
    )
    turned = ["transpose (2,5,12) -> (5,2,12) view"], ["transpose (5,2,12) -> (2,5,12) view"]
    before, after = turned if batch_first else ([], [])
    expect(trace, "\n".join([*before, opaque, *after]))
    inner = trace.rows[len(before)].inner
    assert told(inner) == PACKED + (WITH_WEIGHTS if weights else WITHOUT_WEIGHTS)
    assert inner[0].line == "proj = linear(q, w, b)"
    if not weights:
        (fused,) = [row for row in inner if row.operation == "scaled_dot_product_attention"]
        assert "no (tokens, tokens) matrix" in fused.note


@pytest.mark.parametrize("training", [True, False])
def test_torch_encoder_layer(training, x):
    layer = nn.TransformerEncoderLayer(D_MODEL, NUM_HEADS, 16, batch_first=True).train(training)
    dropped = "new" if training else "same object"
    expect(
        trace_shapes(layer, x),
        f"""transpose (2,5,12) -> (5,2,12) view @self_attn
        multi_head_attention_forward (5,2,12) (5,2,12) (5,2,12) (36,12) (36) (12,12) (12) -> \
(5,2,12) new @self_attn
        transpose (5,2,12) -> (2,5,12) view @self_attn
        dropout (2,5,12) -> (2,5,12) {dropped} @dropout1
        add (2,5,12) (2,5,12) -> (2,5,12) new
        layer_norm (2,5,12) (12) (12) -> (2,5,12) new @norm1
        linear (2,5,12) (16,12) (16) -> (2,5,16) new @linear1
        relu (2,5,16) -> (2,5,16) new
        dropout (2,5,16) -> (2,5,16) {dropped} @dropout
        linear (2,5,16) (12,16) (12) -> (2,5,12) new @linear2
        dropout (2,5,12) -> (2,5,12) {dropped} @dropout2
        add (2,5,12) (2,5,12) -> (2,5,12) new
        layer_norm (2,5,12) (12) (12) -> (2,5,12) new @norm2""",
    )


class FusedQKV(nn.Module):
    """One projection for queries, keys and values, as GPT-2 and timm have it."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D_MODEL, 3 * D_MODEL)
        self.out = nn.Linear(D_MODEL, D_MODEL)

    def forward(self, x):
        batch, tokens, width = x.shape
        parted = self.qkv(x).reshape(batch, tokens, 3, NUM_HEADS, HEAD_DIM)
        queries, keys, values = parted.permute(2, 0, 3, 1, 4)
        scores = 1 / math.sqrt(HEAD_DIM) * queries @ keys.transpose(-2, -1)
        context = scores.softmax(dim=-1) @ values
        return self.out(context.transpose(1, 2).reshape(batch, tokens, width))


def test_fused_qkv(x):
    expect(
        trace_shapes(FusedQKV(), x),
        """linear (2,5,12) (36,12) (36) -> (2,5,36) new @qkv
        reshape (2,5,36) -> (2,5,3,3,4) view
        permute (2,5,3,3,4) -> (3,2,3,5,4) view
        unbind (3,2,3,5,4) -> (2,3,5,4) (2,3,5,4) (2,3,5,4) view
        mul (2,3,5,4) -> (2,3,5,4) new
        transpose (2,3,5,4) -> (2,3,4,5) view
        matmul (2,3,5,4) (2,3,4,5) -> (2,3,5,5) new
        softmax (2,3,5,5) -> (2,3,5,5) new
        matmul (2,3,5,5) (2,3,5,4) -> (2,3,5,4) new
        transpose (2,3,5,4) -> (2,5,3,4) view
        reshape (2,5,3,4) -> (2,5,12) new
        linear (2,5,12) (12,12) (12) -> (2,5,12) new @out""",
    )


def test_einsum():
    q, k = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 6, 4)
    trace = trace_shapes(lambda q, k: torch.einsum("bhqd,bhkd->bhqk", q, k), q, k)
    expect(trace, "einsum (2,3,5,4) (2,3,6,4) -> (2,3,5,6) new")
    assert trace.rows[0].arguments == "('bhqd,bhkd->bhqk')"


def test_operations_in_place():
    def run(x):
        x.mul_(2)
        x += 1
        x.unsqueeze_(0)  # its input has two axes, and its output three
        F.relu(x, inplace=True)  # in place, though its name does not say so
        torch.add(x, x, out=x)
        torch.mul(x[:], 2, out=x)
        return x

    expect(
        trace_shapes(run, torch.randn(4, 3)),
        """mul_ (4,3) -> (4,3) in place
        add_ (4,3) -> (4,3) in place
        unsqueeze_ (4,3) -> (1,4,3) in place
        relu (1,4,3) -> (1,4,3) in place
        add (1,4,3) (1,4,3) (1,4,3) -> (1,4,3) in place
        index (1,4,3) -> (1,4,3) view
        mul (1,4,3) (1,4,3) -> (1,4,3) in place""",
    )


def test_each_relation_of_several_results_is_named_once():
    def run(x):
        torch.atleast_2d(x, x[0], x[1])
        return x.chunk(2)

    expect(
        trace_shapes(run, torch.randn(4, 3)),
        """index (4,3) -> (3) view
        index (4,3) -> (3) view
        atleast_2d (4,3) (3) (3) -> (4,3) (1,3) (1,3) same object, view
        chunk (4,3) -> (2,3) (2,3) view""",
    )


def test_in_place_without_gradients():
    with torch.inference_mode():
        trace = trace_shapes(lambda x: x.add(1).mul_(2).view(12), torch.randn(4, 3))
    expect(
        trace,
        """add (4,3) -> (4,3) new
        mul_ (4,3) -> (4,3) in place
        view (4,3) -> (12) view""",
    )


def test_properties_that_are_tensors_are_rows_and_others_are_not():
    def run(x):
        assert (x.shape, x.dtype, x.grad) == ((2, 4, 3), torch.float32, None)
        assert x.data.device == x.device
        return x.mT, x[0].T, x.mH, x[0].H

    expect(
        trace_shapes(run, torch.randn(2, 4, 3)),
        """mT (2,4,3) -> (2,3,4) view
        index (2,4,3) -> (4,3) view
        T (4,3) -> (3,4) view
        mH (2,4,3) -> (2,3,4) view
        index (2,4,3) -> (4,3) view
        H (4,3) -> (3,4) view""",
    )


def test_indexing_and_assignment():
    def run(x):
        x[:, 0] = 0
        x[x > 1] = 1
        return x[:, 1:, None, ...], x[torch.tensor([0, 1, 1])]

    trace = trace_shapes(run, torch.randn(2, 4, 3))
    expect(
        trace,
        """assign (2,4,3) -> (2,4,3) in place
        gt (2,4,3) -> (2,4,3) new
        assign (2,4,3) (2,4,3) -> (2,4,3) in place
        index (2,4,3) -> (2,3,1,3) view
        tensor -> (3) new
        index (2,4,3) (3) -> (3,4,3) new""",
    )
    arguments = [row.arguments for row in trace.rows if row.operation in ("index", "assign")]
    assert arguments == ["[:, 0]", "[(2, 4, 3)]", "[:, 1:, None, ...]", "[(3,)]"]


def test_operators_have_plain_names():
    def run(x):
        return 1 - x, 2 / x, 2**x, x @ x, -x, ~(x > 0), x // 2, 3 * x, (x > 0) & (x < 1)

    operations = [row.operation for row in trace_shapes(run, torch.ones(3, 3)).rows]
    expected = "sub div pow matmul neg gt bitwise_not floor_divide mul gt lt and"
    assert operations == expected.split()


def test_factories():
    def run(x):
        mask = torch.ones(4, 4, dtype=torch.bool).triu(1)
        return torch.zeros_like(x), x.new_full((3,), 1.0), torch.arange(5), torch.eye(2), mask

    expect(
        trace_shapes(run, torch.randn(4, 3)),
        """ones -> (4,4) new
        triu (4,4) -> (4,4) new
        zeros_like (4,3) -> (4,3) new
        new_full (4,3) -> (3) new
        arange -> (5) new
        eye -> (2,2) new""",
    )


class Shared(nn.Module):
    """One layer that stands in two places, and one that runs twice."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = self.first
        self.act = nn.ReLU()

    def forward(self, x):
        return self.act(self.second(self.act(self.first(x))))


def test_shared_modules_are_told_apart_by_run():
    trace = trace_shapes(Shared(), torch.randn(3, 4))
    expect(
        trace,
        """linear (3,4) (4,4) (4) -> (3,4) new @first
        relu (3,4) -> (3,4) new @act
        linear (3,4) (4,4) (4) -> (3,4) new @first
        relu (3,4) -> (3,4) new @act""",
    )
    assert [row.visits[-1].run for row in trace.rows] == [1, 1, 2, 2]
    assert "first = second (run 2)" in trace.text()
    assert "act (run 2)" in trace.text()


def test_a_module_that_runs_on_its_own_result_has_two_runs():
    module = nn.Sequential(nn.ReLU())
    trace = trace_shapes(lambda x: module[0](module[0](x)), torch.randn(3, 4))
    assert [(row.module, row.visits[-1].run) for row in trace.rows] == [("ReLU", 1), ("ReLU", 2)]


class Countdown(nn.Module):
    """A module that runs inside itself."""

    def forward(self, x, left):
        x = x + left
        return self(x, left - 1) * 2 if left else x


def test_a_module_inside_itself_is_visited_once_more():
    trace = trace_shapes(Countdown(), torch.randn(3, 4), 2)
    assert [(row.operation, [visit.run for visit in row.visits]) for row in trace.rows] == [
        ("add", [1]),
        ("add", [1, 2]),
        ("add", [1, 2, 3]),
        ("mul", [1, 2]),
        ("mul", [1]),
    ]


def test_only_modules_inside_the_with_block_are_visited():
    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x):
            with Capture(self) as self.seen:
                self.act(x) + 1
            return x

    module = Watched()
    module(torch.randn(3, 4))
    add = "self.act(x) + 1"
    assert [(call.name, call.path, call.line) for call in module.seen.calls] == [
        ("relu", "act", add),
        ("add", "", add),
    ]


def test_what_modules_and_functions_were_given_is_let_go():
    module = nn.Sequential(nn.ReLU())
    seen = Capture(module, keep=lambda tensor: tuple(tensor.shape))

    def run(further):
        x = torch.randn(3, 4)
        gone = weakref.ref(x)
        with torch.no_grad(), seen:
            module(x)
            if further:
                del x
                torch.ones(2)
                assert gone() is None  # while the next operation is seen
        return gone

    assert run(further=True)() is None
    assert run(further=False)() is None
    assert [call.output for call in seen.calls] == [(3, 4), (2,), (3, 4)]


def test_what_is_inside_a_call_stands_in_the_same_modules():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.theirs = nn.MultiheadAttention(D_MODEL, NUM_HEADS, batch_first=True)
            self.ours = MultiHeadAttention(D_MODEL, NUM_HEADS, dropout=0.5)

        def forward(self, x):
            return self.ours(self.theirs(x, x, x)[0])

    trace = trace_shapes(Both(), torch.randn(2, 5, D_MODEL))
    opened = [row for row in trace.rows if row.inner]
    assert [row.module for row in opened] == ["theirs", "ours"]
    for row in opened:
        assert {part.visits for part in row.inner} == {row.visits}


def test_the_line_is_the_nearest_that_a_reader_would_call_code():
    def run(x):
        return nn.ReLU()(x) + 1

    def lines(traced):
        return [row.line for row in trace_shapes(traced, torch.randn(3, 4)).rows]

    assert lines(run) == ["return nn.ReLU()(x) + 1"] * 2
    # torch's own where there is no other, and not the line that hands the call over
    assert lines(nn.ReLU()) == ["return F.relu(input, inplace=self.inplace)"]


def test_the_line_of_a_module_of_torch_is_the_one_that_calls_it():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 4))
            self.theirs = nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            x = self.net(x)
            return self.theirs(x, x, x)[0]

    rows = trace_shapes(Net(), torch.randn(2, 5, 4)).rows
    assert [(row.module, row.line) for row in rows] == [
        *((f"net.{number}", "x = self.net(x)") for number in range(3)),
        *[("theirs", "return self.theirs(x, x, x)[0]")] * 3,
    ]
    net = nn.Sequential(nn.ReLU(), nn.GELU())
    with Capture(net) as seen:
        net(torch.randn(3, 4))
    assert [call.line for call in seen.calls] == ["net(torch.randn(3, 4))"] * 3  # and randn


def test_a_capture_that_another_object_enters_sees_no_module_around_it():
    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.act = nn.ReLU()

        def forward(self, x):
            with contextlib.ExitStack() as stack:
                self.seen = stack.enter_context(Capture(self))
                self.act(x)
            return x

    module = Watched()
    module(torch.randn(3, 4))
    (call,) = module.seen.calls
    assert ([visit.path for visit in call.visits], call.line) == (["act"], "self.act(x)")


class Next(nn.Module):
    """Takes one more value from a generator."""

    def forward(self, values):
        return next(values)


@pytest.mark.parametrize("between", [False, True])
def test_a_generator_runs_in_the_module_that_asks_it(between):
    def inner(x):
        yield x + 1
        yield x + 2
        yield x + 3

    def outer(x):
        yield from inner(x)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Next(), Next()

        def forward(self, x):
            values = outer(x)
            self.first(values)
            if between:
                x.abs()
            self.second(values)
            next(values)

    rows = trace_shapes(Net(), torch.ones(2)).rows
    modules = ["first", *[""] * between, "second", ""]
    assert [row.module for row in rows] == modules


class Counted:
    alive = 0

    def __init__(self):
        Counted.alive += 1

    def __del__(self):
        Counted.alive -= 1
        torch.ones(2).abs()


def test_what_a_function_held_is_gone_when_it_has_ended():
    def helper(x):
        counted = Counted()
        return x + counted.alive

    class Net(nn.Module):
        def forward(self, x):
            return helper(x) * 2 + Counted.alive

    trace = trace_shapes(Net(), torch.ones(2))
    assert [row.operation for row in trace.rows] == ["add", "ones", "abs", "mul", "add"]
    assert torch.equal(trace.output, torch.full((2,), 4.0))


def test_a_caught_error_holds_nothing_once_its_record_is_gone():
    def failing():
        held = Counted()
        return torch.ones(2) + torch.ones(5 + held.alive)

    gc.disable()  # which would find a circle
    try:
        with Capture() as seen:
            with contextlib.suppress(RuntimeError):
                failing()
            assert seen.calls[-1].error is not None
            assert Counted.alive == 1
            seen.calls.clear()
        assert Counted.alive == 0
    finally:
        gc.enable()


def test_a_mode_of_the_reader_does_not_hide_a_line():
    with Capture() as seen, torch.overrides.BaseTorchFunctionMode():
        torch.ones(3)
    assert [call.line for call in seen.calls] == ["torch.ones(3)"]


def test_a_layer_that_gets_its_sizes_at_first_use_is_traced():
    trace = trace_shapes(nn.LazyLinear(3), torch.randn(2, 4))
    assert trace.error is None
    assert told(trace.rows)[-1] == "linear (2,4) (3,4) (3) -> (2,3) new"


def test_a_traced_class_can_be_forgotten():
    def run():
        class Own(nn.Module):
            def forward(self, x):
                return x + 1

        trace_shapes(Own(), torch.randn(2, 3))
        return weakref.ref(Own)

    gone = run()
    gc.collect()
    assert gone() is None


def test_of_two_places_in_lists_the_one_inside_the_running_module_is_meant():
    class Stack(nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layers = nn.ModuleList([layer])

        def forward(self, x):
            return self.layers[0](x)

    layer = nn.ReLU()
    both = nn.ModuleDict({"encoder": Stack(layer), "decoder": Stack(layer)})
    both.forward = lambda x: both["decoder"](both["encoder"](x))
    trace = trace_shapes(both, torch.randn(2, 3))
    assert [row.module for row in trace.rows] == ["encoder.layers.0", "decoder.layers.0"]


class Tied(nn.Module):
    """One block, used as two layers."""

    def __init__(self):
        super().__init__()
        block = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.layers = nn.ModuleList([block, block, block])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def test_parts_of_a_shared_module_are_named_within_it():
    trace = trace_shapes(Tied(), torch.randn(3, 4))
    assert [row.module for row in trace.rows] == ["layers.0.0", "layers.0.1"] * 3
    assert "<b>layers.0 and 2 more names (run 3)</b>" in trace._repr_html_()


def test_modules_that_the_run_finds_elsewhere_go_by_their_class():
    hidden = [nn.Sequential(nn.Linear(4, 4))]  # in a plain list, unknown to any module
    trace = trace_shapes(lambda x: hidden[0](x), torch.randn(3, 4))
    assert [row.module for row in trace.rows] == ["Sequential.Linear"]


class Caught(nn.Module):
    """One part raises, and the run goes on."""

    def __init__(self):
        super().__init__()
        self.bad, self.good = nn.Sequential(nn.Linear(5, 4)), nn.Linear(4, 2)

    def forward(self, x):
        try:
            self.bad(x)
        except RuntimeError:
            x = x + 1
        return self.good(x)


def test_the_module_path_is_right_after_a_module_that_raised():
    trace = trace_shapes(Caught(), torch.randn(3, 4))
    assert trace.error is None
    assert [row.module for row in trace.rows] == ["bad.0", "", "good"]
    assert [bool(row.error) for row in trace.rows] == [True, False, False]


class HalfWay(nn.Module):
    """Breaks at its third operation."""

    def __init__(self):
        super().__init__()
        self.W_query = nn.Linear(D_MODEL, D_MODEL)

    def forward(self, x):
        queries = self.W_query(x)
        queries = queries.view(BATCH, TOKENS, 5, HEAD_DIM)
        return queries.transpose(1, 2)


def test_a_module_that_raises_half_way(x):
    trace = trace_shapes(HalfWay(), x, names=NAMES)
    assert isinstance(trace.error, RuntimeError)
    assert trace.output is None
    assert told(trace.rows) == [
        "linear (2,5,12) (12,12) (12) -> (2,5,12) new @W_query",
        "view (2,5,12) -> ",
    ]
    row = trace.rows[-1]
    assert "invalid for input of size 120" in row.error
    assert row.arguments == "(2, 5, 5, 4)"
    assert row.line == "queries = queries.view(BATCH, TOKENS, 5, HEAD_DIM)"
    assert row.fits == (
        "There are 2 × 5 × 12 = 120 numbers, and (2, 5, 5, 4) asks for 200. "
        "Heads that share 12 equally: 1, 2, 3, 4, 6, 12."
    )
    assert "broke at row 2" in trace.text()
    assert 'class="broke"' in trace._repr_html_()


def test_an_error_of_the_modules_own_is_told_after_the_rows(x):
    trace = trace_shapes(MultiHeadAttention(D_MODEL, NUM_HEADS), x[0])
    assert isinstance(trace.error, ValueError)
    assert trace.rows == []
    assert "then ValueError: The input must be a tensor of shape" in trace.text()


def test_an_error_inside_an_opened_call_is_marked_inside_and_outside():
    module = nn.MultiheadAttention(D_MODEL, NUM_HEADS)
    wrong = torch.randn(TOKENS, BATCH, D_MODEL), torch.randn(4, BATCH, D_MODEL)
    trace = trace_shapes(module, wrong[0], wrong[1], torch.randn(4, BATCH, D_MODEL - 1))
    assert trace.error is not None
    assert trace.rows[-1].error
    assert trace.rows[-1].operation == "multi_head_attention_forward"


def test_bfloat16(x):
    module = MultiHeadAttention(D_MODEL, NUM_HEADS).to(torch.bfloat16)
    trace = trace_shapes(module, x.to(torch.bfloat16), need_weights=True)
    kinds = {shape.dtype for row in trace.rows for shape in row.outputs}
    assert kinds == {torch.bfloat16, torch.bool}
    assert trace.dtype == torch.bfloat16
    assert "(5, 5) bool" in trace.text()  # only what differs is told
    assert "bfloat16" not in trace.text()


def test_zero_size():
    def run(x):
        y = x.transpose(1, 2)
        return y.contiguous(), y.reshape(2, 0), x + 1, x.clone(), x.contiguous()

    expect(
        trace_shapes(run, torch.zeros(2, 0, 3)),
        """transpose (2,0,3) -> (2,3,0) view
        contiguous (2,3,0) -> (2,3,0) same object
        reshape (2,3,0) -> (2,0) view
        add (2,0,3) -> (2,0,3) new
        clone (2,0,3) -> (2,0,3) new
        contiguous (2,0,3) -> (2,0,3) same object""",
    )


def test_view_or_copy_is_decided_by_storage_not_by_name():
    def run(x):
        turned = x.transpose(0, 1)
        joined = turned.contiguous()
        return joined.contiguous(), turned.reshape(12), joined.reshape(12), x.to(x.dtype)

    expect(
        trace_shapes(run, torch.randn(3, 4)),
        """transpose (3,4) -> (4,3) view
        contiguous (4,3) -> (4,3) new
        contiguous (4,3) -> (4,3) same object
        reshape (4,3) -> (12) new
        reshape (4,3) -> (12) view
        to (3,4) -> (3,4) same object""",
    )


# --- real models ----------------------------------------------------------------------------


def gpt2(attention):
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            n_embd=D_MODEL,
            n_head=NUM_HEADS,
            n_layer=2,
            vocab_size=17,
            n_positions=7,
            bos_token_id=0,
            eos_token_id=0,
            attn_implementation=attention,
        )
    )


def bert(attention):
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            vocab_size=17,
            hidden_size=D_MODEL,
            num_hidden_layers=2,
            num_attention_heads=NUM_HEADS,
            intermediate_size=22,
            max_position_embeddings=7,
            attn_implementation=attention,
        )
    )


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("model", [gpt2, bert])
def test_a_real_model_chains(model, attention):
    """Every tensor that goes into an operation was given, is owned, or came out of another."""
    model = model(attention)
    ids = torch.randint(0, 17, (BATCH, TOKENS))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    trace = trace_shapes(model, ids, attention_mask=mask)
    assert trace.error is None
    known = {tuple(ids.shape), tuple(mask.shape)}
    known |= {tuple(one.shape) for one in (*model.parameters(), *model.buffers())}
    for row in unfolded(trace.rows):
        for shape, source in zip(row.inputs, row.sources, strict=True):
            assert source or shape.parameter, (row.number, row.operation, row.line)
            assert shape.sizes in known
        known |= {shape.sizes for shape in row.outputs}
    paths = {row.module for row in trace.rows}
    leaves = {path for path, part in model.named_modules() if list(part.parameters(False))}
    assert leaves - paths <= {"pooler"}
    scores = (BATCH, NUM_HEADS, TOKENS, TOKENS)
    written = [row for row in trace.rows if row.operation == "softmax"]
    assert [row.outputs[0].sizes for row in written] == [scores] * (
        2 if attention == "eager" else 0
    )


@pytest.mark.parametrize("model", [gpt2, bert])
def test_a_real_model_chains_by_identity(model):
    """The same, with every tensor kept alive, so that no identity is used twice."""
    model = model("eager")
    ids = torch.randint(0, 17, (BATCH, TOKENS))
    alive = [ids, *model.parameters(), *model.buffers()]
    made = set(map(id, alive))

    def keep(tensor):
        alive.append(tensor)
        return id(tensor)

    with Capture(model, keep=keep) as seen:
        model(ids)
    assert len(seen.calls) > 60
    for call in seen.calls:
        assert set(call.inputs) <= made, (call.name, call.line)
        made |= set(call.output) if isinstance(call.output, tuple | list) else {call.output}


# --- nothing is changed by watching ---------------------------------------------------------

WATCHED = [
    lambda: CausalHead(D_MODEL, HEAD_DIM, dropout=0.5),
    lambda: LoopedMultiHeadAttention(D_MODEL, NUM_HEADS, dropout=0.5),
    lambda: MultiHeadAttention(D_MODEL, NUM_HEADS, dropout=0.5),
    lambda: FusedQKV(),
    lambda: nn.TransformerEncoderLayer(D_MODEL, NUM_HEADS, 16, dropout=0.5, batch_first=True),
    lambda: nn.LSTM(D_MODEL, 7, batch_first=True),
]


def run_once(module, x, call):
    """Return the output, the gradients and the random state of one seeded run."""
    module.zero_grad()
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    output = call(module, x)
    output = output[0] if isinstance(output, tuple) else output
    state = torch.get_rng_state()
    output.square().sum().backward()
    return [output, x.grad, *(one.grad for one in module.parameters()), state]


@pytest.mark.parametrize("make", WATCHED)
def test_output_gradients_and_random_state_are_bit_equal(make, x):
    module = make()
    plain = run_once(module, x, lambda m, x: m(x))
    watched = run_once(module, x, lambda m, x: trace_shapes(m, x).output)
    for ours, theirs in zip(plain, watched, strict=True):
        assert torch.equal(ours, theirs)


def test_nothing_of_torch_is_patched_and_no_hook_or_mode_stays(x):
    from torch.nn.modules import module as torch_modules

    def state():
        hooks = [
            dict(getattr(torch_modules, name))
            for name in vars(torch_modules)
            if name.startswith("_global_") and isinstance(getattr(torch_modules, name), dict)
        ]
        own = [
            dict(hooks)
            for part in module.modules()
            for name, hooks in vars(part).items()
            if "hook" in name and isinstance(hooks, dict)
        ]
        names = [dict(vars(space)) for space in (torch, F, torch.Tensor, nn.Module)]
        return hooks, own, names, _get_current_function_mode_stack()

    module = HalfWay()
    seen = []
    module.register_forward_hook(lambda *_: seen.append(state()[:3]), always_call=True)
    before = state()
    trace_shapes(module, x)
    trace_shapes(lambda x: x @ x.mT, x)
    after = state()
    assert seen == [before[:3]]  # nor while it runs; its mode is there then
    assert before == after


def test_the_fused_path_that_torch_leaves_is_told(x):
    layer = nn.TransformerEncoderLayer(D_MODEL, 4, 16, batch_first=True).eval()
    with torch.no_grad():
        plain = layer(x)
        trace = trace_shapes(layer, x)
    torch.testing.assert_close(trace.output, plain, rtol=0, atol=1e-5)
    (note,) = trace.notes
    assert "one fused call" in note
    assert note in trace.text()
    assert note in trace._repr_html_()
    assert trace_shapes(layer, x).notes == []  # with gradients torch writes it out anyway
    assert trace_shapes(layer.train(), x).notes == []


def test_another_thread_does_not_mix_its_modules_in(x):
    other, done = nn.Linear(D_MODEL, 3), threading.Event()

    def run(x):
        thread = threading.Thread(target=lambda: (other(x), done.set()))
        thread.start()
        thread.join()
        return x + 1

    trace = trace_shapes(run, x)
    assert done.is_set()
    assert told(trace.rows) == ["add (2,5,12) -> (2,5,12) new"]


# --- what cannot be seen --------------------------------------------------------------------


def test_the_fused_kernel_says_that_no_scores_exist(x):
    trace = trace_shapes(MultiHeadAttention(D_MODEL, NUM_HEADS), x)
    (row,) = [row for row in trace.rows if row.operation == "scaled_dot_product_attention"]
    assert row.note == "one fused kernel: no (tokens, tokens) matrix exists"
    assert row.inner == []
    assert row.note in trace.text()
    assert row.note in trace._repr_html_()


def test_what_torch_calls_fused_is_one_kernel(x):
    """Open it by force: the kernel's outputs hold no (tokens, tokens)."""
    from shape_tracing import capture

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(capture, "_is_fused", lambda args, kwargs: False)
        trace = trace_shapes(MultiHeadAttention(D_MODEL, NUM_HEADS), x)
    (row,) = [row for row in trace.rows if row.inner]
    assert row.note == "one fused kernel: no (tokens, tokens) matrix exists"
    assert (TOKENS, TOKENS) not in {one.sizes[-2:] for part in row.inner for one in part.outputs}


def test_scores_that_torch_wrote_out_are_not_denied(x):
    trace = trace_shapes(MultiHeadAttention(D_MODEL, NUM_HEADS, dropout=0.5), x)
    (row,) = [row for row in trace.rows if row.inner]
    assert row.note == "opened: torch wrote the scores out"
    scores = (BATCH, NUM_HEADS, TOKENS, TOKENS)
    assert scores in {one.sizes for part in row.inner for one in part.outputs}


def test_numbers_arrays_and_the_backward_pass_give_no_rows():
    def run(x):
        total = x.sum().item() + int(x.numel()) + float(x.detach().numpy().sum())
        y = x * total
        y.sum().backward()
        return y

    expect(
        trace_shapes(run, torch.ones(2, 3, requires_grad=True)),
        """sum (2,3) -> () new
        detach (2,3) -> (2,3) view
        mul (2,3) -> (2,3) new
        sum (2,3) -> () new""",
    )


def test_forward_called_by_name_has_no_path_of_its_own():
    module = nn.Sequential(nn.Linear(4, 3))
    trace = trace_shapes(lambda x: module[0].forward(x), torch.randn(2, 4))
    assert [row.module for row in trace.rows] == [""]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_and_scripted_modules_are_refused():
    plain = nn.Linear(4, 3)
    compiled = torch.compile(plain, backend="eager")  # its own cannot be loaded where text is ASCII
    for module in (compiled, nn.Sequential(compiled)):
        with pytest.raises(ValueError, match=r"plain one that was given to torch\.compile"):
            trace_shapes(module, torch.randn(2, 4))
    x = torch.randn(2, 4)
    module, function = torch.jit.trace(plain, x), torch.jit.trace(torch.relu, x)
    for scripted in (module, nn.Sequential(module), torch.jit.script(plain), function):
        with pytest.raises(ValueError, match="plain module that it was made from"):
            trace_shapes(scripted, x)


@pytest.mark.parametrize("names", [["batch"], {"batch": "2"}, {2: "batch"}, {"batch": True}])
def test_names_must_map_to_whole_numbers(names, x):
    with pytest.raises(ValueError, match="names must map each axis name to its size"):
        trace_shapes(nn.Identity(), x, names=names)


def test_the_first_argument_must_run(x):
    with pytest.raises(ValueError, match="must be a module or a function"):
        trace_shapes(x, x)


# --- what would fit -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "fits"),
    [
        (lambda x: x @ x, "The second turned by .mT is (2, 12, 5), and fits."),
        (lambda x: x @ torch.ones(3, 7), "A second of (…, 12, any) would fit."),
        (lambda x: x @ torch.ones(3, 12, 7), "but 2 meets 3 at axis -3."),
        (lambda x: F.linear(x, torch.ones(4, 8)), "An input (2, 5, 8) would fit, or a layer nn."),
        (lambda x: x.mT.view(2, 60), ".contiguous().view(…) or .reshape(…) copies them, and fits."),
        (lambda x: x.view(2, 5, 5, -1), "50 does not divide 120. Heads that share 12 equally: 1,"),
        (lambda x: x.unflatten(-1, (5, -1)), "There are 12 numbers, and 5 does not divide 12."),
        (
            lambda x: x.reshape((2, 7)),
            "There are 2 × 5 × 12 = 120 numbers, and (2, 7) asks for 14.",
        ),
        (lambda x: x + torch.ones(4, 12), "but 5 meets 4 at axis -2."),
        (lambda x: x.masked_fill(torch.ones(4, 4, dtype=torch.bool), 0), "12 meets 4 at axis -1."),
        (lambda x: torch.cat([x, x[:, :2]], dim=-1), "dim=-2 would fit."),
        (lambda x: torch.cat([x, x[0]]), "the same number of axes."),
    ],
)
def test_what_would_fit(run, fits, x):
    trace = trace_shapes(run, x)
    assert trace.rows[-1].error
    assert fits in trace.rows[-1].fits
    assert f"broke: {trace.rows[-1].fits}" in trace.text()
    assert str(trace.error).splitlines()[0] not in trace.text()  # torch words it as it likes


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
    st.lists(st.integers(1, 5), min_size=2, max_size=4),
)
def test_a_product_that_breaks_always_says_why(first, second):
    trace = trace_shapes(torch.matmul, torch.ones(first), torch.ones(second))
    assert bool(trace.error) == bool(trace.rows[-1].fits)


# --- names, text, table and blocks ----------------------------------------------------------


def test_axes_are_named_by_size(x):
    trace = trace_shapes(MultiHeadAttention(D_MODEL, NUM_HEADS), x, names=NAMES)
    assert trace.axes((2, 5, 3, 4)) == ["batch", "tokens", "num_heads", "head_dim"]
    assert trace.axes((1, 5, 7)) == ["1", "tokens", "7"]
    assert "(2, 3, 5, 4)  batch, num_heads, tokens, head_dim" in trace.text()
    assert "<small>batch, num_heads, tokens, head_dim</small>" in trace._repr_html_()


def test_equal_sizes_have_both_names():
    x = torch.randn(2, 6, 6)
    trace = trace_shapes(
        MultiHeadAttention(6, 2),
        x,
        names={"batch": 2, "tokens": 6, "num_heads": 2, "head_dim": 3, "d_model": 6},
    )
    assert trace.axes((2, 3)) == ["batch or num_heads", "head_dim"]
    assert 'batch and num_heads are 2: an axis of 2 reads "batch or num_heads".' in trace.notes


@pytest.mark.parametrize(
    ("names", "sizes", "axes"),
    [
        ({"batch": 4}, (4, 4, 12), ["batch or 4", "batch or 4", "12"]),
        ({"num_heads": 4, "batch": 2}, (2, 5, 4, 4), ["batch", "5", *2 * ["num_heads or 4"]]),
        ({"tokens": 5}, (2, 3, 5, 5), ["2", "3", "tokens", "tokens"]),  # scores
        ({"tokens": 5}, (5, 3, 5), ["tokens or 5", "3", "tokens or 5"]),
        ({"tokens": 5}, (5, 5, 5), 3 * ["tokens or 5"]),
        ({"tokens": 4, "batch": 4}, (4, 3, 4), ["tokens or batch", "3", "tokens or batch"]),
        ({"num_heads": 4, "batch": 4}, (4, 4, 4), 3 * ["num_heads or batch or 4"]),
    ],
)
def test_a_name_is_one_axis_of_a_shape_or_may_be_its_size_alone(names, sizes, axes):
    assert trace_shapes(nn.Identity(), torch.zeros(1), names=names).axes(sizes) == axes


TEXT = """
function: 3 operations
#    operation        input       output    axes           result
---  ---------------  ----------  --------  -------------  -----------
1    transpose(0, 1)  (2, 5)      (5, 2)    tokens, batch  view
2    cat              3 × (2, 5)  (6, 5)    6, tokens      new
3    contiguous       (2, 5)      (2, 5)    batch, tokens  same object
"""


def test_text():
    run = lambda x: (x.transpose(0, 1), torch.cat([x, x, x]), x.contiguous())  # noqa: E731
    trace = trace_shapes(run, torch.zeros(2, 5), names={"batch": 2, "tokens": 5})
    assert str(trace) == TEXT.strip()


def test_text_opened_and_with_lines(x):
    module = nn.MultiheadAttention(D_MODEL, NUM_HEADS, batch_first=True)
    text = trace_shapes(module, x, x, x).text(opened=True, lines=True)
    assert re.search(r"^2\.18 .*bmm .*torch\.bmm\(q_scaled, k", text, re.M)


def test_data_is_plain(x):
    trace = trace_shapes(MultiHeadAttention(D_MODEL, NUM_HEADS), x, names=NAMES)
    row = trace.data()[1]
    assert row == {
        "number": "2",
        "operation": "view",
        "arguments": "(2, 5, 3, 4)",
        "inputs": [(2, 5, 12)],
        "outputs": [(2, 5, 3, 4)],
        "axes": [("batch", "tokens", "num_heads", "head_dim")],
        "result": "view",
        "module": "",
        "line": "per_head = projected.view(batch, tokens, self.num_heads, self.head_dim)",
        "note": "",
        "error": "",
    }
    module = nn.MultiheadAttention(D_MODEL, NUM_HEADS)
    trace = trace_shapes(module, x, x, x)
    assert len(trace.data(opened=True)) == len(trace.data()) + len(PACKED + WITH_WEIGHTS)


@pytest.mark.parametrize("make", WATCHED)
def test_what_is_shown_is_the_same_twice_and_names_no_place(make, x):
    module = make()
    first, second = trace_shapes(module, x), trace_shapes(module, x)
    for shown in (str(first), first._repr_html_(), first.text(opened=True, lines=True)):
        assert "/" not in re.sub(r"</\w+>|<code>.*?</code>|^.*=.* / .*$", "", shown, flags=re.M)
        assert "0x" not in shown
    assert first._repr_html_() == second._repr_html_()
    assert str(first) == str(second)
    assert first.picture().png() == second.picture().png()


def test_html_is_well_formed_and_escaped(x):
    from html.parser import HTMLParser

    class Balance(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open = []

        def handle_starttag(self, tag, attributes):
            if tag not in ("br", "col", "wbr"):
                self.open.append(tag)

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    def run(x):
        return x[x < 0], x.mT @ x

    for trace in (
        trace_shapes(run, x),
        trace_shapes(gpt2("sdpa"), torch.randint(0, 17, (2, 5))),
        trace_shapes(HalfWay(), x),
        trace_shapes(lambda: None),
    ):
        balance = Balance()
        balance.feed(trace._repr_html_())
        assert balance.open == []
    assert "return x[x &lt; 0], x.<wbr>mT @ x" in trace_shapes(run, x)._repr_html_()


def test_a_statement_over_several_lines_is_shown_as_cut(x):
    def run(x):
        return torch.cat(
            [x, x + 1],  # each row shows the line it stands in
            dim=-1,
        )

    told = trace_shapes(run, x).text(lines=True)
    assert "return torch.cat( …" in told
    assert "[x, x + 1],\n" in told + "\n"
    assert "return torch.<wbr>cat( …" in trace_shapes(run, x)._repr_html_()


def test_long_traces_fold_their_modules_and_open_the_one_that_broke():
    model = gpt2("sdpa")
    ids = torch.randint(0, 17, (BATCH, TOKENS))
    html = trace_shapes(model, ids)._repr_html_()
    assert "<details><summary><b>transformer.h.0</b>" in html
    assert "<details open><summary><b>transformer</b>" in html
    model.transformer.h[1].mlp.c_fc = nn.Linear(D_MODEL + 1, 48)
    html = trace_shapes(model, ids)._repr_html_()
    assert "<details><summary><b>transformer.h.0</b>" in html
    assert "<details open><summary><b>transformer.h.1</b>" in html


def test_stages_join_what_keeps_the_shape_and_count_what_repeats(x):
    trace = trace_shapes(MultiHeadAttention(D_MODEL, NUM_HEADS), x, need_weights=True)
    found = [(times, [(s.operations, s.sizes) for s in part]) for times, part in stages(trace)]
    assert found[:2] == [
        (1, [(("input",), (2, 5, 12))]),
        (
            3,
            [
                (("linear",), (2, 5, 12)),
                (("view",), (2, 5, 3, 4)),
                (("transpose",), (2, 3, 5, 4)),
            ],
        ),
    ]
    joined = (("matmul", "masked_fill_", "softmax", "dropout"), (2, 3, 5, 5))
    assert joined in [stage for _, part in found for stage in part]


def test_the_picture_says_what_it_shows(x):
    trace = trace_shapes(MultiHeadAttention(D_MODEL, NUM_HEADS), x)
    assert repr(trace.picture()) == (
        "Blocks: stages of MultiHeadAttention. input (2, 5, 12); 3 times: linear (2, 5, 12), "
        "view (2, 5, 3, 4), transpose (2, 3, 5, 4); scaled_dot_product_attention "
        "(2, 3, 5, 4); transpose (2, 5, 3, 4); flatten (2, 5, 12); linear (2, 5, 12)."
    )
    assert "MultiHeadAttention, W_out" in repr(trace.picture("W_out"))
    with pytest.raises(ValueError, match=r"W_key, W_out, W_query, W_value\.$"):
        trace.picture("W_o")


def test_tracing_needs_no_matplotlib():
    code = (
        "import sys, torch, shape_tracing\n"
        "str(shape_tracing.trace_shapes(torch.nn.Linear(2, 3), torch.ones(1, 2)))\n"
        "assert 'matplotlib' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_long_names_stay_on_the_picture():
    sizes = {"batch": 2, "num_heads": 2, "tokens": 6, "d_model": 6, "head_dim": 3}
    trace = trace_shapes(MultiHeadAttention(6, 2), torch.zeros(2, 6, 6), names=sizes)
    figure = trace.picture().figure
    figure.canvas.draw()
    for text in figure.axes[0].texts:
        assert text.get_window_extent().x1 <= figure.bbox.x1, text.get_text()


def test_a_trace_overrules_the_tables_of_its_page(x):
    style = re.search("<style>(.*?)</style>", trace_shapes(lambda: x.mT)._repr_html_())[1]
    selectors = re.findall(r"(?:^|[{}])([^{}@]+){", style)
    assert len(selectors) > 20
    assert all(one.startswith(":is(.shape-trace,#shape-trace)") for one in selectors)
