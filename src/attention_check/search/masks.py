"""How a mask can be written: every convention, and every shape."""

import itertools
from dataclasses import dataclass

import torch

from .names import LENGTHS

FOUR_AXES = "(batch, 1, 1, tokens)"  # of padding, beside the scores of each head


@dataclass(frozen=True)
class Convention:
    """A way to say which pairs are hidden: words for the learner, and the mask itself."""

    words: str
    shape: str
    mask: torch.Tensor


def conventions(subject, hidden, name=""):
    """All masks that hide the same; of an argument for lengths, the lengths.

    hidden: (tokens, tokens), (batch, tokens, tokens), or (batch, tokens) for padding.
    """
    if LENGTHS.search(name):
        lengths = (~hidden).sum(-1) if hidden.dim() == 2 else hidden[:, :0].sum(-1)
        padded = torch.arange(hidden.shape[-1]) >= lengths[:, None]
        fits = len(hidden) == subject.sizes.batch and torch.equal(padded, hidden)
        return [Convention("numbers of tokens", "(batch,)", lengths.to(subject.device))] * fits
    return [
        Convention(words, shape, mask.to(subject.device))
        for shape, spread in _shapes(hidden, subject.sizes.batch)
        for words, mask in _kinds(spread, subject.dtype)
    ]


def _shapes(hidden, batch):
    if hidden.dim() == 2 and hidden.shape[0] == batch != hidden.shape[1]:
        yield "(batch, tokens)", hidden
        yield FOUR_AXES, hidden[:, None, None]
        yield "(batch, 1, tokens)", hidden[:, None]
        return
    if hidden.dim() == 2:
        yield "(tokens, tokens)", hidden
        hidden = hidden.expand(batch, *hidden.shape)
    yield "(batch, 1, tokens, tokens)", hidden[:, None]
    yield "(batch, tokens, tokens)", hidden


def _kinds(hidden, dtype):
    yield "Boolean, True = hidden", hidden
    yield "Boolean, True = keep", ~hidden
    yield "1 = keep, 0 = hidden", (~hidden).long()
    yield "0 = keep, 1 = hidden", hidden.long()
    yield "1.0 = keep, 0.0 = hidden", (~hidden).to(dtype)
    yield "0.0 = keep, 1.0 = hidden", hidden.to(dtype)
    far = torch.zeros(hidden.shape, dtype=dtype).masked_fill(hidden, -torch.inf)
    yield "0 and -inf, added to the scores", far


def masks_to_run(subject):
    """Yield {name: mask} in all shapes, to find one with which forward runs at all.

    Boolean masks are taken by nearly all, and numbers by the rest. What they hide is not asked.
    """
    sizes, names = subject.sizes, subject.way.required
    shapes, padding = (
        [shape for _, shape in _shapes(torch.zeros(rows, sizes.tokens), sizes.batch)]
        for rows in (sizes.tokens, sizes.batch)
    )
    padding = padding if sizes.batch > 1 else []
    likely = [padding + shapes if "pad" in name.lower() else shapes + padding for name in names]
    lengths = torch.full((sizes.batch,), sizes.tokens)
    likely = [
        [lengths] if LENGTHS.search(name) else some
        for name, some in zip(names, likely, strict=True)
    ]
    for dtype in (torch.bool, torch.float32):
        for chosen in itertools.product(*likely):
            masks = [
                mask.to(subject.device, mask.dtype if mask is lengths else dtype) for mask in chosen
            ]
            yield dict(zip(names, masks, strict=True))


def constant_masks(subject):
    """Yield {name: mask} with the masks that say, in one convention or another: hide nothing."""
    given = {n: mask for n, mask in subject.masks.items() if not LENGTHS.search(n)}
    kinds = [mask for _, mask in _kinds(torch.tensor(False), subject.dtype)]
    values = list({(mask.dtype, mask.item()): mask for mask in kinds}.values())
    chosen = itertools.product(range(len(values)), repeat=len(given))
    for numbers in sorted(chosen, key=lambda numbers: len(set(numbers))):  # one for all first
        yield subject.masks | {
            name: values[number].expand(mask.shape).clone().to(mask.device)
            for (name, mask), number in zip(given.items(), numbers, strict=True)
        }
