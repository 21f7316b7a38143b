"""A copy that is ready to be run, with random weights."""

import math

import torch
from torch import nn

from ..guard import copy_module, reachable, weights_of
from .sizes import is_mask, lazy


def prepare(module, dtype=torch.float32):
    """Return a copy in evaluation mode with `dtype` numbers and gradients on."""
    copied = copy_module(module)
    with torch.no_grad():
        for _, thing in [("", copied), *reachable(copied)]:
            if isinstance(thing, nn.Module):
                # not by to(): a class may have a method of that name, and complex tables stay so
                nn.Module._apply(thing, lambda t: t.to(dtype) if t.is_floating_point() else t)
                nn.Module.train(thing, False)
            elif thing.is_floating_point():
                thing.data = thing.data.to(dtype)
    for parameter in copied.parameters():
        if _random(parameter):
            parameter.requires_grad_(True)
    return copied


def _random(weight):
    return not lazy(weight) and weight.is_floating_point() and not is_mask(weight)


def randomise(module, d_model, seed):
    """Fill the weights with random numbers of the usual spread, 1 / √fan_in.

    Numbers and vectors (biases, norms, temperatures) keep their values, stirred by a tenth.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in filter(_random, weights_of(module).values()):
            noise = torch.randn(weight.shape, generator=generator).to(weight)
            if weight.dim() >= 2:
                weight.data = noise / math.sqrt(fan_in(weight, d_model))
            else:
                kept = weight.data.nan_to_num(0.0, 0.0, 0.0).clamp(-100, 100)
                weight.data = kept + 0.1 * noise


def fan_in(weight, d_model):
    """How many numbers one output of the weight adds up: 1 for a gain."""
    return d_model if d_model in weight.shape else (1, *weight.shape)[-1]
