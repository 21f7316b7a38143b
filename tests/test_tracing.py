"""Tracing: every operation, its shapes, and nothing changed by watching."""

import torch
from torch import nn

from attention_course import MultiHeadAttention
from attention_course.tracing import Capture

BATCH, TOKENS, NUM_HEADS, HEAD_DIM = 2, 5, 3, 4
D_MODEL = NUM_HEADS * HEAD_DIM


def test_capture_keeps_the_values_from_before_an_in_place_operation():
    x = torch.zeros(2, 3)
    with Capture() as seen:
        x.add_(1)
    (call,) = seen.calls
    assert (call.name, call.relation) == ("add_", "in place")
    assert torch.equal(call.inputs[0], torch.zeros(2, 3))
    assert torch.equal(call.output, torch.ones(2, 3))


def test_capture_opens_nn_multihead_attention():
    module = nn.MultiheadAttention(D_MODEL, NUM_HEADS, batch_first=True)
    x = torch.randn(BATCH, TOKENS, D_MODEL)
    with Capture(module) as seen:
        module(x, x, x)
    assert [call.name for call in seen.calls] == [
        "transpose",
        "multi_head_attention_forward",
        "transpose",
    ]
    (softmax,) = [call for call in seen.calls[1].inner if call.name == "softmax"]
    assert softmax.output.shape == (BATCH * NUM_HEADS, TOKENS, TOKENS)


def test_capture_gives_paths_and_source_lines():
    module = MultiHeadAttention(D_MODEL, NUM_HEADS)
    x = torch.randn(BATCH, TOKENS, D_MODEL)
    with Capture(module) as seen:
        module(x)
    assert (seen.calls[0].path, seen.calls[1].path) == ("W_query", "")
    assert seen.calls[0].line == "queries = self._split(self.W_query(x))"
