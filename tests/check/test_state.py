"""The caller's module, modes and random state are as they were."""

import random
import threading

import numpy
import pytest
import torch
from bases import Plain

from attention_check import check_attention


class Uncopyable(Plain):
    def __init__(self, d_model, num_heads):
        super().__init__(d_model, num_heads)
        self.lock, self.kept = threading.Lock(), self.q(torch.randn(2, d_model))


class NeverCopied(Plain):
    def __deepcopy__(self, memo):
        raise RuntimeError("not copied")


@pytest.mark.parametrize("kind", [Plain, Uncopyable, NeverCopied])
def test_the_callers_state_is_as_it_was(kind):
    module, called = kind(24, 4).train(), []
    module(torch.randn(2, 5, 24)).sum().backward()
    module.register_forward_hook(lambda *_: called.append(1))
    weights = [p.clone() for p in module.parameters()]
    grads = [p.grad.clone() for p in module.parameters()]
    torch.manual_seed(3)
    random.seed(3)
    numpy.random.seed(3)
    states = torch.get_rng_state(), random.getstate(), numpy.random.get_state()[1].tolist()
    torch.set_default_dtype(torch.float64)
    try:
        assert check_attention(module).ok
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), numpy.random.get_state()[1].tolist())
    assert not called
    assert len(module._forward_hooks) == 1
    assert module.training
    assert all(map(torch.equal, weights, module.parameters()))
    assert all(torch.equal(g, p.grad) for g, p in zip(grads, module.parameters(), strict=True))


def test_inference_mode_and_autocast_of_the_caller_do_not_matter():
    module = Plain(24, 4)
    with torch.inference_mode():
        assert check_attention(module).ok
        assert check_attention(Plain).ok
        assert torch.is_inference_mode_enabled()
    with torch.autocast("cpu", torch.bfloat16):
        assert check_attention(module).ok
