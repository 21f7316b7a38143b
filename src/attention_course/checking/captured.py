"""Tests that look at the numbers on their way: they name the cause of what the output shows."""

import math
import re

import torch
from torch import nn

from .blackbox import _listed, sums_to_one, wrong_axis
from .calling import is_mask
from .flow import LAYOUT, POSITIVE, batch_first, fused_mask, outputs, share_found, share_of_tokens
from .guard import reachable
from .report import Finding

# --- layout ---------------------------------------------------------------------------------


def split_by_view(s):
    """Heads cut from the buffer: a head's row holds numbers of several tokens."""
    for core in s.cores:
        for name, operand in zip(("queries", "keys", "values"), core.operands, strict=True):
            numbers = getattr(core, name)
            if _mixed(s, numbers, operand):
                heads = numbers.shape[-3] if numbers.dim() > 2 else "heads"
                size = numbers.shape[-1]
                return Finding(
                    "split-by-view",
                    f"The rows of the {name} in one head hold numbers of several tokens: "
                    f".view(batch, {heads}, tokens, {size}) cuts the buffer, not the heads. Use "
                    f".view(batch, tokens, {heads}, {size}), then .transpose(1, 2).",
                    *_pairs(s),
                )
    return None


def _mixed(s, numbers, operand):
    if numbers.shape[-2] != s.sizes.tokens:
        return False
    origin = s.flow.origin(*operand)
    if not origin.factor or not s.flow.pure(origin):
        return False
    part = numbers.movedim(-2, 0) / origin.factor
    shares = share_of_tokens(part, [kept.value for _, kept in origin.sources], s.sizes)
    return shares is not None and shares[0] < 0.9 and shares[1] > 0.95


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
                "The merged row of a token holds numbers of several tokens: the context is "
                "(batch, num_heads, tokens, head_dim) when it is merged by a view. Go back "
                "first: context.transpose(1, 2), then .reshape(batch, tokens, d_model).",
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


# --- axis -----------------------------------------------------------------------------------


def softmax_axis(s):
    """The weights add up to one along another axis than the keys'."""
    if not _square(s) and "heads-attend-heads" not in s.found:
        doubt = ""
        if s.constant > 1e-4:
            doubt = ", and equal tokens give outputs that differ (positions do that too)"
        s.tell(
            f"layout and sums of the weights not judged, because the softmax is not in sight{doubt}"
        )
    for core in _square(s):
        if core.fused is None and (axis := wrong_axis(s, core)):
            weights = core.normalised if core.normalised is not None else core.weights
            sums = weights.reshape(-1, *weights.shape[-2:])[0].sum(dim=-1)
            what = {"queries": "Columns sum to one, not rows"}.get(
                axis, f"The weights sum to one over the {axis}, not along a row of keys"
            )
            mixes = " One sentence sees another that way." if axis.startswith("batch") else ""
            return Finding(
                "softmax-axis",
                f"{what}: the rows of the first head sum to "
                f"{_listed([f'{v:.2f}' for v in sums.tolist()])}.{mixes} Use dim=-1 in the "
                f"softmax.",
                sums,
                "sum of each row of weights, sentence 0, head 0",
            )
    return None


def not_normalised(s):
    """The weights that meet the values do not add up to one."""
    for core in _square(s):
        if core.fused is not None or sums_to_one(core.weights, -1):
            continue
        if wrong_axis(s, core) and not _changed_after(core):
            continue
        if core.softmaxes > 1:
            s.tell("the sum of the weights was not judged, because there are several softmaxes")
            continue
        names = {s.flow.calls[at].name for at in core.path}
        sums = core.weights.reshape(-1, *core.weights.shape[-2:])[0].sum(dim=-1)
        if _changed_after(core):
            return Finding("not-normalised", _after(core, sums), sums, "sum of each row of weights")
        if core.normalised is None and not names & POSITIVE:
            return Finding(
                "not-normalised",
                "No softmax: the raw scores meet the values, and their rows sum to "
                f"{_listed([f'{v:.2f}' for v in sums.tolist()])}. weights = "
                "scores.softmax(dim=-1).",
                sums,
                "sum of each row of weights",
            )
        s.tell(
            "the sum of the weights was not judged, because the softmax cannot be seen or has "
            "an entry for no token"
        )
    return None


def _changed_after(core):
    """Whether the weights are changed between the softmax and the values."""
    return core.normalised is not None and not torch.allclose(
        core.weights, core.normalised, atol=1e-5
    )


def divided_after(core):
    """The one factor between what the softmax gave and the weights; None where there is none."""
    if core.normalised is None:
        return None
    ratio = core.weights / core.normalised
    ratio = ratio[core.normalised > 1e-6]
    one = ratio.max() - ratio.min() < 1e-4 * ratio.abs().max()
    return ratio.mean().item() if one else None


def _after(core, sums):
    if factor := divided_after(core):
        return (
            f"Each row of weights sums to {sums[0]:.3g} instead of 1: they are multiplied by "
            f"{factor:.3g} after the softmax. Divide the scores by √head_dim *before* it."
        )
    return (
        f"The rows of weights sum to {_listed([f'{v:.2f}' for v in sums.tolist()])} when they "
        f"meet the values: weights are set to zero after the softmax. Put -inf in the scores "
        f"before it, so that the rest still sums to one."
    )


def _square(s):
    """The cores whose weights are (…, tokens, tokens), or (…, heads, heads) by mistake."""
    heads = "heads-attend-heads" in s.found
    shapes = [(core, core.weights.shape[-2:]) for core in s.cores]
    return [
        core
        for core, (rows, columns) in shapes
        if rows == columns and (heads or rows == s.sizes.tokens)
    ]


# --- pair -----------------------------------------------------------------------------------


def wrong_pair(s):
    """W_query or W_key has no effect: the scores are made of something else."""
    for letter, name in s.idle:
        if letter in "qk":
            return _idle(s, "wrong-pair", letter, name)
    return None


def wrong_values(s):
    """W_value has no effect: the weights meet something else."""
    for letter, name in s.idle:
        if letter == "v":
            return _idle(s, "wrong-values", letter, name)
    return None


_ROLES = {"q": "queries", "k": "keys", "v": "values"}


def _idle(s, code, letter, name):
    taken = _taken(s)
    if code == "wrong-values":
        advice = f"the weights meet {taken or 'something else'} in place of the values"
        fix = "context = weights @ values"
    else:
        advice = f"the scores use {taken or 'something else'} in place of the {_ROLES[letter]}"
        fix = "scores = queries @ keys.mT"
    return Finding(
        code, f"Changing {name} changes nothing, with one token or five: {advice}. {fix}."
    )


def _taken(s):
    """Which operand stands twice, in words."""
    for core in s.cores:
        ids = [_source_ids(s, operand) for operand in core.operands]
        if ids[0] and ids[0] == ids[1]:
            return "one projection twice"
        if ids[2] and ids[1] == ids[2]:
            return "one projection for keys and values"
        if ids[2] and ids[0] == ids[2]:
            return "one projection for queries and values"
        if any(at is None for at, _ in s.flow.origin(*core.operands[2]).sources):
            return "the input x"
    return None


def _source_ids(s, operand):
    return {id(kept.tensor) for _, kept in s.flow.origin(*operand).sources}


def find_idle(s):
    """[(letter, label)] of each projection, or part of a fused one, that no output depends on.

    letter: "q", "k" or "v". A layer that holds its place in the scores or at the values is not
    idle for that, only for a reason that another test names.
    """
    if s.sizes.tokens < 2 or not s.sees_others:
        return []
    names = [name for name, weight in s.weights.items() if _matrix(weight)]
    found = []
    for name in names:
        weight, gradient = s.weights[name], s.slopes.get(name)
        if name.endswith("bias") or _norm_like(name):
            continue
        named = letter_of(name) or (None if _out_like(name) else _by_order(s, name, names))
        for letter, label, rows in _parts(name, weight, gradient, named):
            if rows is None and gradient is not None and _strong(gradient, s):
                continue
            if letter and not s.moves(weight, rows) and not _in_place(s, letter, weight, rows):
                found.append((letter, label))
    return found


def _matrix(weight):
    return weight.dim() >= 2 and weight.is_floating_point()


def _norm_like(name):
    return bool(re.search(r"norm|\bln", name.lower()))


def _strong(gradient, s):
    return gradient.abs().max().item() > 1e-3 * s.size


def _parts(name, weight, gradient, letter):
    """(letter, label, rows) for a weight, or for the rows of a fused one without a gradient."""
    if letter or weight.dim() != 2 or gradient is None:
        yield letter, name.removesuffix(".weight"), None
        return
    for axis in (0, 1):
        idle = gradient.abs().amax(dim=1 - axis) == 0
        count = int(idle.sum())
        if not count or (parts := round(len(idle) / count)) not in (2, 3):
            continue
        places = idle.nonzero().flatten().tolist()
        run = next(n for n in range(1, len(idle)) if places[0] + n not in places)
        # q, k and v one after another, for all heads or for each head in turn
        letter = ("kv" if parts == 2 else "qkv")[places[0] // run % parts]
        rows = idle[:, None] if axis == 0 else idle[None, :]
        words = "to" if run == len(places) else "and so on to"
        label = f"rows {places[0]} {words} {places[-1]} of {name} ({_ROLES[letter]})"
        yield letter, label, rows


_LETTER = re.compile(
    r"^(?:w|to|lin|linear|proj|fc|layer|trainable|in)?_?(queries|query|q|keys|key|k|values|value|"
    r"val|v)(?:_?(?:proj|projection|w|weight|linear|lin|layer|net|map|s|fc|transform|heads?|"
    r"matrix))?\d*$"
)


def letter_of(path):
    """ "q", "k" or "v" by the layer's name, or None."""
    for part in reversed(path.split(".")):
        name = re.sub(r"\[.*\]", "", part).lower()
        if match := _LETTER.match(name):
            return match[1][0]
    return None


def _out_like(path):
    return bool(re.search(r"out|proj$|proj\.|w_?o\b|fc|mlp|ff|merge|mix", path.lower()))


def _by_order(s, name, names):
    """The letter by the order of three like weights, for layers named a, b, c."""
    like = [n for n in names if s.weights[n].shape == s.weights[name].shape and not _out_like(n)]
    if len(like) in (3, 4) and all(letter_of(n) is None for n in like) and name in like[:3]:
        return "qkv"[like.index(name)]
    return None


def _in_place(s, letter, weight, rows):
    """Whether a layer holds its place: in the scores for q and k, at the values for v."""
    if not s.cores:
        return False
    if rows is None:
        operands = [core.operands[2:] if letter == "v" else core.operands[:2] for core in s.cores]
        return any(id(weight) in s.flow.leaves(*o) for pair in operands for o in pair)
    for core in s.cores:
        ids = [_source_ids(s, operand) for operand in core.operands]
        fused = [_rows_of(core, name) for name in ("queries", "keys", "values")]
        if letter in "qk" and _same_numbers(fused[0], fused[1]):
            return False
        if any(_same_numbers(fused[a], fused[2]) for a in (0, 1)):
            return False
        given = [
            any(
                at is None and kept.tensor is s.flow.given
                for at, kept in s.flow.origin(*operand).sources
            )
            for operand in core.operands
        ]
        if any(given) or not all(ids):
            return False
    return True


def _rows_of(core, name):
    return getattr(core, name)


def _same_numbers(first, second):
    if first.numel() != second.numel():
        return False
    a, b = first.flatten().sort().values, second.flatten().sort().values
    ratio = (a @ b) / (b @ b).clamp_min(1e-12)
    return torch.allclose(a, ratio * b, rtol=1e-3, atol=1e-5)


# --- mask -----------------------------------------------------------------------------------


def future_visible(s):
    """Every future pair is visible: the mask has no effect."""
    kind, pairs = s.mask_kind
    if kind == "causal" and s.causal is not False:
        return _in_training(s)
    if kind == "window" and s.causal is not True:
        s.note("window", "Each token sees those near it, before and after: a two-way window.")
        return None
    if kind not in ("all", "some", "window"):
        return None
    intent = s.causal is True or (s.causal is None and (kind == "some" or s.mask_in_sight))
    if kind == "all" and not intent:
        if s.causal is None and not s.way.masks:
            s.note("two-way", "Every token sees every other, and no mask is in sight: two-way.")
        return None
    if kind == "some" and (s.causal is False or s.diagonal_hidden):
        return None
    if s.masked_by_argument:
        return None
    first = (pairs & ~torch.eye(len(pairs), dtype=torch.bool)).triu(1).nonzero()
    i, j = first[-1].tolist() if kind == "some" else (s.sizes.tokens - 3, s.sizes.tokens - 1)
    i = max(i, 0)
    share = "" if kind == "all" else f" ({len(first)} future pairs are visible, not all)"
    return Finding(
        "future-visible",
        f"Position {i} sees position {j}{share}: {_why_visible(s)}",
        pairs.float(),
        "which pairs are seen: the token that looks (row), the token seen (column)",
    )


def _in_training(s):
    """The future is hidden in evaluation mode: is it in training mode too?"""
    if s.random or s.fresh or not s.trains_alike or _DISTURBED & set(s.found):
        return None
    moves = s.training_influence
    ahead = (moves > 0).triu(1)
    if not ahead.any():
        return None
    i, j = ahead.nonzero()[0].tolist()
    return Finding(
        "future-visible",
        f"In training mode position {i} sees position {j}; in evaluation mode it does not. The "
        f"mask must be applied in both: what is learned with the future in sight fails without.",
        (moves > 0).float(),
        "which pairs are seen in training mode",
    )


def _why_visible(s):
    thrown = _thrown_away(s)
    if thrown is not None:
        name = thrown.name
        where = f" in `{thrown.line}`" if thrown.line else ""
        return (
            f"the result of {name} is thrown away{where}. {name} returns a new "
            f"tensor: use {name}_ or keep the result, scores = scores.{name}(...)."
        )
    for core in _square(s):
        if core.fused is not None:
            mask = fused_mask(core.fused)
            if mask is not None and mask.is_floating_point():
                return (
                    "the mask given to scaled_dot_product_attention is a float mask, which is "
                    "added to the scores and hides nothing where it holds 0 and 1. Give a "
                    "Boolean mask, True = keep."
                )
            return "scaled_dot_product_attention got no mask: pass is_causal=True."
        if core.scores is None:
            continue
        names = {s.flow.calls[at].name for at in core.path}
        if names & {"masked_fill", "masked_fill_", "where", "assign"}:
            value = _fill(core)
            return (
                f"the scores of hidden pairs are filled with {value:.3g}, too close to the "
                f"others to hide them. Fill with float('-inf')."
            )
        if _zeros_above(core):
            return (
                "the scores of hidden pairs become 0, not -inf, and exp(0) = 1 is a weight like "
                "any other. Use masked_fill(mask, float('-inf'))."
            )
    if s.mask_in_sight:
        return (
            f"there is a mask ({s.mask_in_sight}), but it never reaches the softmax. Fill the "
            f"scores where it hides with float('-inf') before the softmax."
        )
    return (
        "no mask reaches the softmax. Hide the pairs above the diagonal: "
        "scores.masked_fill(mask, float('-inf')) with mask = torch.ones(tokens, tokens, "
        "dtype=torch.bool).triu(1)."
    )


def _fill(core):
    return core.scores[..., 0, -1].flatten()[0].item()


def _zeros_above(core):
    above = core.scores[..., torch.ones(core.scores.shape[-2:], dtype=torch.bool).triu(1)]
    return bool((above == 0).all())


def _thrown_away(s):
    """A masking call whose result nothing reads, or None."""
    for at, call in enumerate(s.flow.calls):
        if call.name in ("masked_fill", "where", "masked_scatter", "tril", "triu"):
            made = outputs(call)
            if made and not s.flow.users(made[0], at) and call.inputs:
                return call
    return None


def mask_off_by_one(s):
    """The diagonal is one off: a band above it is visible, or the diagonal itself is hidden."""
    kind, pairs = s.mask_kind
    if kind == "band" and s.causal is not False:
        k = int(pairs[0].nonzero().max())
        return Finding(
            "mask-off-by-one",
            f"Position 0 sees position {k}, and no later one: the mask begins {k} "
            f"{'place' if k == 1 else 'places'} too far right. Hide from the first pair above "
            f"the diagonal: triu(diagonal=1), or keep tril().",
            pairs.float(),
            "which pairs are seen: the token that looks (row), the token seen (column)",
        )
    if s.diagonal_hidden and kind != "past":
        return Finding(
            "mask-off-by-one",
            "No token attends to itself: the diagonal is hidden too, and token 0 has no key "
            "left. Hide above the diagonal only: triu(diagonal=1).",
            pairs.float(),
            "which pairs are seen: the token that looks (row), the token seen (column)",
        )
    return None


def past_hidden(s):
    """The triangle is swapped: the future is visible and the past hidden."""
    kind, pairs = s.mask_kind
    if kind == "past":
        last = s.sizes.tokens - 1
        why = ""
        if any(core.fused is not None and fused_mask(core.fused) is not None for core in s.cores):
            why = " In scaled_dot_product_attention True means keep."
        return Finding(
            "past-hidden",
            f"Position 0 sees position {last}, and position {last} does not see position 0: "
            f"the mask hides the past and keeps the future. Hide where column > row.{why}",
            pairs.float(),
            "which pairs are seen: the token that looks (row), the token seen (column)",
        )
    if kind == "self" and "heads-attend-heads" not in s.found:
        return Finding(
            "past-hidden",
            "Each token sees itself alone: the past is hidden as well as the future."
            + ("" if s.cores else " No (tokens, tokens) scores were seen: queries @ keys.mT."),
            pairs.float(),
            "which pairs are seen: the token that looks (row), the token seen (column)",
        )
    if s.causal is False and kind in ("causal", "band", "some"):
        i, j = (~pairs).nonzero()[0].tolist()
        return Finding(
            "future-hidden",
            f"Position {i} does not see position {j}, although causal=False was asked for: a "
            f"mask is at work.",
            pairs.float(),
            "which pairs are seen: the token that looks (row), the token seen (column)",
        )
    return None


_DISTURBED = {
    "split-by-view", "merge-by-view", "softmax-axis", "not-normalised", "heads-attend-heads",
    "batch-mixed",
}  # fmt: skip


def visible_pairs(s):
    """(tokens, tokens) Boolean, which pairs are seen, or None where the layout hides it."""
    if not _DISTURBED & set(s.found):
        return s.influence > 0
    cores = _square(s)
    if not cores:
        return None
    seen = torch.zeros(s.sizes.tokens, s.sizes.tokens, dtype=torch.bool)
    for flow_cores in s.both_cores:
        for core in flow_cores:
            if core.weights.shape[-2:] == seen.shape:
                seen |= _seen(s, core).flatten(0, -3).any(dim=0).cpu()
    turned = any(core.turned for core in cores)
    if turned and "softmax-axis" in s.found and not seen.tril(-1).any():
        return seen.T  # the weights were turned over, and the mask with them
    return seen


def _seen(s, core):
    seen = core.weights.abs() > 1e-12
    if "softmax-axis" in s.found and core.scores is not None:
        seen = seen & (core.scores > -1e3)
    return seen


def mask_kind(s):
    """("none" | "all" | "some" | "band" | "causal" | "past" | "self", pairs that are seen)."""
    pairs = visible_pairs(s)
    tokens = s.sizes.tokens
    if pairs is None or tokens < 3 or "heads-attend-heads" in s.found:
        return "none", pairs
    future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
    ahead, behind = pairs & future, pairs & future.T
    if not ahead.any():
        return ("causal" if behind.any() else "self"), pairs
    if not behind.any() and (ahead == future).all():
        return "past", pairs
    if (ahead == future).all():
        return "all", pairs
    if torch.equal(pairs, pairs.T):
        return "window", pairs
    for k in range(1, tokens - 1):
        band = future & ~torch.ones(tokens, tokens, dtype=torch.bool).triu(k + 1)
        if (ahead == band).all():
            return "band", pairs
    return "some", pairs


def mask_in_sight(s):
    """Where a causal mask stands that does nothing, in words; "" where there is none."""
    if any(getattr(part, n, None) is False for part in s.original.modules() for n in _FLAGS):
        return ""
    for name, buffer in s.original.named_buffers():
        if is_mask(buffer):
            return f"the buffer {name}"
    for path, thing in reachable(s.original):
        if isinstance(thing, torch.Tensor) and is_mask(thing):
            return f"the attribute {path}"
    for call in s.flow.calls:
        if call.name in ("tril", "triu", "masked_fill", "masked_fill_"):
            return f"{call.name} in `{call.line}`" if call.line else call.name
    if any(getattr(part, n, None) is True for part in s.original.modules() for n in _FLAGS):
        return "the attribute causal = True"
    for core in s.cores:
        if core.fused is not None and fused_mask(core.fused) is not None:
            return "the mask given to scaled_dot_product_attention"
    for core in _square(s):
        if core.fused is None and core.scores is not None and _constant_above(s, core):
            return "a fill above the diagonal"
    return ""


_FLAGS = ("causal", "is_causal", "masked", "use_mask", "use_causal_mask", "mask", "autoregressive")


def _constant_above(s, core):
    above = core.scores[..., torch.ones(core.scores.shape[-2:], dtype=torch.bool).triu(1)]
    return bool((above == above.flatten()[0]).all())


def diagonal_hidden(s):
    """Whether the weights show that no token attends to itself."""
    cores = _square(s)
    if not cores or s.sizes.tokens < 3:
        return False
    inner = [_seen(s, core).diagonal(dim1=-2, dim2=-1)[..., 1:] for core in cores]
    return not any(seen.any() for seen in inner)


# --- scale ----------------------------------------------------------------------------------


def scale(s):
    """The scores are not q·k / √head_dim."""
    first, second = s.both_cores
    cores = [(a, b) for a, b in zip(first, second, strict=False) if a.width > 0]
    if not cores:
        s.tell("scale not judged, because the softmax cannot be seen")
        return None
    for a, b in cores:
        slope = _slope(s, a, b) if a.softmaxes < 2 else None
        if slope is None:
            s.tell("scale not judged, because the scores are not q·k times one number")
            continue
        expected = a.width**-0.5
        if abs(slope / expected - 1) < 0.01:
            continue
        if abs(slope - 1) < 0.01 and a.fused is None and (divided_after(a) or 1) < 0.99:
            continue  # the factor stands after the softmax, and is reported there
        if abs(slope - 1) < 0.01 and _biased(a):
            s.tell("scale not judged, because a bias by position is added to undivided scores")
            continue
        origins = [s.flow.origin(*operand) for operand in a.operands[:2]]
        if not all(s.flow.pure(origin) for origin in origins) or _learned(s, origins):
            s.tell(
                "scale not judged, because something else (positions, a norm, a learned "
                "factor) stands between the projections and the scores"
            )
            continue
        return _scaled(s, slope, expected, a.width)
    return None


def _slope(s, a, b):
    """scores = slope · (q·k of the projections), from the change between two inputs, or None."""
    factor = 1.0
    for operand in a.operands[:2]:
        factor *= s.flow.origin(*operand).factor
    if a.fused is not None:
        return a.scaled * factor
    if a.scores is None or b.scores is None or a.products.numel() != a.scores.numel():
        return None
    change = _fit(a, b)
    return None if change is None else change * factor


def _fit(a, b):
    """The slope of the change in the scores on the change in the products."""
    products = a.products - b.products
    scores = a.scores - b.scores
    for candidate in (products, products.mT):
        if candidate.numel() != scores.numel():
            continue
        x, y = candidate.reshape(scores.shape).double(), scores.double()
        known = (a.scores > -1e3) & (b.scores > -1e3) & (y.abs() > 1e-7)
        if known.sum() < 3:
            return None
        x, y = _centred(x, known)[known], _centred(y, known)[known]
        slope = (x @ y) / (x @ x).clamp_min(1e-12)
        if (y - slope * x).norm() < 1e-2 * y.norm():
            return slope.item()
    return None


def _biased(core):
    """Whether something that differs from pair to pair is added to the products."""
    if core.scores is None or core.products.shape != core.scores.shape:
        return False
    known = core.scores > -1e3
    rest = torch.where(known, core.scores - core.products, 0.0).double()
    rest = torch.where(known, _centred(rest, known), 0.0)
    return bool(rest.abs().max() > 1e-3)


def _centred(numbers, known):
    """Without each row's mean, so that a row's maximum may have been taken away."""
    kept = torch.where(known, numbers, 0.0)
    return numbers - kept.sum(-1, keepdim=True) / known.sum(-1, keepdim=True).clamp_min(1)


def _learned(s, origins):
    if any(origin.learned for origin in origins):
        return True
    return any(
        weight.numel() in (1, s.sizes.num_heads) and not name.endswith("bias")
        for name, weight in s.weights.items()
    )


def _scaled(s, slope, expected, width):
    ratio = slope / expected
    name = f"√{width}"
    times = f"{ratio:.3g} times as large" if ratio > 1 else f"{1 / ratio:.3g} times too small"
    if abs(ratio - 0.5) < 0.005:
        times = "half as large"
    advice = f"Each head has {width} numbers: divide by {name} = {width**0.5:.3g}."
    return Finding(
        "scale",
        f"{_divisor(s, slope, width)} Your scores are {times} as they should be. {advice}"
        if "times too small" not in times
        else f"{_divisor(s, slope, width)} Your scores are {times}. {advice}",
        torch.tensor([slope, expected]),
        "the factor found, and the right one",
    )


def _divisor(s, slope, width):
    sizes = s.sizes
    named = [
        (1.0, "The scores are not divided at all (T5 does so on purpose, and starts smaller)."),
        (width**0.5, f"You multiply by √{width} where you should divide."),
        (1 / width, f"You divide by {width}, the width of a head, not by its root."),
        (sizes.d_model**-0.5, f"You divide by √{sizes.d_model} (d_model), not by √head_dim."),
        (1 / sizes.d_model, f"You divide by {sizes.d_model}, which is d_model."),
        (sizes.tokens**-0.5, f"You divide by √{sizes.tokens}, the number of tokens."),
        (1 / sizes.tokens, f"You divide by {sizes.tokens}, the number of tokens."),
        (sizes.batch**-0.5, f"You divide by √{sizes.batch}, the batch size."),
    ]
    if sizes.num_heads:
        named += [
            (sizes.num_heads**-0.5, f"You divide by √{sizes.num_heads}, the number of heads."),
            (1 / sizes.num_heads, f"You divide by {sizes.num_heads}, the number of heads."),
        ]
    if sizes.context:
        named.append((sizes.context**-0.5, f"You divide by √{sizes.context}, the context length."))
    named += [
        (float(width), f"You multiply by {width} where you should divide by its root."),
        (sizes.d_model**0.5, f"You multiply by √{sizes.d_model} where you should divide."),
        (1 / math.sqrt(width) / width**0.5, "The scores are divided twice by √head_dim."),
    ]
    for value, words in named:
        if abs(slope / value - 1) < 0.01:
            return words
    return f"The scores are q·k times {slope:.3g} instead of {width**-0.5:.3g}."


# --- layers ---------------------------------------------------------------------------------


def unused_layer(s):
    """A layer that forward never reaches, or whose result it throws away."""
    unused = []
    train = None
    for name, weight in s.weights.items():
        owner = name.rpartition(".")[0] or name
        if (name.endswith("bias") and f"{name[:-4]}weight" in s.weights) or owner in s.named:
            continue
        if s.flow.used(weight) and not _result_lost(s, name):
            continue
        if s.moves(weight) or ((gradient := s.slopes.get(name)) is not None and gradient.any()):
            continue
        train = train or s.capture(s.x, train=True)
        if s.flow.used(weight) or not train.used(weight):
            unused.append(owner)
    unused = list(dict.fromkeys(name for name in unused if not _reported(s, name)))
    if not unused:
        return None
    verb = "is" if len(unused) == 1 else "are"
    return Finding(
        "unused-layer",
        f"{_listed(unused)} {verb} never called, or the result is thrown away: the output does "
        f"not depend on it. Use it in forward, or remove it.",
    )


def _reported(s, owner):
    return any(owner in label for _, label in s.idle)


def _result_lost(s, name):
    """Whether a weight's layer runs, and nothing reads what it gives."""
    weight = s.weights[name]
    users = [at for at, c in enumerate(s.flow.calls) if any(k.tensor is weight for k in c.inputs)]
    return bool(users) and all(
        not any(s.flow.users(k, at) for k in outputs(s.flow.calls[at])) for at in users
    )


def detached(s):
    """The output depends on a weight, and no gradient reaches it."""
    if s.backward_error is not None:
        s.tell("gradients not judged, because backward fails")
        return None
    cut = []
    for name, weight in s.weights.items():
        if not _matrix(weight) or not weight.requires_grad:
            continue
        gradient = s.slopes.get(name)
        if gradient is None or not gradient.any():
            if s.moves(weight):
                cut.append(name)
            continue
        for rows, label in _dead_rows(name, weight, gradient):
            if s.moves(weight, rows):
                cut.append(label)
    if not cut:
        return None
    if len(cut) == len([w for w in s.weights.values() if _matrix(w)]):
        text = "No gradient reaches any weight"
    else:
        text = f"The output depends on {_listed(cut)}, but no gradient reaches it"
    return Finding(
        "detached",
        f"{text}: .detach(), .data, torch.no_grad() or .item() cuts the graph in forward, so "
        f"the weight is never trained. Remove it there.",
    )


def _dead_rows(name, weight, gradient):
    """Rows (or columns) of a fused weight whose gradient is zero, with a label."""
    if weight.dim() != 2:
        return
    for axis in (0, 1):
        dead = gradient.abs().amax(dim=1 - axis) == 0
        if dead.sum() > 0 and dead.sum() >= len(dead) // 4:
            numbers = dead.nonzero().flatten().tolist()
            rows = dead[:, None] if axis == 0 else dead[None, :]
            word = "rows" if axis == 0 else "columns"
            yield rows, f"{word} {numbers[0]} to {numbers[-1]} of {name}"


def not_registered(s):
    """Weights that forward uses and `parameters()` does not give."""
    owned = {id(p) for p in s.module.parameters()} | {id(b) for b in s.module.buffers()}
    used = {
        id(k.tensor): (k.tensor, call)
        for flow in s.flows
        for call in flow.calls
        for k in call.inputs
        if k.tensor.is_leaf
    }
    lists, plain = [], []
    for path, thing in reachable(s.module):
        if isinstance(thing, nn.Module):
            if any(id(p) in used and id(p) not in owned for p in thing.parameters()):
                lists.append(path)
        elif id(thing) in used and id(thing) not in owned and _as_weight(s, thing):
            plain.append(path)
    if lists:
        top = list(dict.fromkeys(re.split(r"[\[.]", path)[0] or path for path in lists))
        name = _listed([f"self.{path}" for path in top])
        return Finding(
            "not-registered",
            f"{name} holds layers in a plain list, dict or object: parameters() does not give "
            f"them, so the optimiser never sees these weights and to(device) does not move "
            f"them. Use nn.ModuleList or nn.ModuleDict.",
        )
    plain = [path for path in plain if not path.startswith(tuple(f"{p}." for p in lists))]
    if plain:
        return Finding(
            "not-registered",
            f"self.{_listed(plain)} is a weight in a plain tensor: parameters() does not give "
            f"it. Wrap it as nn.Parameter(...), an attribute of its own.",
        )
    return _foreign(s, owned)


def _as_weight(s, tensor):
    """Whether a plain tensor stands in a product with the input, or is trainable."""
    if tensor.requires_grad:
        return True
    if tensor.dim() < 2 or not tensor.is_floating_point() or is_mask(tensor):
        return False
    for at, call in enumerate(s.flow.calls):
        if call.name == "linear" and call.inputs[1].tensor is tensor:
            return True
        product = s.flow.product(at)
        if product is None:
            continue
        for kept in (product.left, product.right):
            sources = s.flow.origin(kept, product.at).sources
            if any(k.tensor is tensor for _, k in sources):
                return True
    return False


def _foreign(s, owned):
    """Weights of somebody else: a layer of the notebook in place of self's."""
    known = owned | {id(w) for w in s.weights.values() if w is None}
    mine = {id(p) for p in s.original.parameters()}
    first, second = (dict((id(t), n) for n, t in f.foreign(known)) for f in s.flows)
    both = [name for key, name in first.items() if key in second and key not in mine]
    if not both:
        return None
    return Finding(
        "not-registered",
        f"forward uses {_listed(both)}, which this module does not own: a layer of the notebook "
        f"in place of self's? Its weights are not in parameters(). Create it in __init__ and "
        f"write self. before it.",
    )


def not_a_buffer(s):
    """The mask is a plain attribute that forward uses."""
    things = list(zip(reachable(s.pristine), reachable(s.original), strict=False))
    parts = [thing for (_, thing), _ in things if isinstance(thing, nn.Module)]
    buffers = {id(buffer) for part in parts for buffer in part.buffers()}
    for (path, thing), (_, original) in things:
        if id(thing) in buffers:
            continue  # its module is in a plain list, and is reported as such
        if not isinstance(thing, torch.Tensor) or thing.requires_grad:
            continue
        if not isinstance(original, torch.Tensor) or not is_mask(thing):
            continue
        copied = dict(reachable(s.flow.module)).get(path)
        if isinstance(copied, torch.Tensor) and s.flow.used(copied):
            size = thing.shape[-1]
            return Finding(
                "not-a-buffer",
                f"self.{path}, the ({size}, {size}) mask, is a plain attribute: to(device) does "
                f"not move it and state_dict() does not know it. Write "
                f"self.register_buffer('{path.split('.')[-1]}', mask, persistent=False).",
            )
    return None
