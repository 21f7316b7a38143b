"""Notebook 2: the causal mask, where it acts, and dropout."""

import torch

from .. import lectures
from ..attention import attention, causal_mask
from ..figures.sheet import FAINT, ORANGE, Sheet
from .explorer import Explorer
from .parts import ROUNDING, choice, decimal, split_words, switch

_NOBODY = -1


def explore_mask():
    """Explore the causal mask: where it acts, dropout, and which outputs a token can move.

    Six tokens of lecture 6 with our weights. Disturbing a token adds 1 to its numbers.
    Dropout draws the same cells each time. Source: lecture 8, 0:47 to 3:05.
    """
    words = split_words(lectures.DREAM)
    places = [("before softmax: −∞", "before"), ("after softmax: 0", "after")]
    tokens = [("none", _NOBODY), *((f"{w} ({i + 1})", i) for i, w in enumerate(words))]
    controls = {
        "mask": switch("causal mask", True),
        "place": choice("mask acts", places, "before"),
        "dropout": decimal("dropout", 0.0, 0.8, 0.1, 0.0),
        "disturb": choice("disturb", tokens, len(words) - 1),
    }
    enabled = {"place": lambda state: state["mask"]}
    return Explorer("explore_mask", controls, _render_mask, enabled=enabled)


def _render_mask(state):
    words, disturbed, dropout = split_words(lectures.DREAM), state["disturb"], state["dropout"]
    x = torch.tensor(lectures.DREAM_INPUTS)  # (tokens, 3)
    hidden = causal_mask(len(words)) & state["mask"]
    chance = torch.rand(hidden.shape, generator=torch.Generator().manual_seed(0))
    kept = (chance >= dropout) / (1 - dropout)  # the surviving weights grow by 1 / (1 - p)
    outputs, weights = _masked(x, hidden, state["place"], kept)
    moved = None
    if disturbed != _NOBODY:
        other = x.clone()
        other[disturbed] += 1.0
        moved = (_masked(other, hidden, state["place"], kept)[0] - outputs).abs().amax(-1)
        moved = torch.where(moved < ROUNDING, 0.0, moved)
    dropped = (kept == 0) & ~hidden
    picture = draw(words, weights, hidden, dropped, moved, disturbed)
    return picture, _mask_status(state, words, weights, hidden, dropped, moved)


def _masked(x, hidden, place, kept):
    queries, keys, values = (
        x @ torch.tensor(w)
        for w in (lectures.OUR_W_QUERY, lectures.OUR_W_KEY, lectures.OUR_W_VALUE)
    )
    if place == "before":
        _, weights = attention(queries, keys, values, hidden)
    else:
        _, weights = attention(queries, keys, values)
        weights = weights.masked_fill(hidden, 0.0)
    weights = weights * kept
    return weights @ values, weights


def _mask_status(state, words, weights, hidden, dropped, moved):
    place = f", {state['place']} the softmax" if state["mask"] else ""
    text = f"Mask {'on' if state['mask'] else 'off'}{place}: {int(hidden.sum())} cells hidden. "
    if state["dropout"]:
        text += f"Dropout {state['dropout']:.1f} dropped {int(dropped.sum())} weights. "
    sums = weights.sum(-1)
    one = bool(((sums - 1).abs() < ROUNDING).all())
    text += (
        "Each row adds up to 1. "
        if one
        else f"Rows add up to {sums.min():.2f} to {sums.max():.2f}. "
    )
    if moved is None:
        return f"{text}No token is disturbed."
    name = f"{words[state['disturb']]} ({state['disturb'] + 1})"
    names = [f"{word} ({i + 1})" for i, word in enumerate(words) if moved[i] > 0]
    earlier = bool((moved[: state["disturb"]] > 0).any())
    text += f"Disturbing {name} moves the outputs of: {', '.join(names) or 'none'}. "
    if earlier:
        return f"{text}An earlier token has seen the future."
    return f"{text}No earlier token has seen the future."


def draw(words, weights, hidden, dropped, moved, disturbed):
    """Draw the weights, hidden cells hatched, their row sums, and how far each output moved.

    weights, hidden, dropped: (tokens, tokens). moved: (tokens,), None where no token is
    disturbed. disturbed: the number of that token.
    """
    left, top, wide, high = 62, 62, 44, 32
    sheet = Sheet(top + high * len(words) + 50)
    sheet.title(left, 14, "weights")
    sheet.text(left + 62, 14, "row: token that attends, column: attended to", 11, color=FAINT)
    sheet.matrix(left, top, weights, (wide, high), words, words, hidden, (0.0, 1.0))
    for i, j in dropped.nonzero().tolist():
        sheet.text(left + (j + 0.5) * wide + 14, top + i * high + 9, "×", 12, "center")
    right = left + wide * len(words)
    sheet.text(right + 24, top - 10, "sum", 11.5, "center")
    for i, total in enumerate(weights.sum(-1).tolist()):
        sheet.text(right + 24, top + (i + 0.5) * high, f"{total:.2f}", 11.5, "center")
    bottom = top + high * len(words)
    sheet.text(left, bottom + 16, "hatched: hidden by the mask", 11.5, color=FAINT)
    if dropped.any():
        sheet.text(left, bottom + 34, "×: dropped by dropout", 11.5, color=FAINT)
    _moved(sheet, right + 60, top, high, moved, disturbed)
    told = "no token is disturbed" if moved is None else f"{words[disturbed]} is disturbed"
    return sheet.picture(
        f"Heat map: weights of {len(words)} words, {int(hidden.sum())} cells hidden, "
        f"{int(dropped.sum())} dropped, with the sum of each row; bars: how far each output "
        f"moved; {told}."
    )


def _moved(sheet, left, top, step, moved, disturbed):
    sheet.title(left, 14, "output moved")
    if moved is None:
        sheet.text(left, top + step / 2, "no token disturbed", 11.5, color=FAINT)
        return
    unit = 60 / (max(moved.tolist()) or 1)
    for i, amount in enumerate(moved.tolist()):
        y = top + (i + 0.5) * step
        if i == disturbed:
            sheet.text(left - 12, y, "▶", 12, "center", color=ORANGE)
        if amount == 0:
            sheet.text(left, y, "stays", 11.5, color=FAINT)
            continue
        sheet.bar(left, y - 9, amount * unit, 18, ORANGE)
        sheet.text(left + amount * unit + 4, y, f"{amount:.2f}", 11.5)
    sheet.text(left, top - 10, "▶ disturbed", 11, color=ORANGE)
