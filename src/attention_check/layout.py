"""Heads split and merged: which numbers of which token stand where."""

import torch

from .flow import LAYOUT, outputs
from .report import Finding


def split_by_view(s):
    """Heads cut from the buffer: a head's row holds numbers of several tokens."""
    for core in s.cores:
        for name, operand in zip(("queries", "keys", "values"), core.operands, strict=True):
            numbers = getattr(core, name)
            if _mixed(s, numbers, operand):
                return Finding("split-by-view", _cut(s, name, numbers), *_pairs(s))
    return None


def _cut(s, name, numbers):
    """What to say where a view cuts the buffer; numbers: (…, heads, tokens, size)."""
    heads, size = numbers.shape[-3] if numbers.dim() > 2 else 1, numbers.shape[-1]
    if numbers.dim() == 3:  # (batch, …), or the heads in the batch's axis
        heads = max(heads // s.sizes.batch, 1)
    seen = f"The rows of the {name} in one head hold numbers of several tokens: "
    if heads == 1:
        return (
            f"{seen}a view or reshape where a transpose is meant cuts the buffer, and turns "
            f"nothing. Use .mT, or .transpose(-2, -1)."
        )
    return (
        f"{seen}.view(batch, {heads}, tokens, {size}) cuts the buffer, not the heads. Use "
        f".view(batch, tokens, {heads}, {size}), then .transpose(1, 2)."
    )


def _mixed(s, numbers, operand):
    if numbers.shape[-2] != s.sizes.tokens:
        return False
    origin = s.flow.origin(*operand)
    if not origin.factor or not s.flow.pure(origin) or one_row(numbers):
        return False
    part = numbers.movedim(-2, 0) / origin.factor
    shares = share_of_tokens(part, [kept.value for _, kept in origin.sources], s.sizes)
    return shares is not None and shares[0] < 0.9 and shares[1] > 0.95


def one_row(numbers):
    """Whether all rows of (…, tokens, width) are the same."""
    return bool((numbers == numbers[..., :1, :]).all())


def layout_mixes_batch(s):
    """Whether a split or merge by view mixes sentences, not tokens alone."""
    if not (split_by_view(s) or merge_by_view(s)):
        return False
    for core in s.cores:
        kept, context = core.context
        merged = _last_layout(s, kept, core.at)
        pairs = [(context, merged)] if merged is not None else []
        for name, operand in zip(("queries", "keys", "values"), core.operands, strict=True):
            origin = s.flow.origin(*operand)
            if len(origin.sources) == 1 and s.flow.pure(origin):
                pairs.append((getattr(core, name) / origin.factor, origin.sources[0][1].value))
        for part, whole in pairs:
            parts, wholes = (batch_first(t, s.sizes) for t in (part, whole))
            if parts is None or wholes is None:
                continue
            own, altogether = share_found(parts, wholes)
            if own < 0.9 and altogether > 0.95:
                return True
    return False


def merge_by_view(s):
    """Heads merged without transposing back: a token of the result holds several tokens."""
    for core in s.cores:
        kept, context = core.context
        merged = _last_layout(s, kept, core.at)
        if merged is None or context.shape[-2] != s.sizes.tokens:
            continue
        shares = share_of_tokens(context.movedim(-2, 0), [merged], s.sizes)
        if shares is not None and shares[0] < 0.9 and shares[1] > 0.95:
            return Finding(
                "merge-by-view",
                "The merged row of a token holds numbers of several tokens: the context is not "
                "(batch, tokens, num_heads, head_dim) when it is merged. From (batch, num_heads, "
                "tokens, head_dim): context.transpose(1, 2).reshape(batch, tokens, d_model).",
                *_pairs(s),
            )
    return None


def _last_layout(s, kept, at):
    """The last tensor that follows from the context by changes of layout alone."""
    last, moved = None, True
    while moved:
        moved = False
        for user in s.flow.users(kept, at):
            call = s.flow.calls[user]
            if call.name in LAYOUT and outputs(call) and call.name not in ("chunk", "split"):
                kept, at, moved = outputs(call)[0], user, True
                last = kept.value
                break
    return last


def heads_attend_heads(s):
    """Scores between the heads of one token: no token sees another."""
    seen = s.influence > 0
    apart = ~torch.eye(s.sizes.tokens, dtype=torch.bool)
    if (seen & apart).any() or s.sizes.tokens < 2:
        return None
    for core in s.cores:
        rows, columns = core.weights.shape[-2:]
        if columns != s.sizes.tokens and not (
            "batch-mixed" in s.found and columns == s.sizes.batch
        ):
            return Finding(
                "heads-attend-heads",
                f"Token {s.sizes.tokens - 1} ignores tokens 0 to {s.sizes.tokens - 2}: the "
                f"scores are ({rows}, {columns}), heads with heads, where (tokens, tokens) = "
                f"({s.sizes.tokens}, {s.sizes.tokens}) was meant. Put the heads before the "
                f"tokens: .transpose(1, 2) after the split.",
                *_pairs(s),
            )
    return None


def _pairs(s):
    return (s.influence > 0).float(), "which output row (row) moves when a token (column) changes"


# --- whose numbers are these ----------------------------------------------------------------


def token_axes(value, sizes):
    """The numbers with the tokens' axis first, in each way that the sizes allow."""
    batch, tokens = sizes.batch, sizes.tokens
    found = []
    if value.dim() and value.shape[0] == batch * tokens and batch > 1:
        found.append(value.unflatten(0, (batch, tokens)).movedim(1, 0))
        found.append(value.unflatten(0, (tokens, batch)))
    found += [value.movedim(axis, 0) for axis in range(value.dim()) if value.shape[axis] == tokens]
    return found


def batch_first(value, sizes):
    """The numbers with the batch's axis first, or None where no axis is the batch's."""
    if sizes.batch in value.shape:
        return value.movedim(list(value.shape).index(sizes.batch), 0)
    if value.dim() and value.shape[0] % sizes.batch == 0:
        return value.unflatten(0, (sizes.batch, -1))
    return None


def share_of_tokens(part, wholes, sizes):
    """(own, all): the share of each token's numbers that is found in the same token of the
    wholes, and in the wholes altogether; the best way to read them counts. None: cannot tell.

    part: (tokens, …). wholes: tensors that together hold the numbers.
    """
    read = [token_axes(whole, sizes) for whole in wholes]
    if not read or not all(read):
        return None
    shares = []
    for way in range(min(len(ways) for ways in read)):
        whole = torch.cat([ways[way].flatten(1) for ways in read], dim=1)
        shares.append(share_found(part, whole))
    return max(shares)


def share_found(part, whole):
    """For parts and wholes (tokens, …): the share of each token's numbers that is found in the
    same token of the whole, and in the whole altogether."""
    own = torch.stack([_found(a, b) for a, b in zip(part, whole, strict=True)]).mean()
    return own.item(), _found(part, whole).item()


def _found(part, whole):
    part, whole = part.flatten().double(), whole.flatten().double().sort().values
    at = torch.searchsorted(whole, part).clamp(1, max(len(whole) - 1, 1))
    if len(whole) < 2:
        return ((whole - part).abs() < 1e-5).double().mean()
    near = torch.minimum((whole[at] - part).abs(), (whole[at - 1] - part).abs())
    return (near <= 2e-6 * part.abs() + 1e-9).double().mean()
