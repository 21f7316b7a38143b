"""Heads split and merged: which numbers of which token stand where."""

from itertools import product

import torch

from ..findings import Finding, Note
from ..trust import heads_apart, merge_cut, misspelt, split_cut, unseen
from .registry import rule


@rule("split-by-view")
def split_by_view(s):
    """The heads are cut out of the buffer: a head's row holds numbers of several tokens.

    queries = queries.view(batch, num_heads, tokens, head_dim)
    """
    if not (cut := split_cut(s)):
        return unseen(s)
    core, name = cut
    shape = getattr(core, name).shape  # (…, heads, tokens, size), or heads in the batch's axis
    heads, size = shape[:-2].numel() // s.sizes.batch, shape[-1]
    advice = (
        f".view(batch, {heads}, tokens, {size}) cuts the buffer, not the heads. Use "
        f".view(batch, tokens, {heads}, {size}), then .transpose(1, 2)."
    )
    if heads < 2:
        advice = "a view cuts the buffer, and turns nothing. Use .mT, or .transpose(-2, -1)."
    said = f"The rows of the {name} in one head hold numbers of several tokens: {advice}"
    return Finding(said, *_pairs(s))


@rule("input-cut")
def input_cut(s):
    """Each head sees only a slice of the token: the input is cut before the projection.

    contexts = [head(part) for head, part in zip(self.heads, x.chunk(num_heads, dim=-1))]
    """
    width, heads, places = s.sizes.d_model, s.sizes.num_heads, torch.arange(s.sizes.d_model)
    counts = [n for n in dict.fromkeys((heads, 2, 3, 5, 7)) if n and n > 1 and width % n == 0]
    for strided in (False, True) if s.sizes.tokens > 1 and not misspelt(s) else ():
        ends = (places == n for n in (0, 1 if strided else width - 1))
        if _together(s, *ends) > 2e-5:
            continue  # whatever the count, these two would stand in two slices
        for count in counts:
            numbers = places % count if strided else places // (width // count)
            slices = [numbers == n for n in range(min(count, 4))]
            pairs = [_together(s, *pair) for pair in product(slices, repeat=2)]
            found = torch.tensor(pairs).view(len(slices), -1)
            # linear in the token, and nothing acts together with itself: not this fault
            if (found - found.diag().diag()).max() > 2e-5 or found[0, 0] < 1e-3:
                continue
            if count == heads and _one_for_all_heads(s, width // count):
                return Note(
                    f"One projection of {width // count} numbers serves all heads, each on its own "
                    f"slice of a token, so that no head sees the whole token: a variant with fewer "
                    f"weights."
                )
            part = f"every {count}th" if strided else f"{width // count} consecutive"
            some = width // count if count == heads else "a part"
            return Finding(
                f"Each head sees only {some} of the {width} numbers of a token ({part}): the input "
                f"is cut before the projection, so no head can compare one slice with another. "
                f"Project the whole token with Linear({width}, {width}), then split the result.",
                found.round(decimals=4),
                "how far two slices of a token act together (0 = not at all)",
            )
    return None


def _one_for_all_heads(s, width):
    """Whether every matrix is as narrow as a head, and there is not one for each head."""
    shapes = [tuple(w.shape) for w in s.weights.values() if w.dim() == 2]
    return len(shapes) <= 3 and all(min(shape) == width for shape in shapes)


def _together(s, first, second):
    """The second difference of the output by two parts of a token, in parts of its size."""
    token, outputs = max(s.sizes.tokens - 2, 0), []
    for part in (first.int() + second.int(), first.int(), second.int()):
        x = s.x.clone()
        x[:, token] += 1.5 * s.draw(4)[:, token] * part.to(x)
        outputs.append(s.look(x))
    both, one, other = outputs
    return ((both - one - other + s.base).abs().max() / s.size).item()


@rule("merge-by-view")
def merge_by_view(s):
    """The heads are merged without being moved back: a merged row holds several tokens.

    context = context.reshape(batch, tokens, d_model)   # of (batch, heads, tokens, head_dim)
    """
    if not merge_cut(s):
        return unseen(s)
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
