"""A bare function of queries, keys and values is judged as the module around it."""

import math

import pytest
import torch
import torch.nn.functional as F
from registry import codes

from attention_check import check_attention
from attention_course import attention, causal_mask


def right(q, k, v):
    hidden = causal_mask(q.shape[-2])
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(hidden, -torch.inf)
    return scores.softmax(dim=-1) @ v


def two_results(query, key, value, attn_mask=None):
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    if attn_mask is not None:
        scores = scores.masked_fill(attn_mask, -torch.inf)
    weights = scores.softmax(dim=-1)
    return weights, weights @ value


def needs_a_mask(q, k, v, mask):
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(mask, -torch.inf)
    return scores.softmax(dim=-1) @ v


def kernel(queries, keys, values):
    return F.scaled_dot_product_attention(queries, keys, values, is_causal=True)


@pytest.mark.parametrize("function", [right, two_results, needs_a_mask, kernel, attention])
def test_a_right_function_is_left_alone(function):
    report = check_attention(function)
    assert report.ok, report
    assert report.subject == function.__name__


def unscaled(q, k, v):
    return (q @ k.mT).softmax(dim=-1) @ v


def over_the_queries(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-2) @ v


def keys_twice(q, k, v):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ k


def thrown_away(q, k, v):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    scores.masked_fill(causal_mask(q.shape[-2]), -torch.inf)
    return scores.softmax(dim=-1) @ v


def ignores_its_mask(q, k, v, mask=None):
    return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(dim=-1) @ v


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (unscaled, "scale"),
        (over_the_queries, "softmax-axis"),
        (keys_twice, "wrong-values"),
        (thrown_away, "future-visible"),
        (ignores_its_mask, "mask-argument"),
    ],
)
def test_a_wrong_function_is_told_by_its_cause(function, code):
    assert codes(check_attention(function)) == [code]
