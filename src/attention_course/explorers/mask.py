"""Notebook 2: the causal mask, where it acts, and dropout."""

import torch

from .. import lectures
from ..attention import attention, causal_mask
from ..figures import explored
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
    draw = torch.rand(hidden.shape, generator=torch.Generator().manual_seed(0))
    kept = (draw >= dropout) / (1 - dropout)  # the surviving weights grow by 1 / (1 - p)
    outputs, weights = _masked(x, hidden, state["place"], kept)
    moved = None
    if disturbed != _NOBODY:
        other = x.clone()
        other[disturbed] += 1.0
        moved = (_masked(other, hidden, state["place"], kept)[0] - outputs).abs().amax(-1)
        moved = torch.where(moved < ROUNDING, 0.0, moved)
    dropped = (kept == 0) & ~hidden
    picture = explored.mask(words, weights, hidden, dropped, moved, disturbed)
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
