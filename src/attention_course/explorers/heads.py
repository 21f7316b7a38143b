"""Notebook 3: heads, joining and W_out."""

import math

import torch

from .. import lectures
from ..attention import MultiHeadAttention
from ..figures.sheet import FAINT, INK, LINE, ORANGE, TINTS, Sheet
from .explorer import Explorer
from .parts import check_heads, head_name, random_input, split_words, untrained, whole


def explore_heads():
    """Explore heads: the dimension rule, joining, W_out, and the weights of every head.

    The heads are untrained: random weights, random inputs. `head` and `follow` count from 1.
    Source: lecture 8, 9:49 to 20:42.
    """
    controls = {
        "d_model": whole("d_model", 1, 24, lectures.D_MODEL),
        "num_heads": whole("num_heads", 1, 12, lectures.NUM_HEADS),
        "head": whole("head", 1, lectures.NUM_HEADS, 1),
        "follow": whole("input number", 1, lectures.D_MODEL, 5),
    }
    bounds = {"head": lambda state: state["num_heads"], "follow": lambda state: state["d_model"]}
    return Explorer("explore_heads", controls, _render_heads, bounds)


def _render_heads(state):
    d_model, num_heads = state["d_model"], state["num_heads"]
    head, follow = state["head"], state["follow"]
    check_heads(d_model, num_heads)
    words = split_words(lectures.DREAM)
    module = untrained(MultiHeadAttention, d_model, num_heads, causal=False)
    x = random_input(1, len(words), d_model)
    with torch.no_grad():
        _, weights = module(x, need_weights=True)
    picture = draw(weights[0], d_model, head - 1, follow - 1, words)
    head_dim = d_model // num_heads
    first, last = (head - 1) * head_dim + 1, head * head_dim
    own = f"number {first}" if first == last else f"numbers {first} to {last}"
    return picture, (
        f"d_model {d_model} = num_heads {num_heads} × head_dim {head_dim}; 4 × {d_model} × "
        f"{d_model} = {4 * d_model**2} parameters, as with any other number of heads. Input "
        f"number {follow} reaches every head. Head {head} of {num_heads} gives {own} of the "
        f"joined row; after W_out each output number uses every head. The heads are untrained: "
        f"they differ by chance. Largest weight of head {head}: "
        f"{weights[0, head - 1].max():.2f}."
    )


def draw(weights, d_model, chosen, followed, words):
    """Draw the heads as bands of W_Q and W_out, and the weights of every head on one scale.

    weights: (num_heads, tokens, tokens). chosen: a head, followed: an input number, from 0.
    """
    num_heads, tokens, _ = weights.shape
    head_dim = d_model // num_heads
    sheet = Sheet(570)
    plural = "" if num_heads == 1 else "s"
    sheet.title(20, 16, f"d_model {d_model} = {num_heads} head{plural} × {head_dim} (head_dim)")
    sheet.text(
        20,
        38,
        f"W_Q, W_K, W_V, W_out: 4 × {d_model} × {d_model} = {4 * d_model**2} parameters, "
        f"for any num_heads",
        12,
    )
    _project(sheet, d_model, num_heads, chosen, followed)
    _mix(sheet, d_model, num_heads, chosen)
    top = 330
    limits = (0.0, weights.max().item())
    sheet.title(20, top, f"head {chosen + 1}, untrained: its weights")
    cell = (35, 30)
    sheet.matrix(54, top + 42, weights[chosen], cell, words, words, None, limits, size=10.5)
    _small_multiples(sheet, 288, top, weights, chosen, limits)
    return sheet.picture(
        f"Diagram: number {followed + 1} of the input meets its own row of W_Q in all "
        f"{num_heads} heads; the joined heads and W_out, {d_model} by {d_model}, with the rows "
        f"of head {chosen + 1} outlined. Heat maps: the weights of {num_heads} untrained heads "
        f"over {tokens} words, on one scale."
    )


def _project(sheet, d_model, num_heads, chosen, followed):
    left, top, side = 60, 92, 168
    cell, band = side / d_model, side / num_heads
    sheet.text(left, 62, "input times W_Q", 11.5)
    for h in range(num_heads):
        x = left + h * band
        sheet.box(x, top, band, side, TINTS[h % 2])
        sheet.box(x, top + followed * cell, band, cell, ORANGE)
        head_name(sheet, x + band / 2, top - 9, h, num_heads)
        sheet.box(x, top + side + 16, band, 14, TINTS[h % 2], LINE)
    for i in range(d_model):
        face = ORANGE if i == followed else "white"
        sheet.box(left - 22, top + i * cell, 14, cell, face, LINE, 0.6)
    sheet.box(left, top, side, side, edge=LINE)
    sheet.box(left + chosen * band, top, band, side, edge=INK, line=1.8)
    y = top + (followed + 0.5) * cell
    sheet.text(left - 26, y, f"{followed + 1}", 12, "right", weight="bold", color=ORANGE)
    sheet.text(left - 5, top + side + 23, "joined", 11, "right", color=FAINT)
    sheet.text(left + side / 2, top + side + 44, _bands(num_heads), 11, "center", color=FAINT)


def _bands(num_heads):
    return "one band for each head" if num_heads > 1 else "one head, one band"


def _mix(sheet, d_model, num_heads, chosen):
    left, top, side = 310, 92, 168
    band = side / num_heads
    sheet.text(left, 62, "joined times W_out", 11.5)
    for h in range(num_heads):
        sheet.box(left - 22, top + h * band, 14, band, TINTS[h % 2], LINE)
        sheet.box(left, top + h * band, side, band, TINTS[h % 2])
        if num_heads <= 12:
            sheet.text(left - 26, top + (h + 0.5) * band, str(h + 1), 11, "right")
    sheet.box(left, top, side, side, edge=LINE)
    sheet.box(left, top + chosen * band, side, band, edge=INK, line=1.8)
    cell = side / d_model
    for j in range(d_model):
        sheet.box(left + j * cell, top + side + 16, cell, 14, "white", LINE, 0.6)
    sheet.text(left - 5, top + side + 23, "output", 11, "right", color=FAINT)
    sheet.text(
        left + side / 2, top + side + 44, "each output number uses all", 11, "center", color=FAINT
    )


def _small_multiples(sheet, left, top, weights, chosen, limits):
    num_heads, tokens, _ = weights.shape
    across = math.ceil(math.sqrt(num_heads))
    step = 204 / across
    side = step - 14
    sheet.title(left, top, f"all {num_heads}, one scale: 0 to {limits[1]:.2f}")
    for h in range(num_heads):
        x, y = left + h % across * step, top + 36 + h // across * (step + 6)
        sheet.matrix(x, y, weights[h], (side / tokens,) * 2, limits=limits, decimals=None)
        head_name(sheet, x + side / 2, y - 9, h, num_heads)
        if h == chosen:
            sheet.box(x, y, side, side, edge=INK, line=2)
