"""Who sees whom: what a mask hides, and why it does not."""

import torch

from ..facts import fact
from ..findings import Finding, Note, Unjudged
from ..graph import outputs
from ..search.sizes import is_mask
from ..stages import fused_mask
from ..trust import absent, disturbed, off_axis, square
from ..words import listed
from .calls import changed_places
from .registry import rule
from .roles import context_confused
from .sight import (
    filled,
    future,
    hides_future,
    idle_flag,
    mask_in_sight,
    says_causal,
    switch_off,
    thrown_away,
)

_NO_MASK_TO_JUDGE = {"heads-attend-heads", "softmax-twice", "attention-unused"}


@rule("future-visible", unless=_NO_MASK_TO_JUDGE)
def future_visible(s):
    """A token sees later ones, though a causal mask is in sight or was asked for.

    scores.masked_fill(hidden, -torch.inf)      # the result is thrown away
    weights = scores.softmax(dim=-1)
    """
    if s.causal is False:
        return None
    readings = _READINGS.get(mask_kind(s), ())
    return next(filter(None, (read(s) for read in readings)), None)


@rule("mask-off-by-one", unless=_NO_MASK_TO_JUDGE)
def mask_off_by_one(s):
    """The mask begins one place too far right, or hides the diagonal too.

    hidden = torch.ones(tokens, tokens).triu(0).bool()
    """
    kind, pairs = mask_kind(s), visible_pairs(s)
    if kind == "band" and s.causal is not False and not _beside_the_mask(s):
        k = int(pairs[0].nonzero().max())
        return _told(
            f"Position 0 sees position {k}, and no later one: the mask begins {k} "
            f"{'place' if k == 1 else 'places'} too far right. Hide from the first pair above "
            f"the diagonal: triu(diagonal=1), or keep tril().",
            pairs,
        )
    if kind in ("window", "all") and others_alone(s):
        return Note("No token attends to itself, and each to all others.", code="others-alone")
    if not diagonal_hidden(s) or kind == "past" or _rows_alike(s):
        return None
    if _itself_if_alone(s):
        said = "A token attends to itself only where there is no other: its own score is lowered."
        return Note(said, code="others-alone")
    said = "No token attends to itself: the diagonal is hidden too, and token 0 has no key left"
    if all(_seen(s, core)[..., 0, 0].all() and not _ahead(core).any() for core in square(s)):
        said = "No token but token 0 attends to itself: the diagonal is hidden too"
    said = f"{said}. Hide above the diagonal only: triu(diagonal=1)."
    return _told(said, pairs)


@rule("past-hidden", unless=_NO_MASK_TO_JUDGE)
def past_hidden(s):
    """The past is hidden: the triangle is swapped, or a token sees itself or token 0 alone.

    hidden = torch.ones(tokens, tokens).tril(-1).bool()
    """
    kind, last = mask_kind(s), s.sizes.tokens - 1
    if idle := _rows_of_nothing(s):
        said = (
            f"{'Position' if len(idle) == 1 else 'Positions'} {listed(idle)} sees nothing: no "
            f"token changes the row, as where the last chunk is left out. Compute every row."
        )
        return _told(said, visible_pairs(s))
    if kind == "past":
        masked = any(c.fused is not None and fused_mask(c.fused) is not None for c in s.cores)
        why = " In scaled_dot_product_attention True means keep." if masked else ""
        said = (
            f"Position 0 sees position {last}, and position {last} does not see position 0: "
            f"the mask hides the past and keeps the future. Hide where column > row.{why}"
        )
    elif kind == "self":
        why = "" if s.cores else " No (tokens, tokens) scores were seen: queries @ keys.mT."
        said = f"Each token sees itself alone: the past is hidden as well as the future.{why}"
    elif kind == "causal" and diagonal_hidden(s) and _rows_alike(s):
        said = (
            f"Each token sees token 0 alone, and position {last} does not see position {last}: "
            f"one row of a mask is applied to all rows. Give the whole mask, (tokens, tokens), "
            f"with a row for each token that looks."
        )
    elif kind == "causal" and (rows := _blind_to_themselves(s)):
        i = rows[0]
        sees = visible_pairs(s)[i].nonzero().flatten().tolist()
        said = (
            f"Position {i} does not see position {i}, though others see themselves: it sees "
            f"{listed(sees) if sees else 'none'}. Where queries go in chunks, the row of a query "
            f"is its place in the sentence: hide where column > start + row."
        )
    else:
        return None
    return _told(said, visible_pairs(s))


@rule("future-hidden")
def future_hidden(s):
    """A mask is at work, although causal=False was asked for.

    check_attention(CausalAttention, causal=False)
    """
    if s.causal is not False:
        return None
    trained = training_pairs(s)
    for position, pairs in (("Position", visible_pairs(s)), ("In training mode position", trained)):
        if _kind(pairs) in ("causal", "band", "some"):
            i, j = (~pairs).nonzero()[0].tolist()
            return _told(
                f"{position} {i} does not see position {j}, although causal=False was asked for: "
                f"a mask is at work. To see all tokens, leave it out.",
                pairs,
            )
    return _WINDOW if mask_kind(s) == "window" else None


_SEEN = "which pairs are seen: the token that looks (row), the token seen (column)"


def _told(message, pairs, shows=_SEEN):
    """A finding with its picture: pairs, (tokens, tokens) Boolean."""
    return Finding(message, pairs.float(), shows)


# --- which pairs are seen -------------------------------------------------------------------


@fact
def visible_pairs(s):
    """(tokens, tokens) Boolean, which pairs are seen, or None where the layout hides it."""
    if not disturbed(s):
        return s.influence > 0
    seen = torch.zeros_like(future(s))
    for core in (*square(s), *square(s, 1)):
        if core.weights.shape[-2:] == seen.shape:
            seen |= _seen(s, core).reshape(-1, *seen.shape).any(dim=0).cpu()
    turned = off_axis(s) and any(core.last_axis for core in square(s))
    if turned and not seen.tril(-1).any():
        return seen.T  # the weights were turned over, and the mask with them
    return seen if square(s) else None


def _seen(s, core):
    """(…, tokens, tokens) Boolean: the pairs that a core gives a weight."""
    seen = (core.weights.abs() > 1e-12) & (core.weights > -1e3)
    return seen & (core.scores > -1e3) if off_axis(s) and core.scores is not None else seen


@fact
def mask_kind(s):
    """What the mask leaves, in a word; "" where that cannot be told."""
    return _kind(visible_pairs(s))


def _kind(pairs):
    """ "all", "causal", "past" (the future and no past), "self", "window" (both ways alike),
    "band" (the first places of the future), or else "some"; "" for too few pairs to tell."""
    if pairs is None or len(pairs) < 3:
        return ""
    ahead, behind, whole = pairs.triu(1), pairs.tril(-1), torch.ones_like(pairs).triu(1)
    if not ahead.any():
        return "causal" if behind.any() else "self"
    if torch.equal(ahead, whole):
        return "all" if behind.any() else "past"
    if torch.equal(pairs, pairs.T):
        return "window"
    bands = (whole.tril(k) for k in range(1, len(pairs) - 1))
    return "band" if any(torch.equal(ahead, band) for band in bands) else "some"


@fact
def diagonal_hidden(s):
    """Whether the weights show that no token attends to itself or to later ones.

    The first may attend to any: where all its keys are filled with one number, it sees all.
    """
    found = square(s) if s.sizes.tokens > 2 else []
    return bool(found) and not any(_seen(s, core).triu()[..., 1:, :].any() for core in found)


def others_alone(s):
    """Whether in a two-way attention no token has a weight for itself, and all others have."""
    seen = [_seen(s, core).cpu() for core in square(s)]
    others = ~torch.eye(s.sizes.tokens, dtype=torch.bool)
    return bool(seen) and all((each == others).all() for each in seen)


def _itself_if_alone(s):
    """Whether the scores on the diagonal are lowered, by less than those of the future."""
    scores = [core.scores for core in square(s) if core.scores is not None]
    own = [(each.diagonal(dim1=-2, dim2=-1).amin(), each[..., 0, 1:].amax()) for each in scores]
    return bool(own) and all(ahead < lowest and lowest.isfinite() for lowest, ahead in own)


def _rows_of_nothing(s):
    """The positions that no token moves, where others are moved, and no weights are in sight."""
    pairs = None if square(s) or changed_places(s) else visible_pairs(s)
    if pairs is None or not pairs.any():
        return []
    return (~pairs.any(dim=1)).nonzero().flatten().tolist()


def _blind_to_themselves(s):
    """The positions that do not see themselves, where others do."""
    own = visible_pairs(s).diagonal()
    if not own.any() or diagonal_hidden(s) or changed_places(s):
        return []
    return (~own).nonzero().flatten().tolist()


def _rows_alike(s):
    """Whether every token that looks sees the same keys, and not all of them."""
    seen = [_seen(s, core) for core in square(s)]
    return bool(seen) and all((a == a[..., :1, :]).all() and not a.all() for a in seen)


def _ahead(core):
    """(…): whether the weights of a head of a sentence lie on later tokens."""
    return (core.weights.abs() > 1e-12).triu(1).flatten(-2).any(dim=-1)


@fact
def training_pairs(s):
    """(tokens, tokens) Boolean: the pairs seen in training mode; None where it is no other."""
    if s.random or s.fresh or not s.trains_alike or disturbed(s):
        return None
    if not s.differs(s.look(s.x, module=s.training), s.base)[1].any():
        return None
    return None if s.training_influence is None else s.training_influence > 0


# --- how a future that is seen can be read: each reading has an answer, or leaves it to the next


def _in_one_mode(s):
    """The future is seen in training or in evaluation mode alone."""
    trained, seen = training_pairs(s), visible_pairs(s)
    if trained is None or trained.triu(1).any() == seen.triu(1).any():
        return None
    mode, other, why = "evaluation", "training", "apply it without asking for self.training"
    if trained.triu(1).any():
        seen, mode, other = trained, "training", "evaluation"
        why = "what is learned with the future in sight fails without"
    i, j = seen.triu(1).nonzero()[0].tolist()
    said = (
        f"In {mode} mode position {i} sees position {j}; in {other} mode it does not. The mask "
        f"must be applied in both: {why}."
    )
    return _told(said, seen, f"which pairs are seen in {mode} mode")


def _band(s):
    """A band of the future is seen: by another way than the attention?"""
    pairs = visible_pairs(s)
    if not (beside := _beside_the_mask(s)):
        return None
    said = f"Position 0 sees position {int(pairs[0].nonzero().max())}: {beside}"
    return _told(said, pairs)


_WINDOW = Note("Each token sees those near it, before and after: a two-way window.", code="window")


def _window(s):
    return None if s.causal or says_causal(s) else _WINDOW


def _prefix(s):
    """All see the same tokens at the start, and of the others those before them."""
    if s.causal or not _mask_is_near(s):
        return None
    pairs, cores = visible_pairs(s), square(s)
    length = int(pairs[0].sum())
    wanted = ~future(s)
    wanted[:, :length] = True
    if not cores or disturbed(s) or not torch.equal(pairs.cpu(), wanted):
        return None
    if not all((_seen(s, core).cpu() == wanted).all() for core in cores):
        return None
    rest = "and of the others only what stands before them: a mask with a prefix."
    return Note(f"All tokens see the first {length}, {rest}", code="prefix")


def _in_part(s):
    """One attention of several hides the future, and another does not."""
    hidden = [not _seen(s, core).triu(1).any() for core in square(s)]
    if not any(hidden) or all(hidden):
        return None
    if s.several and context_confused(s, "kv"):
        return Unjudged("x and the context do not stand in their places")
    return absent(s)


def _both_ways(s):
    """Some heads see no future, and the others no past."""
    heads = [core.weights.reshape(-1, *core.weights.shape[-2:]) > 1e-12 for core in square(s)]
    seen = [(bool(w.triu(1).any()), bool(w.tril(-1).any())) for each in heads for w in each]
    if {*seen} != {(True, False), (False, True)}:
        return None
    return Note("Some heads see what came before, the others what comes after.", code="two-way")


def _two_way(s):
    """Nothing says that the future should be hidden, or a switch says that it should not."""
    if _meant_causal(s):
        return None
    if _mask_is_near(s):
        return Note(_of_a_switch(*switch_off(s)), code="two-way")
    if mask_kind(s) == "some":
        return Unjudged("some future pairs are seen, and no causal mask is in sight")
    if s.way.masks:
        return None
    if name := idle_flag(s):
        said = f"forward(x, {name}=True) gives what {name}=False gives: every token sees every"
        said = f"{said} other. Apply the mask to the scores where {name}, and keep the result."
        return _told(said, visible_pairs(s))
    said = "Every token sees every other, and no causal mask is in sight: two-way."
    return Note(said, code="two-way")


def _of_a_switch(name, pairs):
    still = pairs.triu(1).nonzero().tolist()
    if not still:
        return f"Two-way, as {name} is False; where it is True, the future is hidden."
    i, j = still[-1]
    return (
        f"Two-way, as {name} is False; but where it is True, position {i} sees position {j} as "
        f"well."
    )


def _mask_is_near(s):
    """Whether a causal mask is in sight, or part of the future is hidden by what is not."""
    return bool(mask_in_sight(s)) or (mask_kind(s) == "some" and not s.cores)


def _meant_causal(s):
    return bool(s.causal) or (_mask_is_near(s) and switch_off(s) is None)


def _no_mask_works(s):
    """The future should be hidden, and is not."""
    kind, pairs = mask_kind(s), visible_pairs(s)
    # where forward takes masks, one of them may be the causal one
    if not _meant_causal(s) or s.way.masks or (kind == "some" and diagonal_hidden(s)):
        return None
    seen = pairs.triu(1).nonzero()
    i, j = (s.sizes.tokens - 3, s.sizes.tokens - 1) if kind == "all" else seen[-1].tolist()
    share = "" if kind == "all" else f" ({len(seen)} future pairs are visible, not all)"
    why = next(filter(None, (cause(s) for cause in _CAUSES)))
    return _told(f"Position {i} sees position {j}{share}: {why}", pairs)


_READINGS = {
    "causal": (_in_one_mode,),
    "band": (_band,),
    "window": (_in_one_mode, _both_ways, _window, _in_part, _two_way, _no_mask_works),
    "some": (_in_one_mode, _prefix, _in_part, _two_way, _no_mask_works),
    "all": (_in_one_mode, _both_ways, _in_part, _two_way, _no_mask_works),
}


# --- why no mask works: each cause is put in words, or not there -----------------------------


def _switched_off(s):
    if (switch := switch_off(s)) is None or not hides_future(switch[1]):
        return None
    return (
        f"the mask is applied only when it is asked for: {switch[0]} is False, and where it "
        f"is True, the future is hidden. Make True the default."
    )


def _thrown_away(s):
    if not thrown_away(s):
        return None
    call, value = thrown_away(s)
    name, where = call.name, f" in `{call.line}`" if call.line else ""
    said = f"the result of {name} is thrown away{where}."
    if value == 0:
        return (
            f"{said} And {name} makes scores 0, which does not hide: exp(0) = 1 is a weight like "
            f"any other. Use scores = scores.masked_fill(mask, float('-inf')) with mask = "
            f"torch.ones(tokens, tokens, dtype=torch.bool).triu(1)."
        )
    if not hasattr(torch.Tensor, f"{name}_"):
        return f"{said} {name} returns a new tensor: keep the result, scores = torch.{name}(...)."
    return (
        f"{said} {name} returns a new tensor: use {name}_ or keep the result, "
        f"scores = scores.{name}(...)."
    )


def _beside_the_mask(s):
    """The weights of all heads, or of some, hide the future."""
    leaks = [_ahead(core) for core in square(s)]
    heads = torch.cat([leak.flatten() for leak in leaks]) if leaks else torch.ones(1)
    if heads.all() or disturbed(s):
        return None
    if not heads.any():
        return (
            "the weights hide the future, so it comes by another way: something beside the "
            "attention mixes tokens, such as a shift, a mean, a norm or a difference over the "
            "tokens' axis."
        )
    batch = s.sizes.batch
    if all(leak.dim() and len(leak) == batch for leak in leaks):
        sentences = torch.cat([leak.reshape(batch, -1) for leak in leaks], dim=1)
        hidden = (~sentences.any(dim=1)).nonzero().flatten().tolist()
        if torch.equal(sentences.any(dim=1), sentences.all(dim=1)):
            return (
                f"the mask hides the future in {'sentence' if len(hidden) == 1 else 'sentences'} "
                f"{listed(hidden)} of {batch} and not in the others. Mask the scores of each "
                f"sentence: a mask (tokens, tokens) is spread over all of them."
            )
    return (
        f"the mask hides the future in {int((~heads).sum())} of {len(heads)} heads "
        f"({len(heads) // batch} in each of {batch} sentences) and not in the others. Mask "
        f"the scores of each head."
    )


def _in_a_core(s):
    causes = (_masked, _told_the_kernel, _filled)
    said = (cause(s, core) for core in square(s) for cause in causes)
    return next(filter(None, said), None)


def _masked(s, core):
    """The masks that meet the scores change none of them, or are added and do not hide."""
    met = [one for one in _masks_met(s, core) if one[1].unique().numel() <= 2]
    if met and all(torch.equal(before, after) for _, _, before, after in met):
        line, mask = met[-1][:2]
        value = mask.flatten()[0].item()
        what = value if mask.dtype == torch.bool else f"{value:g}"
        return (
            f"the mask{f' in `{line}`' if line else ''} hides nothing: it is {what} for all "
            f"pairs. Hide the pairs above the diagonal: torch.ones(tokens, tokens).triu(1)."
        )
    for _, mask, before, after in met:
        above, below = (after - before)[..., 0, 1:], (after - before)[..., -1, 0].max()
        added = is_mask(mask) and torch.allclose(above, above.max().expand_as(above), atol=1e-5)
        if added and above.max() > -100:
            return (
                f"a mask that holds {above.max():.3g} above the diagonal and {below:.3g} below is "
                f"added to the scores, which hides nothing there. -inf is wanted above and 0 "
                f"below: use masked_fill(mask, float('-inf'))."
            )
    return None


def _masks_met(s, core):
    """[(line, mask, scores before, scores after)] on the way of a core's scores to its weights."""
    found = []
    for call in (s.graph.calls[at] for at in core.path):
        shapes = [made.value.shape for made in outputs(call)]
        scores = [k for k in call.inputs if k.tensor.requires_grad and [k.value.shape] == shapes]
        masks = [k for k in call.inputs if not k.tensor.requires_grad and k.value.dim() > 1]
        if scores and masks:
            after = outputs(call)[0].value
            found += [(call.line, mask.value, scores[0].value, after) for mask in masks]
    return found


def _told_the_kernel(s, core):
    """What scaled_dot_product_attention was given."""
    if core.fused is None or not _ahead(core).any():
        return None
    mask = fused_mask(core.fused)
    if mask is None:
        return "scaled_dot_product_attention got no mask: pass is_causal=True."
    if mask.is_floating_point():
        return (
            "the mask given to scaled_dot_product_attention is a float mask, which is "
            "added to the scores and hides nothing where it holds 0 and 1. Give a "
            "Boolean mask, True = keep."
        )
    return (
        f"the mask given to scaled_dot_product_attention is True, which means keep, "
        f"for {'all pairs' if mask.all() else 'pairs of the future'}. Give "
        f"torch.ones(tokens, tokens, dtype=torch.bool).tril()."
    )


def _filled(s, core):
    """The wrong scores are filled, or the right ones with a number that does not hide."""
    value = filled(core.scores, future(s))
    if core.scores is not None and (core.scores < -1e3).any():
        return (
            "the mask hides other pairs than those of the future. All pairs above the diagonal "
            "should be hidden: torch.ones(tokens, tokens).triu(1)."
        )
    if value == 0:
        return (
            "the scores of hidden pairs become 0, not -inf, and exp(0) = 1 is a weight like "
            "any other. Use masked_fill(mask, float('-inf'))."
        )
    if value is None:
        return None
    return (
        f"the scores of hidden pairs are filled with {value:.3g}, too close to the "
        f"others to hide them. Fill with float('-inf')."
    )


def _no_mask(s):
    mask = mask_in_sight(s)
    if mask == "the name":
        return (
            "it is called causal, and no mask hides the future. Hide the pairs above the diagonal: "
            "scores.masked_fill(torch.ones(tokens, tokens).triu(1).bool(), float('-inf'))."
        )
    if mask:
        return (
            f"there is a mask ({mask}), but it never reaches the softmax. Fill the scores where "
            f"it hides with float('-inf') before the softmax."
        )
    return (
        "no mask reaches the softmax. Hide the pairs above the diagonal: "
        "scores.masked_fill(mask, float('-inf')) with mask = torch.ones(tokens, tokens, "
        "dtype=torch.bool).triu(1)."
    )


_CAUSES = (_switched_off, _thrown_away, _beside_the_mask, _in_a_core, _no_mask)
