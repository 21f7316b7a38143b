"""The three kinds of position against their definitions."""

import math

import pytest
import torch

from attention_course import LearnedPositions, rotary, sinusoidal


def test_sinusoidal_is_the_papers_formula():
    tokens, d_model = 7, 10
    waves = sinusoidal(tokens, d_model)
    for place in range(tokens):
        for i in range(d_model // 2):
            angle = place / 10000 ** (2 * i / d_model)
            assert waves[place, 2 * i].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert waves[place, 2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_rotary_products_depend_on_the_distance_alone():
    torch.manual_seed(0)
    query, key = torch.randn(2, 6, dtype=torch.float64)
    tokens = 9
    turned_queries = rotary(query.expand(tokens, 6))
    turned_keys = rotary(key.expand(tokens, 6))
    scores = turned_queries @ turned_keys.mT
    for distance in range(-tokens + 1, tokens):
        along = scores.diagonal(distance)
        torch.testing.assert_close(along, along[:1].expand_as(along), atol=1e-6, rtol=0)
    assert (scores[0] - scores[0, 0]).abs()[1:].min() > 1e-3  # and it does depend on it


def test_rotary_turns_and_does_not_stretch():
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 8)
    torch.testing.assert_close(rotary(x).norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(rotary(x)[..., 0, :], x[..., 0, :])  # place 0 is not turned
    assert rotary(x).dtype == x.dtype


def test_learned_positions_are_added_and_trainable():
    torch.manual_seed(0)
    positions = LearnedPositions(7, 4)
    x = torch.randn(2, 5, 4)
    torch.testing.assert_close(positions(x) - x, positions.vectors[:5].expand(2, 5, 4))
    assert [name for name, _ in positions.named_parameters()] == ["vectors"]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: sinusoidal(4, 5), "even width, but it is 5: 6 would work"),
        (lambda: sinusoidal(0, 4), "tokens must be a whole number"),
        (lambda: rotary(torch.zeros(2, 3)), "even width, but it is 3"),
        (lambda: LearnedPositions(3, 4)(torch.zeros(1, 5, 4)), r"3 learned .* 5 tokens"),
        (lambda: LearnedPositions(0, 4), "max_tokens must be"),
    ],
)
def test_unsuitable_input_gets_a_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()
