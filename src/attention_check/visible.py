"""Who sees whom: what a mask hides, and why it does not."""

import torch

from .calling import is_mask
from .cores import fused_mask
from .flow import outputs
from .report import DISTURBED, Finding, listed
from .scores import square
from .sight import constant_above, find_switch, hides_future, said_of_switch


def future_visible(s):
    """Every future pair is visible: the mask has no effect."""
    kind, pairs = s.mask_kind
    if kind == "causal" and s.causal is not False:
        return _in_training(s)
    if kind not in ("all", "some", "window"):
        return None
    if s.causal is not False and (finding := _in_training_alone(s)):
        return finding
    if kind == "window" and s.causal is not True:
        s.note("window", "Each token sees those near it, before and after: a two-way window.")
        return None
    sight = s.mask_in_sight or (kind == "some" and not s.cores)
    if s.causal is None and sight and (length := _prefix(s)):
        rest = "and of the others only what stands before them: a mask with a prefix."
        s.note("prefix", f"All tokens see the first {length}, {rest}")
        return None
    if _causal_in_part(s):
        confused = s.several and {"wrong-pair", "wrong-values"} & set(s.found)
        if confused or s.absent("who sees whom"):
            return None
    switch = find_switch(s) if s.causal or (s.causal is None and sight) else None
    intent = s.causal is True or (s.causal is None and sight and switch is None)
    if switch and not intent:
        s.note("two-way", said_of_switch(switch))
        return None
    if kind == "some" and not intent and s.causal is None:
        s.tell(
            "causal or not was not judged: some future pairs are seen, and no causal mask is in "
            "sight"
        )
        return None
    if kind == "all" and not intent:
        if s.causal is None and not s.way.masks:
            s.note(
                "two-way", "Every token sees every other, and no causal mask is in sight: two-way."
            )
        return None
    if kind == "some" and (s.causal is False or s.diagonal_hidden):
        return None
    if s.masked_by_argument:
        return None
    first = (pairs & ~torch.eye(len(pairs), dtype=torch.bool)).triu(1).nonzero()
    i, j = first[-1].tolist() if kind == "some" else (s.sizes.tokens - 3, s.sizes.tokens - 1)
    i = max(i, 0)
    share = "" if kind == "all" else f" ({len(first)} future pairs are visible, not all)"
    return _finding(
        "future-visible",
        f"Position {i} sees position {j}{share}: {_why_visible(s, switch)}",
        pairs,
    )


_SEEN = "which pairs are seen: the token that looks (row), the token seen (column)"


def _finding(code, message, pairs, shows=_SEEN):
    """A finding with its picture: pairs, (tokens, tokens) Boolean."""
    return Finding(code, message, pairs.float(), shows)


def _causal_in_part(s):
    """Whether one attention of several hides the future, and another does not."""
    hidden = [not _seen(s, core).triu(1).any() for core in square(s)]
    return any(hidden) and not all(hidden)


def _prefix(s):
    """How many tokens at the start all weights let everyone see, where the rest is causal; or 0."""
    cores = square(s)
    if not cores or DISTURBED & set(s.found) or s.mask_kind[0] != "some":
        return 0
    tokens = s.sizes.tokens
    pairs = s.mask_kind[1]
    length = int(pairs[0].sum())
    wanted = torch.ones(tokens, tokens, dtype=torch.bool).tril()
    wanted[:, :length] = True
    same = all((_seen(s, core).cpu() == wanted).all() for core in cores)
    return length if same and torch.equal(pairs.cpu(), wanted) else 0


def _in_training(s):
    """The future is hidden in evaluation mode: is it in training mode too?"""
    pairs = _training_pairs(s)
    if pairs is None or not pairs.triu(1).any():
        return None
    why = "what is learned with the future in sight fails without"
    return _in_one_mode(pairs, "training", "evaluation", why)


def _in_training_alone(s):
    """The future is seen in evaluation mode: is it hidden in training mode?"""
    pairs = _training_pairs(s)
    if pairs is None or not hides_future(pairs):
        return None
    why = "apply it without asking for self.training"
    return _in_one_mode(s.mask_kind[1], "evaluation", "training", why)


def _in_one_mode(seen, mode, other, why):
    i, j = seen.triu(1).nonzero()[0].tolist()
    said = (
        f"In {mode} mode position {i} sees position {j}; in {other} mode it does not. The mask "
        f"must be applied in both: {why}."
    )
    return _finding("future-visible", said, seen, f"which pairs are seen in {mode} mode")


def _training_pairs(s):
    """(tokens, tokens) Boolean: the pairs seen in training mode; None where it is no other."""
    if s.random or s.fresh or not s.trains_alike or DISTURBED & set(s.found):
        return None
    if not s.differs(s.look(s.x, module=s.training), s.base)[1].any():
        return None
    return s.training_influence > 0


# --- why ------------------------------------------------------------------------------------


def _why_visible(s, switch=None):
    if switch and hides_future(switch[1]):
        return (
            f"the mask is applied only when it is asked for: {switch[0]} is False, and where it "
            f"is True, the future is hidden. Make True the default."
        )
    if thrown := _thrown_away(s):
        return _kept_instead(thrown)
    if beside := _beside_the_mask(s):
        return beside
    for core in square(s):
        if idle := _hides_nothing(s, core):
            return idle
        if core.fused is not None:
            mask = fused_mask(core.fused)
            if mask is not None and mask.is_floating_point():
                return (
                    "the mask given to scaled_dot_product_attention is a float mask, which is "
                    "added to the scores and hides nothing where it holds 0 and 1. Give a "
                    "Boolean mask, True = keep."
                )
            if mask is not None:
                return (
                    f"the mask given to scaled_dot_product_attention is True, which means keep, "
                    f"for {'all pairs' if mask.all() else 'pairs of the future'}. Give "
                    f"torch.ones(tokens, tokens, dtype=torch.bool).tril()."
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
            return _OTHER_PAIRS
        if names & {"masked_fill", "masked_fill_", "where", "assign"} and constant_above(core):
            value = _fill(core)
            return (
                f"the scores of hidden pairs are filled with {value:.3g}, too close to the "
                f"others to hide them. Fill with float('-inf')."
            )
        if constant_above(core) and _fill(core) == 0:
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


_OTHER_PAIRS = (
    "the mask hides other pairs than those of the future. All pairs above the diagonal should be "
    "hidden: torch.ones(tokens, tokens).triu(1)."
)


def _kept_instead(thrown):
    """What to say of a masking call whose result is thrown away."""
    name, where = thrown.name, f" in `{thrown.line}`" if thrown.line else ""
    said = f"the result of {name} is thrown away{where}."
    if name in ("tril", "triu"):
        return (
            f"{said} And {name} makes scores 0, which does not hide: exp(0) = 1 is a weight like "
            f"any other. Use scores = scores.masked_fill(mask, float('-inf')) with mask = "
            f"torch.ones(tokens, tokens, dtype=torch.bool).triu(1)."
        )
    if name == "where":
        return f"{said} where returns a new tensor: keep the result, scores = torch.where(...)."
    return (
        f"{said} {name} returns a new tensor: use {name}_ or keep the result, "
        f"scores = scores.{name}(...)."
    )


def _hides_nothing(s, core):
    """What to say of a mask that reaches the softmax and is the same for all pairs, or None."""
    masks = [mask for at in core.path for mask in _masks_of(s.flow.calls[at])]
    if not masks or any(mask.any() for mask, _ in masks):
        return None
    mask, line = masks[-1]
    what = "False" if mask.dtype == torch.bool else "0"
    where = f" in `{line}`" if line else ""
    return (
        f"the mask{where} hides nothing: it is {what} for all pairs. Hide the pairs above the "
        f"diagonal: torch.ones(tokens, tokens).triu(1)."
    )


def _masks_of(call):
    """(mask, line) of a call that masks the scores by a fill or a sum with a constant."""
    if call.name in ("masked_fill", "masked_fill_"):
        return [(k.value, call.line) for k in call.inputs if k.value.dtype == torch.bool]
    if call.name in ("add", "add_", "sub", "sub_"):
        added = [k.value for k in call.inputs if not k.tensor.requires_grad and k.value.dim() > 1]
        return [(mask, call.line) for mask in added if is_mask(mask) or not mask.any()]
    return []


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
    leaks = [_ahead(core).flatten() for core in square(s)]
    if not leaks or torch.cat(leaks).all() or DISTURBED & set(s.found):
        return None
    heads = torch.cat(leaks)
    if heads.any():
        if masked := _masked_sentences(s):
            return masked
        batch = s.sizes.batch
        return (
            f"the mask hides the future in {int((~heads).sum())} of {len(heads)} heads "
            f"({len(heads) // batch} in each of {batch} sentences) and not in the others. Mask "
            f"the scores of each head."
        )
    return (
        "the weights hide the future, so it comes by another way: something beside the attention "
        "mixes tokens, such as a shift, a mean, a norm or a difference over the tokens' axis."
    )


def _masked_sentences(s):
    """What to say where the mask hides the future in some sentences and not in others, or None."""
    cores = [core for core in square(s) if core.weights.dim() > 2]
    leaks = [_ahead(core).flatten(1) for core in cores if len(core.weights) == s.sizes.batch]
    if not leaks or len(leaks) < len(square(s)):
        return None
    leaks = torch.cat(leaks, dim=1)
    if (leaks.any(dim=1) != leaks.all(dim=1)).any():
        return None
    hidden = (~leaks.any(dim=1)).nonzero().flatten().tolist()
    return (
        f"the mask hides the future in {'sentence' if len(hidden) == 1 else 'sentences'} "
        f"{listed(hidden)} of {s.sizes.batch} and not in the others. Mask the scores of each "
        f"sentence: a mask (tokens, tokens) is spread over all of them."
    )


def _ahead(core):
    """(…): whether the weights of a head of a sentence lie on later tokens."""
    return (core.weights.abs() > 1e-12).triu(1).flatten(-2).any(dim=-1)


def _fill(core):
    return core.scores[..., 0, -1].flatten()[0].item()


def _thrown_away(s):
    """A masking call on the scores whose result nothing reads, or None."""
    cores = [core for core in square(s) if core.fused is None]
    chain = {at for core in cores for at in (core.operands[0][1], *core.path)}
    for at, call in enumerate(s.flow.calls):
        if call.name in ("masked_fill", "where", "masked_scatter", "tril", "triu"):
            made = outputs(call)
            if not made or s.flow.users(made[0], at):
                continue
            sources = [o for k in call.inputs for o, _ in s.flow.origin(k, at).sources]
            if chain.intersection(sources):
                return call
    return None


def mask_off_by_one(s):
    """The diagonal is one off: a band above it is visible, or the diagonal itself is hidden."""
    kind, pairs = s.mask_kind
    if kind == "band" and s.causal is not False:
        k = int(pairs[0].nonzero().max())
        if beside := _beside_the_mask(s):
            return _finding(
                "future-visible",
                f"Position 0 sees position {k}: {beside}",
                pairs,
            )
        return _finding(
            "mask-off-by-one",
            f"Position 0 sees position {k}, and no later one: the mask begins {k} "
            f"{'place' if k == 1 else 'places'} too far right. Hide from the first pair above "
            f"the diagonal: triu(diagonal=1), or keep tril().",
            pairs,
        )
    if s.diagonal_hidden and kind != "past" and not _rows_alike(s):
        said = "No token attends to itself: the diagonal is hidden too, and token 0 has no key left"
        if all(_seen(s, core)[..., 0, 0].all() and not _ahead(core).any() for core in square(s)):
            said = "No token but token 0 attends to itself: the diagonal is hidden too"
        return _finding(
            "mask-off-by-one",
            f"{said}. Hide above the diagonal only: triu(diagonal=1).",
            pairs,
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
        return _finding(
            "past-hidden",
            f"Position 0 sees position {last}, and position {last} does not see position 0: "
            f"the mask hides the past and keeps the future. Hide where column > row.{why}",
            pairs,
        )
    if kind == "self" and "heads-attend-heads" not in s.found:
        return _finding(
            "past-hidden",
            "Each token sees itself alone: the past is hidden as well as the future."
            + ("" if s.cores else " No (tokens, tokens) scores were seen: queries @ keys.mT."),
            pairs,
        )
    if kind == "causal" and s.diagonal_hidden and _rows_alike(s):
        last = s.sizes.tokens - 1
        return _finding(
            "past-hidden",
            f"Each token sees token 0 alone, and position {last} does not see position {last}: "
            f"one row of a mask is applied to all rows. Give the whole mask, (tokens, tokens), "
            f"with a row for each token that looks.",
            pairs,
        )
    if s.causal is False and kind in ("all", "window"):
        pairs = _training_pairs(s)
        if pairs is not None and hides_future(pairs):
            return _finding(
                "future-hidden",
                "In training mode position 0 does not see position 1, although causal=False was "
                "asked for: a mask is at work, and in evaluation mode there is none.",
                pairs,
                "which pairs are seen in training mode",
            )
    if s.causal is False and kind in ("causal", "band", "some"):
        i, j = (~pairs).nonzero()[0].tolist()
        return _finding(
            "future-hidden",
            f"Position {i} does not see position {j}, although causal=False was asked for: a "
            f"mask is at work.",
            pairs,
        )
    return None


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


def diagonal_hidden(s):
    """Whether the weights show that no token attends to itself or to later ones.

    The first may attend to any: where all its keys are filled with one number, it sees all.
    """
    cores = square(s)
    if not cores or s.sizes.tokens < 3:
        return False
    return not any(_seen(s, core).triu()[..., 1:, :].any() for core in cores)


def _rows_alike(s):
    """Whether every token that looks sees the same keys, and not all of them."""
    seen = [_seen(s, core) for core in square(s)]
    return bool(seen) and all((a == a[..., :1, :]).all() and not a.all() for a in seen)


def why_nan(s):
    """What the scores and weights tell of NaN in the output, or None."""
    for core in square(s):
        if core.scores is not None and (core.scores == -torch.inf).all():
            return "The mask hides every pair, so no token has a key left."
        if core.scores is not None and (core.scores == torch.inf).any():
            return "Some scores are +inf, and inf / inf is NaN. A mask must fill with -inf."
        soft = core.normalised
        if soft is not None and soft.isfinite().all() and core.weights.isinf().any():
            return (
                "Weights are filled with infinity after the softmax. Hide before it: fill the "
                "scores with float('-inf')."
            )
    return None
