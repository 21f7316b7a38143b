"""Who sees whom: what a mask hides, and why it does not."""

import torch

from .calling import is_mask
from .cores import fused_mask
from .flow import outputs
from .guard import reachable
from .report import Finding
from .scores import square


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
    sight = s.mask_in_sight or (kind == "some" and not s.cores)
    intent = s.causal is True or (s.causal is None and sight)
    if kind == "some" and not intent and s.causal is None:
        s.tell("causal or not was not judged: some future pairs are seen, and no mask is in sight")
        return None
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
    if s.random or s.fresh or not s.trains_alike or DISTURBED & set(s.found):
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
    if beside := _beside_the_mask(s):
        return beside
    for core in square(s):
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
        if added := _added_mask(s, core):
            return (
                f"a mask that holds {added[0]:.3g} above the diagonal and {added[1]:.3g} below is "
                f"added to the scores, which hides nothing there. -inf is wanted above and 0 "
                f"below: use masked_fill(mask, float('-inf'))."
            )
        if (core.scores < -1e3).any():
            return (
                "the mask hides other pairs than those of the future. All pairs above the "
                "diagonal should be hidden: torch.ones(tokens, tokens).triu(1)."
            )
        if names & {"masked_fill", "masked_fill_", "where", "assign"} and _constant_above(s, core):
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


def _added_mask(s, core):
    """(above, below) of a triangle that is added to the scores and does not hide, or None."""
    for at in core.path:
        call = s.flow.calls[at]
        if call.name in ("add", "add_", "sub", "sub_", "rsub"):
            for kept in call.inputs:
                if is_mask(kept.value) and kept.value[..., 0, -1].max() > -100:
                    return kept.value[..., 0, -1].max().item(), kept.value[..., -1, 0].max().item()
    return None


def _beside_the_mask(s):
    """What to say where the weights of all heads, or of some, hide the future; or None."""
    leaks = [
        (core.weights.abs() > 1e-12).triu(1).flatten(-2).any(dim=-1).flatten() for core in square(s)
    ]
    if not leaks or torch.cat(leaks).all() or DISTURBED & set(s.found):
        return None
    heads = torch.cat(leaks)
    if heads.any():
        return (
            f"the mask hides the future in {int((~heads).sum())} of {len(heads)} heads (counted "
            f"over all sentences) and not in the others. Mask the scores of each head."
        )
    return (
        "the weights hide the future, so it comes by another way: something beside the attention "
        "mixes tokens, such as a mean, a norm or a difference over the tokens' axis."
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


DISTURBED = {
    "split-by-view", "merge-by-view", "softmax-axis", "not-normalised", "heads-attend-heads",
    "batch-mixed", "one-for-all",
}  # fmt: skip


def visible_pairs(s):
    """(tokens, tokens) Boolean, which pairs are seen, or None where the layout hides it."""
    if not DISTURBED & set(s.found):
        return s.influence > 0
    cores = square(s)
    if not cores:
        return None
    seen = torch.zeros(s.sizes.tokens, s.sizes.tokens, dtype=torch.bool)
    for flow_cores in s.both_cores:
        for core in flow_cores:
            if core.weights.shape[-2:] == seen.shape:
                seen |= _seen(s, core).reshape(-1, *seen.shape).any(dim=0).cpu()
    turned = any(core.turned or core.last_axis for core in cores)
    if turned and "softmax-axis" in s.found and not seen.tril(-1).any():
        return seen.T  # the weights were turned over, and the mask with them
    return seen


def _seen(s, core):
    seen = (core.weights.abs() > 1e-12) & (core.weights > -1e3)
    if "softmax-axis" in s.found and core.scores is not None:
        seen = seen & (core.scores > -1e3)
    return seen


def mask_kind(s):
    """("none" | "all" | "some" | "band" | "causal" | "past" | "self", pairs that are seen)."""
    pairs = visible_pairs(s)
    tokens = s.sizes.tokens
    if "softmax-twice" in s.found:
        s.tell("the mask was not judged, because the softmax is taken twice")
        return "none", pairs
    if pairs is None or tokens < 3 or {"heads-attend-heads", "attention-unused"} & set(s.found):
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
    for call, again in zip(s.flow.calls, s.flows[1].calls, strict=False):
        if call.name in ("tril", "triu", "masked_fill", "masked_fill_") and _fixed(call, again):
            return f"{call.name} in `{call.line}`" if call.line else call.name
    if any(getattr(part, n, None) is True for part in s.original.modules() for n in _FLAGS):
        return "the attribute causal = True"
    for core in s.cores:
        if core.fused is not None and fused_mask(core.fused) is not None:
            return "the mask given to scaled_dot_product_attention"
    for core in square(s):
        if core.fused is None and core.scores is not None and _constant_above(s, core):
            return "a fill above the diagonal"
    return ""


_FLAGS = ("causal", "is_causal", "masked", "use_mask", "use_causal_mask", "mask", "autoregressive")


def _fixed(call, again):
    """Whether a mask is the same for two inputs: one that is made of the scores hides no future."""
    masks = [[k.value for k in c.inputs if not k.value.is_floating_point()] for c in (call, again)]
    return all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(*masks, strict=False))


def _constant_above(s, core):
    above = core.scores[..., torch.ones(core.scores.shape[-2:], dtype=torch.bool).triu(1)]
    return bool((above == above.flatten()[0]).all())


def diagonal_hidden(s):
    """Whether the weights show that no token attends to itself."""
    cores = square(s)
    if not cores or s.sizes.tokens < 3:
        return False
    inner = [_seen(s, core).diagonal(dim1=-2, dim2=-1)[..., 1:] for core in cores]
    return not any(seen.any() for seen in inner)
