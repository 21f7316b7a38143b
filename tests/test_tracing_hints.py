"""Reshapes that do not fit, and what would: hints that are not yet right, `strict`."""

import pytest
import torch
import torch.nn.functional as F

from shape_tracing import trace_shapes

FOLDED, FUSED, IMAGE = torch.randn(8, 5, 6), torch.randn(2, 5, 96), torch.randn(2, 24, 3, 3)


@pytest.mark.xfail(strict=True)
@pytest.mark.parametrize(
    ("run", "x", "fits", "untrue"),
    [
        (lambda x: x.reshape(8, 4, 5, 6), FOLDED, "(2, 4, 5, 6)", "share 6"),  # 8 = 2 · 4 heads
        (lambda x: x.reshape(8, 5, 24), FOLDED.view(2, 5, 4, 6), "(2, 5, 24)", "share 6"),
        (lambda x: x.reshape(2, 5, 3, 3, -1), FUSED, ": 1, 2, 4, 8, 16, 32.", "1, 2, 3"),
        (lambda x: F.linear(x.flatten(1), torch.ones(72, 24)), IMAGE, "flatten(2)", "(2, 24)"),
    ],
)
def test_what_would_fit_is_true(run, x, fits, untrue):
    said = trace_shapes(run, x).rows[-1].fits
    assert fits in said
    assert untrue not in said
