"""Heads split and merged: which numbers of which token stand where."""

import torch

from ..findings import Finding, Note, Unjudged
from ..trust import heads_apart, merge_cut, split_cut, unseen
from .registry import rule


@rule("split-by-view")
def split_by_view(s):
    """The heads are cut out of the buffer: a head's row holds numbers of several tokens.

    queries = queries.view(batch, num_heads, tokens, head_dim)
    """
    if not (cut := split_cut(s)):
        return Unjudged(unseen(s)) if unseen(s) else None
    core, name = cut
    numbers = getattr(core, name)  # (…, heads, tokens, size)
    heads, size = numbers.shape[-3] if numbers.dim() > 2 else 1, numbers.shape[-1]
    if numbers.dim() == 3:  # (batch, …), or the heads in the batch's axis
        heads = max(heads // s.sizes.batch, 1)
    advice = (
        f".view(batch, {heads}, tokens, {size}) cuts the buffer, not the heads. Use "
        f".view(batch, tokens, {heads}, {size}), then .transpose(1, 2)."
    )
    if heads == 1:
        advice = (
            "a view or reshape where a transpose is meant cuts the buffer, and turns nothing. "
            "Use .mT, or .transpose(-2, -1)."
        )
    said = f"The rows of the {name} in one head hold numbers of several tokens: {advice}"
    return Finding(said, *_pairs(s))


@rule("input-cut")
def input_cut(s):
    """Each head sees only a slice of the token: the input is cut before the projection.

    slices = x.chunk(num_heads, dim=-1)
    contexts = [head(part) for head, part in zip(self.heads, slices)]
    """
    if s.sizes.tokens < 2:
        return None
    width, heads = s.sizes.d_model, s.sizes.num_heads
    counts = [heads] if heads and heads > 1 and width % heads == 0 else []
    counts += [n for n in (2, 3, 5, 7) if width % n == 0 and n != heads]
    for count, strided in ((n, strided) for n in counts for strided in (False, True)):
        found = _second_difference(s, count, strided)
        if found is None:
            continue
        each = width // count
        part = f"every {count}th" if strided else f"{each} consecutive"
        whole = f"a part of the {width} numbers"
        if count == heads:
            whole = f"{each} of the {width} numbers"
        if count == heads and _one_for_all_heads(s, each):
            return Note(
                f"One projection of {each} numbers serves all heads, each on its own slice of a "
                f"token, so that no head sees the whole token: a variant with fewer weights."
            )
        return Finding(
            f"Each head sees only {whole} of a token ({part}): the input is cut before "
            f"the projection, so no head can compare one slice with another. Project "
            f"the whole token with Linear({width}, {width}), then split the result.",
            found,
            "how far two slices of a token act together (0 = not at all)",
        )
    return None


def _one_for_all_heads(s, width):
    """Whether every matrix is as narrow as a head, and there is not one for each head."""
    shapes = [tuple(w.shape) for w in s.weights.values() if w.dim() == 2]
    return len(shapes) <= 3 and all(min(shape) == width for shape in shapes)


def _second_difference(s, count, strided):
    """The (count, count) second differences where all between two slices are zero, or None."""
    tokens, width = s.sizes.tokens, s.sizes.d_model
    token = tokens - 2 if tokens > 2 else 0
    other, places = 1.5 * s.draw(4)[:, token], torch.arange(width, device=s.device)
    numbers = places % count if strided else places // (width // count)
    slices = [numbers == n for n in range(min(count, 4))]

    def moved(*chosen, by=1):
        x = s.x.clone()
        for mask in chosen:
            x[:, token] += by * torch.where(mask, other, 0.0)
        return s.look(x)

    single = [moved(mask) for mask in slices[:2]]
    result = torch.zeros(len(slices), len(slices))
    for a in range(1, len(slices)):
        if a > 1:
            single.append(moved(slices[a]))
        for b in range(a):
            both = moved(slices[a], slices[b]) - single[a] - single[b] + s.base
            result[a, b] = result[b, a] = (both.abs().max() / s.size).item()
            if result[a, b] > 2e-5:
                return None
    # a module that is linear in the token has no second difference at all: not this fault
    own = (moved(slices[0], by=2) - 2 * single[0] + s.base).abs().max() / s.size
    return result.round(decimals=4) if own > 1e-3 else None


@rule("merge-by-view")
def merge_by_view(s):
    """The heads are merged without being moved back: a merged row holds several tokens.

    context = context.reshape(batch, tokens, d_model)   # of (batch, heads, tokens, head_dim)
    """
    if not merge_cut(s):
        return Unjudged(unseen(s)) if unseen(s) else None
    return Finding(
        "The merged row of a token holds numbers of several tokens: the context is not "
        "(batch, tokens, num_heads, head_dim) when it is merged. From (batch, num_heads, "
        "tokens, head_dim): context.transpose(1, 2).reshape(batch, tokens, d_model).",
        *_pairs(s),
    )


@rule("heads-attend-heads")
def heads_attend_heads(s):
    """The scores stand between the heads of one token: no token sees another.

    queries = queries.view(batch, tokens, num_heads, head_dim)      # and no transpose
    scores = queries @ keys.mT                  # (batch, tokens, heads, heads)
    """
    if not (shape := heads_apart(s)):
        return None
    tokens = s.sizes.tokens
    return Finding(
        f"Token {tokens - 1} ignores tokens 0 to {tokens - 2}: the scores are ({shape[0]}, "
        f"{shape[1]}), heads with heads, where (tokens, tokens) = ({tokens}, {tokens}) was "
        f"meant. Put the heads before the tokens: .transpose(1, 2) after the split, and back "
        f"before the merge.",
        *_pairs(s),
    )


def _pairs(s):
    return (s.influence > 0).float(), "which output row (row) moves when a token (column) changes"
