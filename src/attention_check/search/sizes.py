"""Sizes that all differ, read from a module and chosen for it."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from ..guard import reachable
from .names import CONTEXTS, HEADS, WIDTHS

BATCH, TOKENS, D_MODEL, NUM_HEADS = 3, 5, 24, 4  # head_dim 6: no two sizes, no two scales equal
CONTEXT = 8


@dataclass(frozen=True)
class Sizes:
    """The sizes of the inputs. num_heads is None where nobody says; context None: no limit."""

    batch: int
    tokens: int
    d_model: int
    num_heads: int | None = None
    context: int | None = None


def find_heads(module):
    """The number of heads that the module itself names, or None."""
    return attribute(module, HEADS)


def attribute(module, names):
    for part in module.modules():
        for holder in (part, getattr(part, "config", None), getattr(part, "cfg", None)):
            for name in names:
                value = getattr(holder, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                    return value
    return None


def widths(module, given):
    """The widths that an input may have, the likeliest first."""
    if given is not None:
        return [given]
    found = [getattr(module, name, None) for name in WIDTHS]
    for part in module.modules():
        if isinstance(part, nn.MultiheadAttention):
            found.append(part.embed_dim)
        elif isinstance(part, nn.Linear | nn.LazyLinear):
            found.append(part.in_features)
        elif isinstance(part, nn.LayerNorm):
            found.append(part.normalized_shape[-1])
    found += [attribute(module, WIDTHS)]
    for _, thing in reachable(module):
        if isinstance(thing, nn.Linear):
            found.append(thing.in_features)
    found += [
        size
        for parameter in module.parameters()
        if not lazy(parameter) and parameter.dim() >= 2
        for size in sorted(parameter.shape[-2:])
    ]
    # GPT-2 of transformers keeps its weights as (in, out) under another class
    numbers = [f for f in found if isinstance(f, int) and not isinstance(f, bool) and f > 0]
    return list(dict.fromkeys(numbers))


def lazy(parameter):
    return isinstance(parameter, nn.parameter.UninitializedParameter)


def find_context(module):
    """The longest input that the module takes, from its square mask or an attribute, or None."""
    return find_mask_size(module) or attribute(module, CONTEXTS)


def find_mask_size(module):
    """The size of the smallest square mask that the module keeps, or None."""
    tensors = [*module.buffers(), *(t for _, t in reachable(module) if isinstance(t, torch.Tensor))]
    return min((t.shape[-1] for t in tensors if is_mask(t)), default=None)


def is_mask(tensor):
    """Whether a tensor is a square triangle: one value above the diagonal, another below."""
    if tensor.dim() < 2 or tensor.shape[-1] != tensor.shape[-2] or tensor.shape[-1] < 2:
        return False
    if tensor.numel() != tensor.shape[-1] ** 2 or tensor.is_complex():
        return False
    square = tensor.detach().reshape(tensor.shape[-2:])
    size = len(square)
    corner = square[0, -1]  # most are told apart by their first and last rows
    if (square[0, 2:] != corner).any() or (square[-1, :-2] != square[-1, 0]).any():
        return False
    square = square.float().cpu()
    above = square[torch.ones(size, size, dtype=torch.bool).triu(1 + (size > 3))]
    below = square[torch.ones(size, size, dtype=torch.bool).tril(-1 - (size > 3))]
    return bool((above == above[0]).all() and (below == below[0]).all() and above[0] != below[0])


def choose_sizes(d_model, num_heads, context):
    """Batch and tokens that equal no other size; tokens shares no factor with the heads."""
    taken = {1, d_model, num_heads, d_model // num_heads if num_heads else None}
    limit = context or 10**9
    tokens = [
        n
        for n in (TOKENS, 7, 6, 9, 8, 4, 3, 2)
        if n <= limit and n not in taken and math.gcd(n, num_heads or 1) == 1
    ] or [min(TOKENS, limit)]
    batch = next(n for n in (BATCH, 2, 4, 7, 9) if n not in taken and n != tokens[0])
    return Sizes(batch, tokens[0], d_model, num_heads, context)
