"""Whose numbers stand where: the faults that move numbers to other tokens, and whom to trust.

Who sees whom is told by the output only where no number has moved to another token. Rules
word what is found here; others ask it to know what they may believe.
"""

import torch

from .facts import fact
from .graph import LOGARITHM

# --- weights and their sums -----------------------------------------------------------------


@fact
def square(s, capture=0):
    """The cores of a capture whose weights are (…, tokens, tokens), or (…, heads, heads)."""
    heads = heads_apart(s) is not None  # by mistake
    shapes = [(core, core.weights.shape[-2:]) for core in s.both_cores[capture]]
    return [
        core
        for core, (rows, columns) in shapes
        if rows == columns and (heads or rows == s.sizes.tokens)
    ]


@fact
def unseen(s):
    """Why the weights cannot be judged, in words; "" where they can."""
    if square(s) or heads_apart(s):
        return ""
    doubt = ""
    if s.constant > 1e-4:
        doubt = ", and equal tokens give outputs that differ (positions do that too)"
    missing = "weights are (tokens, tokens)" if s.cores else "softmax is in sight"
    return f"no {missing}{doubt}"


def sums_to_one(weights, axis):
    """Whether the numbers along an axis add up to one, or to zero in empty rows."""
    sums = weights.sum(dim=axis)
    return bool(((sums - 1).abs().lt(1e-3) | sums.eq(0)).all()) and bool((sums != 0).any())


def wrong_axis(s, core):
    """The axis over which a core's softmax runs, in words, or None where it is the keys'."""
    weights = core.normalised if core.normalised is not None else core.weights
    if sums_to_one(weights, -1) or core.softmaxes > 1:
        return None
    if sums_to_one(weights.flatten(-2), -1):
        return "queries and keys together"
    if abs(weights.sum().item() - 1) < 1e-3:
        return "batch, heads, queries and keys together"
    for axis in range(weights.dim() - 1):
        if sums_to_one(weights, axis) and weights.shape[axis] > 1:
            return _axis_name(s, weights, axis)
    return None


def _axis_name(s, weights, axis):
    if axis == weights.dim() - 2:
        return "queries"
    size, batch = weights.shape[axis], s.sizes.batch
    if size == batch:
        return "batch"
    if size == s.sizes.num_heads or weights.dim() == 4:
        return "heads"
    return "batch or heads"


@fact
def off_axis(s):
    """(core, axis in words) where a softmax runs over another axis than the keys'; or None."""
    for core in square(s):
        if core.fused is None and (axis := wrong_axis(s, core)):
            return core, axis
    return None


def changed_after(core):
    """Whether the weights are changed between the softmax and the values."""
    return core.normalised is not None and not torch.allclose(
        core.weights, core.normalised, atol=1e-5
    )


@fact
def unsummed(s):
    """[(core, why)] whose weights do not add up to one where they meet the values.

    why: "negative", "changed" after the softmax, "raw" scores, "several" softmaxes, or "unseen".
    """
    found = []
    for core in square(s):
        if core.fused is not None:
            continue
        if _negative(s, core):
            found.append((core, "negative"))
        elif sums_to_one(core.weights, -1) or (wrong_axis(s, core) and not changed_after(core)):
            continue
        elif core.softmaxes > 1:
            found.append((core, "several"))
        elif changed_after(core):
            found.append((core, "changed"))
        else:
            raw = core.scores is not None and core.scores.equal(core.weights)
            found.append((core, "raw" if raw else "unseen"))
    return found


def _negative(s, core):
    """Whether weights are below zero, as something else than a softmax made them."""
    if (core.weights >= 0).all() or core.softmaxes > 1:
        return False
    unlike = core.softmaxes == 0 and core.normalised is None
    made = core.scores is None or sums_to_one(core.weights, -1)
    return logarithms(s, core) or (unlike and made)


def logarithms(s, core):
    """Whether log_softmax makes the weights."""
    return any(s.graph.calls[at].name == LOGARITHM for at in core.path)


# --- split and merged -----------------------------------------------------------------------


@fact
def split_cut(s):
    """(core, "queries", "keys" or "values") whose rows hold several tokens' numbers; or None."""
    for core in s.cores:
        for name, operand in zip(("queries", "keys", "values"), core.operands, strict=True):
            if _mixed(s, getattr(core, name), operand):
                return core, name
    return None


def _mixed(s, numbers, operand):
    if numbers.shape[-2] != s.sizes.tokens:
        return False
    origin = s.graph.origin(*operand)
    if not origin.factor or not s.graph.pure(origin) or one_row(numbers):
        return False
    part = numbers.movedim(-2, 0) / origin.factor
    return _moved(share_of_tokens(part, [kept.value for _, kept in origin.sources], s.sizes))


def one_row(numbers):
    """Whether all rows of (…, tokens, width) are the same."""
    return bool((numbers == numbers[..., :1, :]).all())


@fact
def merge_cut(s):
    """Whether a merged row holds the numbers of several tokens."""
    for core in s.cores:
        kept, context = core.context
        merged = s.graph.last_moved(kept, core.at)
        if merged is None or context.shape[-2] != s.sizes.tokens:
            continue
        if _moved(share_of_tokens(context.movedim(-2, 0), [merged.value], s.sizes)):
            return True
    return False


def _moved(shares):
    """Whether the numbers are all there, and not at their own places."""
    return shares is not None and shares[0] < 0.9 and shares[1] > 0.95


@fact
def mixes_batch(s):
    """Whether a split or merge by view mixes sentences, not tokens alone."""
    if not (split_cut(s) or merge_cut(s)):
        return False
    for core in s.cores:
        kept, context = core.context
        merged = s.graph.last_moved(kept, core.at)
        pairs = [(context, merged.value)] if merged is not None else []
        for name, operand in zip(("queries", "keys", "values"), core.operands, strict=True):
            origin = s.graph.origin(*operand)
            if len(origin.sources) == 1 and s.graph.pure(origin):
                pairs.append((getattr(core, name) / origin.factor, origin.sources[0][1].value))
        for part, whole in pairs:
            parts, wholes = (_batch_first(t, s.sizes) for t in (part, whole))
            if parts is not None and wholes is not None and _moved(share_found(parts, wholes)):
                return True
    return False


@fact
def batch_moves(s):
    """(batch, batch): which sentence moves when another changes; None where all are apart.

    Also None where the layout or the softmax is the cause, which has a name of its own.
    """
    if s.sizes.batch == 1:
        return None
    moved = torch.zeros(s.sizes.batch, s.sizes.batch)
    other = 1.5 * s.draw(2)
    for item in range(s.sizes.batch):
        changed = s.x.clone()
        changed[item] = other[item]
        moved[:, item] = s.differs(s.look(changed), s.base)[1].any(dim=1).float().cpu()
    if not (moved - torch.diag(moved.diag())).any() or mixes_batch(s):
        return None
    axes = [wrong_axis(s, core) or "" for core in s.cores]
    return None if any(axis.startswith("batch") for axis in axes) else moved


@fact
def heads_apart(s):
    """The shape of weights between the heads of one token, where no token sees another; or None."""
    tokens = s.sizes.tokens
    if tokens < 2 or (s.influence > 0).fill_diagonal_(False).any():
        return None
    mixed = batch_moves(s) is not None
    for core in s.cores:
        rows, columns = core.weights.shape[-2:]
        if columns != tokens and not (mixed and columns == s.sizes.batch):
            return rows, columns
    return None


@fact
def sees_others(s):
    """Whether any token has a say in the output of another."""
    return heads_apart(s) is not None or bool((s.influence > 0).fill_diagonal_(False).any())


@fact
def one_for_all(s):
    """The letter ("q", "k" or "v") of which one token's row stands for all tokens'; or None."""
    for core in s.cores if s.sizes.tokens > 1 else ():
        for letter, operand in zip("qkv", core.operands, strict=True):
            rows = {"q": core.queries, "k": core.keys, "v": core.values}[letter]
            if rows.shape[-2] != s.sizes.tokens or not one_row(rows):
                continue
            origin = s.graph.origin(*operand)
            made = [t for _, k in origin.sources for t in token_axes(k.value, s.sizes)]
            if s.graph.pure(origin) and made and all((t != t[:1]).any() for t in made):
                return letter
    return None


@fact
def disturbed(s):
    """Whether a number may stand at another token than its own: who sees whom is not told then."""
    return bool(
        split_cut(s)
        or merge_cut(s)
        or off_axis(s)
        or any(why in ("negative", "changed", "raw") for _, why in unsummed(s))
        or heads_apart(s)
        or batch_moves(s) is not None
        or one_for_all(s)
    )


def absent(s):
    """The name of an optional context that forward is called without, or ""."""
    return s.way.optional[0] if s.way.optional else ""


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


def _batch_first(value, sizes):
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
