"""Notebook 2: the causal mask, where it acts, and dropout."""

import torch

from .. import lectures
from ..attention import attention, causal_mask
from ..figures.sheet import FAINT, Sheet
from .explorer import Explorer
from .panels import every_head, head_table, moved_bars, names_of
from .parts import (
    ROUNDING,
    choice,
    count,
    head_dim,
    split_words,
    steps,
    switch,
    typed,
    vectors,
    whole,
)

_PLACES = [("before softmax: −∞", "before"), ("after softmax: 0", "after")]
_TASKS = (
    (
        "Try: let the mask act after the softmax. Which outputs move, what do the rows add up to?",
        lambda state: state["mask"] and state["place"] == "after",
    ),
    (
        "Earlier outputs move: the softmax had seen the future. Put the mask back before it and "
        "disturb a token in the middle.",
        lambda state: state["place"] == "before" and 0 < state["disturb"] < state["tokens"] - 1,
    ),
    ("That token moves and those after it. Turn up dropout: can a row lose all weights?", None),
)


def explore_mask():
    """Explore the causal mask: where it acts, dropout, and which outputs a token can move.

    One vector for each word, made from its letters; the heads are untrained and joined without
    W_out. Disturbing a token adds 1 to its numbers. Dropout draws the same cells each time.
    Tokens and heads count from 0. Source: lecture 8, 0:47 to 3:05.
    """
    tokens = len(lectures.DREAM.split())
    controls = {
        "words": typed("your own words", lectures.DREAM),
        "tokens": whole("tokens", 1, tokens, tokens),
        "d_model": whole("d_model", 1, 24, lectures.D_MODEL),
        "num_heads": whole("num_heads", 1, 12, lectures.NUM_HEADS),
        "head": whole("head", 0, lectures.NUM_HEADS - 1, 0),
        "mask": switch("causal mask", True),
        "place": choice("mask acts", _PLACES, "before"),
        "dropout": steps("dropout", [n / 10 for n in range(9)], 0.0),
        "disturb": whole("disturb token", 0, tokens - 1, tokens - 1),
    }
    bounds = {
        "tokens": lambda state: len(state["words"].split()) or 1,
        "head": lambda state: state["num_heads"] - 1,
        "disturb": lambda state: state["tokens"] - 1,
    }
    enabled = {"place": lambda state: state["mask"]}
    return Explorer(
        "explore_mask", controls, _render, _TASKS, bounds, ("tokens", "disturb"), enabled
    )


def _render(state):
    words, disturbed = split_words(state["words"])[: state["tokens"]], state["disturb"]
    num_heads, width = state["num_heads"], head_dim(state)
    x = vectors(words, state["d_model"])
    hidden = causal_mask(len(words)) & state["mask"]
    generator = torch.Generator().manual_seed(0)
    matrices = torch.randn(3, x.shape[1], num_heads, width, generator=generator)
    chance = torch.rand(num_heads, *hidden.shape, generator=generator)
    kept = (chance >= state["dropout"]) / (1 - state["dropout"])  # what survives grows
    outputs, weights = _masked(x, matrices, hidden, state["place"], kept)
    other = x.clone()
    other[disturbed] += 1.0
    moved = _masked(other, matrices, hidden, state["place"], kept)[0] - outputs
    moved = moved.abs().amax((0, 2))  # (num_heads, tokens, head_dim) -> (tokens,)
    moved = torch.where(moved < ROUNDING, 0.0, moved)
    dropped = (kept == 0) & ~hidden
    picture = draw(words, weights, hidden, dropped, moved, disturbed, state["head"])
    return picture, _status(state, words, weights, hidden, dropped, moved)


def _masked(x, matrices, hidden, place, kept):
    """Return the contexts (num_heads, tokens, head_dim) and the weights of all heads."""
    # (3, d_model, num_heads, head_dim) -> three of (num_heads, tokens, head_dim)
    queries, keys, values = torch.einsum("td,pdhw->phtw", x, matrices / x.shape[1] ** 0.5)
    if place == "before":
        _, weights = attention(queries, keys, values, hidden)
    else:
        _, weights = attention(queries, keys, values)
        weights = weights.masked_fill(hidden, 0.0)
    weights = weights * kept
    return weights @ values, weights


def _status(state, words, weights, hidden, dropped, moved):
    head, disturbed = state["head"], state["disturb"]
    place = f", {state['place']} the softmax" if state["mask"] else ""
    text = f"Mask {'on' if state['mask'] else 'off'}{place}: {int(hidden.sum())} cells hidden. "
    if state["dropout"]:
        lost = int(dropped[head].sum())
        text += f"Dropout {state['dropout']} dropped {lost} weights of head {head}. "
    sums = weights[head].sum(-1)
    one = bool(((sums - 1).abs() < ROUNDING).all())
    text += f"In head {head} of {len(weights)}, head_dim {head_dim(state)}, rows add up to "
    text += "1. " if one else f"{sums.min():.2f} to {sums.max():.2f}. "
    names = [f"{word} ({i})" for i, word in enumerate(words) if moved[i] > 0]
    text += f"Disturbing {words[disturbed]} ({disturbed}) moves the outputs of: "
    text += f"{', '.join(names) or 'none'}. "
    earlier = bool((moved[:disturbed] > 0).any())
    return f"{text}{'An' if earlier else 'No'} earlier token has seen the future."


def draw(words, weights, hidden, dropped, moved, disturbed, head):
    """Draw the weights of one head, what is hidden and dropped, what moved, and every head.

    weights, dropped: (num_heads, tokens, tokens). hidden: (tokens, tokens). moved: (tokens,).
    """
    sheet, names = Sheet(), names_of(words)
    num_heads, tokens = len(weights), len(words)
    sheet.title(62, 14, f"head {head}: its weights", "row: token that attends, column: attended to")
    right, top, step = head_table(sheet, 48, weights[head], names, hidden=hidden)
    wide = (right - 62 - 62) / tokens
    for i, j in dropped[head].nonzero().tolist():
        sheet.text(62 + (j + 0.5) * wide, top + (i + 0.5) * step, "×", 16, "center")
    moved_bars(sheet, right, top, step, moved, disturbed)
    bottom = top + step * tokens + 16
    note = "hatched: hidden by the mask" + (", ×: dropped by dropout" if dropped.any() else "")
    sheet.text(62, bottom, note, 11.5, color=FAINT)
    sheet.title(20, bottom + 32, f"{count(num_heads, 'head')}, untrained")
    covered = hidden.expand(num_heads, tokens, tokens)
    end = every_head(sheet, 20, bottom + 44, weights, head, (0.0, 1.0), covered)
    return sheet.picture(
        end + 8,
        f"Heat map: weights of head {head} over {tokens} words, {int(hidden.sum())} cells "
        f"hidden, {int(dropped[head].sum())} dropped, with the sum of each row; bars: how far each "
        f"output moved when {words[disturbed]} was disturbed; small heat maps of "
        f"{count(num_heads, 'head')}.",
    )
