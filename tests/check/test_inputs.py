"""What `check_attention` takes, and what it refuses in a sentence."""

import pytest
import torch
from bases import Plain, separate
from registry import codes
from torch import nn

from attention_check import check_attention
from attention_course import MultiHeadAttention


@pytest.mark.parametrize(
    ("d_model", "num_heads"), [(6, 2), (16, 4), (10, 1), (8, 8), (12, 3), (768, 12)]
)
def test_a_module_is_taken_as_it_is(d_model, num_heads):
    assert check_attention(MultiHeadAttention(d_model, num_heads, dropout=0.1)).ok
    wrong = separate.but("self.head_dim**0.5", "(self.head_dim + 1)").make(d_model, num_heads)
    assert codes(check_attention(wrong)) == ["scale"]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_another_precision_is_checked_in_float32(dtype):
    module = Plain(24, 4).to(dtype)
    assert check_attention(module).ok
    assert {p.dtype for p in module.parameters()} == {dtype}


class NoLayers(nn.Module):
    def forward(self, q, k, v):
        return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def test_a_module_without_layers_is_judged_at_a_width_that_is_said():
    assert check_attention(NoLayers(), d_model=24).ok


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        ("text", "takes a module"),
        (nn.Module(), "d_model=24"),
        (lambda d_model, num_heads: 1 / 0, "could not be made"),
        (lambda d_model, num_heads: torch.relu, "should return an nn.Module"),
        (nn.Embedding, "token numbers"),
        (lambda d_model, num_heads: nn.Sequential(nn.Embedding(9, d_model)), "token numbers"),
        (MultiHeadAttention(24, 4).to("meta"), "meta"),
        (nn.Linear(24, 24), "No attention is in sight"),
        (
            nn.Sequential(nn.Linear(24, 48), nn.ReLU(), nn.Linear(48, 24)),
            "No attention is in sight",
        ),
    ],
)
def test_what_cannot_be_checked_is_a_sentence(thing, said):
    with pytest.raises(ValueError, match=said):
        check_attention(thing)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"num_heads": "4"}, "num_heads"), ({"d_model": 0}, "d_model"), ({"causal": "yes"}, "causal")],
)
def test_arguments_of_another_kind_are_refused(wrong, said):
    with pytest.raises(ValueError, match=said):
        check_attention(Plain, **wrong)


@pytest.mark.parametrize(
    ("thing", "sizes", "said"),
    [
        (Plain, {"d_model": 25, "num_heads": 4}, "4 heads cannot share d_model = 25"),
        (Plain(24, 4), {"d_model": 25}, "its layers take 24"),
    ],
)
def test_sizes_that_do_not_fit_are_not_blamed_on_the_module(thing, sizes, said):
    with pytest.raises(ValueError, match=said):
        check_attention(thing, **sizes)


class WantsTables(Plain):
    def forward(self, x, tables):
        return super().forward(x) * tables["cos"]


class ContextIsNotOptional(Plain):
    def forward(self, x, context=None):
        return super().forward(x) + context.mean(dim=1, keepdim=True)


@pytest.mark.parametrize(
    ("module", "name"), [(WantsTables, "tables"), (ContextIsNotOptional, "context")]
)
def test_a_module_that_wants_what_the_check_cannot_give_is_not_blamed(module, name):
    with pytest.raises(ValueError, match=f"wants for {name}: wrap it"):
        check_attention(module)


def test_keys_of_another_width_are_asked_for_as_a_context():
    own = {"embed_dim": 24, "num_heads": 4, "batch_first": True}
    for widths in ({"kdim": 20, "vdim": 14}, {"vdim": 20}):
        with pytest.raises(ValueError, match=r"whose forward\(x, context\) calls it"):
            check_attention(nn.MultiheadAttention(**own, **widths))


class OneTokenMore(Plain):
    def forward(self, x):
        return super().forward(torch.cat([x[:, :1], x], dim=1))


def test_a_module_that_adds_a_token_cannot_be_checked():
    with pytest.raises(ValueError, match="6 tokens for 5"):
        check_attention(OneTokenMore)
