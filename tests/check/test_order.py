"""Several faults in one module: all are reported, causes first."""

import pytest
from bases import einsum, fused, given, heads, kernel, separate, transposed
from registry import codes, together

from attention_check import check_attention

COMBINED = [
    (separate, "length scale"),
    (fused, "softmax-axis scale"),
    (separate, "split-by-view merge-by-view"),
    (separate, "input-changed future-visible"),
    (separate, "dropout-unused mask-off-by-one"),
    (separate, "not-repeatable dropout-in-eval"),
    (fused, "split-by-view scale"),
    (fused, "wrong-pair scale"),
    (fused, "future-visible detached"),
    (heads, "scale not-a-buffer"),
    (heads, "wrong-pair scale"),
    (heads, "input-cut unused-layer"),
    (einsum, "input-changed not-registered"),
    (einsum, "softmax-axis mask-off-by-one"),
    (transposed, "merge-by-view wrong-values"),
    (kernel, "dropout-in-eval merge-by-view"),
    (kernel, "past-hidden unused-layer"),
    (given, "input-cut scale"),
    (separate, "dropout-unused future-visible scale"),
    (separate, "split-by-view future-visible unused-layer"),
    (fused, "dropout-unused merge-by-view scale"),
    (heads, "dropout-unused wrong-pair scale"),
    (heads, "future-visible scale not-registered"),
    (kernel, "split-by-view merge-by-view unused-layer"),
]


@pytest.mark.parametrize(
    ("base", "expected"), COMBINED, ids=lambda case: getattr(case, "style", case)
)
def test_several_faults_are_all_reported_in_causal_order(base, expected):
    report = check_attention(together(base, *expected.split()).make)
    assert codes(report) == expected.split(), report


def test_enough_is_combined():
    assert sum(len(codes.split()) == 2 for _, codes in COMBINED) >= 10
    assert sum(len(codes.split()) == 3 for _, codes in COMBINED) >= 3
