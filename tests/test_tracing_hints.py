"""Reshapes that do not fit, and what would: each shape and number that a hint names is tried."""

import re

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from shape_tracing import trace_shapes

FOLDED, FUSED, IMAGE = torch.randn(8, 5, 6), torch.randn(2, 5, 96), torch.randn(2, 24, 3, 3)
PROJECTION = torch.ones(72, 24)


@pytest.mark.parametrize(
    ("run", "x", "fits", "untrue"),
    [
        (lambda x: x.reshape(8, 4, 5, 6), FOLDED, "(2, 4, 5, 6)", "share 6"),  # 8 = 2 · 4 heads
        (lambda x: x.reshape(8, 5, 24), FOLDED.view(2, 5, 4, 6), " (2, 5, 24)", "(8, 5, 6)"),
        (lambda x: x.reshape(2, 5, 3, 3, -1), FUSED, ": 1, 2, 4, 8, 16, 32.", "1, 2, 3"),
        (lambda x: F.linear(x.flatten(1), PROJECTION), IMAGE, "flatten(2)", "(2, 24)"),
        (lambda x: x.view(8, 4, 5, -1), FOLDED, " (2, 4, 5, 6) would fit.", "share 6"),
        (lambda x: x.reshape(2, 5, 20), FOLDED.view(2, 5, 4, 6), " (2, 5, 24) would fit.", "share"),
        (lambda x: x.view(8, 5, 4, 6), FOLDED, "(8, 5, 4, 6) asks for 960.", "share"),
        (lambda x: x.view(2, 5, 7, 96), FUSED, "Heads that share 96 equally: 1, 2, 3, 4,", "would"),
        (lambda x: x.view(2, 5, 5, 3, 7), FUSED, "96 = 3 × 32. Heads that share 32", "share 96"),
        (lambda x: x.view(-1, 5, 3, 7, 5), FUSED, "Heads that share 32", "share 96"),
        (lambda x: x.view(10, 3, 7, -1), FUSED, "Heads that share 32", "share 96"),
        (lambda x: x.view(2, 5, 3, -1, 7), FUSED, "Heads that share 32", "share 96"),
        (
            lambda x: x.view(2, 5, 4, 6),
            FUSED,
            " (2, 5, 16, 6) or (2, 5, 4, 24) would fit.",
            "share",
        ),
        (lambda x: x.unflatten(-1, (4, 6)), FUSED, " (16, 6) or (4, 24) would fit.", "share"),
        (lambda x: x.view(2, 5, 0, -1), FUSED, "0 does not divide 960.", "share"),
        (lambda x: x.view(7, 11), FUSED, "(7, 11) asks for 77.", "would fit"),
        (lambda x: x.view(2), torch.tensor(1.0), "There are 1 numbers, and (2,) asks", "would fit"),
    ],
)
def test_what_would_fit_is_true(run, x, fits, untrue):
    said = trace_shapes(run, x).rows[-1].fits
    assert fits in said
    assert untrue not in said


@pytest.mark.parametrize(
    ("join", "sizes", "how", "shape"),
    [
        (lambda x: x.flatten(1), (2, 24, 3, 7), "flatten(2).mT", (2, 21, 24)),
        (lambda x: x.reshape(2, -1), (2, 3, 7, 24), "flatten(1, -2)", (2, 21, 24)),
        (lambda x: x.flatten(2), (2, 5, 24, 7), "flatten(3).mT", (2, 5, 7, 24)),
    ],
)
def test_an_axis_joined_too_early_is_named_where_it_was_joined(join, sizes, how, shape):
    x = torch.randn(sizes)
    said = trace_shapes(lambda x: F.linear(join(x), PROJECTION), x).rows[-1].fits
    instead = f"Row 1 joined the axis of 24 with others; .{how} in its place gives {shape}"
    assert instead in said
    assert eval(f"x.{how}").shape == shape


def test_a_width_that_no_row_joined_has_the_plain_hint():
    said = trace_shapes(lambda x: F.linear(x * 2, PROJECTION), IMAGE.flatten(1)).rows[-1].fits
    assert "An input (2, 24) would fit, or a layer nn.Linear(216, 72)." in said


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.lists(st.sampled_from([-1, 0, 1, 2, 3, 4, 5, 6, 8, 12]), min_size=1, max_size=5),
)
def test_every_shape_that_a_hint_names_fits(sizes, wanted):
    x = torch.arange(torch.Size(sizes).numel()).view(sizes)
    said = trace_shapes(lambda x: x.reshape(wanted), x)
    hint = said.rows[-1].fits if said.rows else ""
    for shape in re.findall(r"\([\d, ]+\)", hint.partition(". ")[2]):
        x.reshape([int(n) for n in re.findall(r"\d+", shape)])


@settings(max_examples=100, deadline=None)
@given(st.integers(2, 96), st.integers(2, 7), st.integers(2, 7))
def test_heads_that_a_hint_names_part_the_width_with_the_other_factor(width, first, second):
    x = torch.zeros(2, 5, width)
    trace = trace_shapes(lambda x: x.reshape(2, 5, first, second, -1), x)
    listed = trace.rows[-1].fits.partition("equally: ")[2]
    divides = width % first == 0 or width % second == 0
    assert bool(listed) == bool(trace.error and divides)
    for heads in re.findall(r"\d+", listed):
        assert width % (int(heads) * (first if width % first == 0 else second)) == 0
