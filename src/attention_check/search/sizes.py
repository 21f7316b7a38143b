"""Sizes that all differ, read from a module and chosen for it."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from ..guard import reachable
from .names import CONTEXTS, WIDTHS

BATCH, TOKENS, D_MODEL = 3, 5, 24  # and 4 heads of 6: no two sizes, no two scales equal
CONTEXT, WINDOW = 8, 4


@dataclass(frozen=True)
class Sizes:
    """The sizes of the inputs. num_heads is None where nobody says; context None: no limit."""

    batch: int
    tokens: int
    d_model: int
    num_heads: int | None = None
    context: int | None = None


def attribute(module, names):
    """The first size of one of these names in the module, its parts or their configs, or None."""
    for part in module.modules():
        for holder in (part, getattr(part, "config", None), getattr(part, "cfg", None)):
            found = [getattr(holder, name, None) for name in names]
            if sizes := [size for size in found if _is_size(size)]:
                return sizes[0]
    return None


def _is_size(value):
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def widths(module, given):
    """The widths that an input may have, the likeliest first."""
    if given is not None:
        return [given]
    found = [getattr(module, name, None) for name in WIDTHS]
    parts = [part for _, part in reachable(module) if isinstance(part, nn.Module)]
    for part in [*module.modules(), *parts]:
        found += [getattr(part, name, None) for name in ("embed_dim", "in_features")]
        if isinstance(part, nn.LayerNorm):
            found.append(part.normalized_shape[-1])
    found.append(attribute(module, WIDTHS))
    for parameter in module.parameters():
        if not lazy(parameter) and parameter.dim() >= 2:
            found += sorted(parameter.shape[-2:])  # as transformers' GPT-2 has a layer of its own
    return list(dict.fromkeys(filter(_is_size, found)))


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
    size = tensor.shape[-1] if tensor.dim() > 1 else 0
    if size < 2 or tensor.shape[-2] != size or tensor.numel() != size**2 or tensor.is_complex():
        return False
    square = tensor.detach().reshape(size, size)
    first, last = square[0, -1], square[-1, 0]  # most are told apart by their outer rows
    if (square[0, 2:] != first).any() or (square[-1, :-2] != last).any():
        return False
    pairs = torch.ones(size, size, dtype=torch.bool, device=square.device)
    near = size > 3  # a mask may be wrong by one place
    above, below = square[pairs.triu(1 + near)], square[pairs.tril(-1 - near)]
    return bool((above == first).all() and (below == last).all() and first != last)


def choose_sizes(d_model, num_heads, context):
    """Batch and tokens that equal no other size; tokens shares no factor with the heads."""
    heads, limit = num_heads or 1, context or 10**9
    taken = {1, d_model, num_heads, num_heads and d_model // num_heads}
    fitting = (
        n
        for n in (TOKENS, 7, 6, 9, 8, 4, 3, 2)
        if n <= limit and n not in taken and math.gcd(n, heads) == 1
    )
    tokens = next(fitting, min(TOKENS, limit))
    batch = next(n for n in (BATCH, 2, 4, 7, 9) if n not in taken | {tokens})
    return Sizes(batch, tokens, d_model, num_heads, context)
