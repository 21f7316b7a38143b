"""Notebook 3: heads, joining and W_out, what they cost, and how long a loop over them takes."""

import torch

from .. import lectures
from ..attention import LoopedMultiHeadAttention, MultiHeadAttention
from ..figures.sheet import FAINT, INK, LINE, ORANGE, TINTS, Sheet
from .explorer import Explorer
from .panels import every_head, head_name, head_table, names_of
from .parts import (
    button,
    cost,
    count,
    head_dim,
    head_widths,
    measured,
    random_input,
    split_words,
    steps,
    typed,
    untrained,
    vectors,
    whole,
)

_TASKS = (
    ("Try: turn num_heads to 3. Do the parameters change?", lambda state: state["num_heads"] == 3),
    (
        "More heads are narrower, for the same parameters. Turn head_dim to 6, as wide as the "
        "input: what does that cost?",
        lambda state: state["head_dim"] == 6,
    ),
    (
        "At full width each head brings its own parameters. Choose 400 heads in a loop and press "
        "the button: how long does it take?",
        lambda state: 400 in state.get("times", ()),
    ),
    ("Type words of your own, one of them twice: are its rows the same in every head?", None),
)


def explore_heads():
    """Explore heads: the dimension rule, joining, W_out, their cost, the weights of every head.

    head_dim is d_model / num_heads or a width of your own. The heads are untrained; the same
    word has the same random vector. The button times a loop over 2 to 4000 heads of this width.
    Tokens, heads and numbers count from 0. Source: lecture 8, 9:49 to 20:42 and 49:51.
    """
    controls = {
        "words": typed("your own words", lectures.DREAM),
        "d_model": whole("d_model", 1, 24, lectures.D_MODEL),
        "num_heads": whole("num_heads", 1, 12, lectures.NUM_HEADS),
        "head_dim": head_widths(),
        "head": whole("head", 0, lectures.NUM_HEADS - 1, 0),
        "follow": whole("input number", 0, lectures.D_MODEL - 1, 4),
        "loop_heads": steps("heads in a loop", lectures.LOOP_HEADS, 2),
        "measure": button("measure that loop (some seconds)"),
    }
    bounds = {
        "head": lambda state: state["num_heads"] - 1,
        "follow": lambda state: state["d_model"] - 1,
    }
    return Explorer(
        "explore_heads", controls, _render, _TASKS, bounds, actions={"measure": _Loops().measure}
    )


class _Loops:
    """The times that were measured so far: {(d_model, head_dim): {heads: (loop, split)}}."""

    def __init__(self):
        self._known = {}

    def measure(self, state):
        d_model, width, heads = state["d_model"], head_dim(state), state["loop_heads"]
        loop = untrained(LoopedMultiHeadAttention, d_model, heads, width)
        split = MultiHeadAttention.from_heads(loop)
        x = random_input(lectures.BATCH, lectures.TOKENS, d_model)
        known = self._known.setdefault((d_model, width), {})
        known[heads] = measured(loop, split, x)
        return {"times": dict(sorted(known.items()))}


def _render(state):
    words, d_model, num_heads = split_words(state["words"]), state["d_model"], state["num_heads"]
    head, follow, width = state["head"], state["follow"], head_dim(state)
    module = untrained(MultiHeadAttention, d_model, num_heads, width, causal=False)
    with torch.no_grad():  # twice as large as spread 1, so that the weights differ visibly
        _, weights = module(2 * vectors(words, d_model)[None], need_weights=True)
    parameters, operations = cost(len(words), d_model, num_heads, width)
    times = state.get("times", {})
    picture = draw(weights[0], d_model, width, head, follow, words, times)
    first, last = head * width, (head + 1) * width - 1
    own = f"number {first}" if first == last else f"numbers {first} to {last}"
    text = (
        f"{count(num_heads, 'head')} × head_dim {width} = {num_heads * width} joined numbers, from "
        f"d_model {d_model}. {parameters} parameters; {operations} multiplications and additions "
        f"for {count(len(words), 'token')}. Input number {follow} reaches every head. Head {head} "
        f"gives {own} of the joined row; W_out mixes all of them. Largest weight of head {head}, "
        f"untrained: {weights[0, head].max():.2f}. "
    )
    if not times:
        return picture, f"{text}A loop over {state['loop_heads']} heads: not measured."
    for heads, (loop, split) in times.items():
        text += f"{heads} heads in a loop: {loop * 1e3:.2f} ms, split: {split * 1e3:.2f} ms. "
    return picture, text.strip()


def draw(weights, d_model, width, chosen, followed, words, times):
    """Draw the way of the numbers through the heads, and the weights of one head and of all.

    weights: (num_heads, tokens, tokens). width: head_dim. chosen: a head, followed: an input
    number. times: {heads: (seconds of the loop, of the split)}, may be empty.
    """
    num_heads, tokens, _ = weights.shape
    joined = num_heads * width
    sheet = Sheet()
    plural = count(num_heads, "head")
    sheet.title(20, 16, f"{plural} × head_dim {width} = {joined} joined, d_model {d_model}")
    size = f"4 × {d_model} × {joined} = {4 * d_model * joined} parameters"
    sheet.text(20, 38, f"W_Q, W_K, W_V, W_out: {size}")
    unit = 150 / max(d_model, joined)
    _project(sheet, unit, d_model, num_heads, width, chosen, followed)
    _mix(sheet, unit, d_model, num_heads, width, chosen)
    top = 290
    limits = (0.0, weights.max().item())
    sheet.title(20, top, f"head {chosen}, untrained: its weights")
    _, below, step = head_table(sheet, top + 14, weights[chosen], names_of(words), limits=limits)
    bottom = below + step * tokens + 20
    sheet.title(20, bottom, f"{plural}, one scale: 0 to {limits[1]:.2f}")
    end = every_head(sheet, 20, bottom + 12, weights, chosen, limits) + 12
    for heads, (loop, split) in times.items():
        sheet.text(20, end, f"{heads} heads in a loop: {loop * 1e3:.2f} ms")
        sheet.text(250, end, f"all at once: {split * 1e3:.2f} ms")
        end += 20
    return sheet.picture(
        end,
        f"Diagram: number {followed} of the input meets its own row of W_Q in {plural}, each "
        f"attends by itself, and W_out, {joined} by {d_model}, mixes the joined numbers; the rows "
        f"of head {chosen} are outlined. Heat maps: the weights of {plural}, untrained, over "
        f"{tokens} words, on one scale.",
    )


def _project(sheet, unit, d_model, num_heads, width, chosen, followed):
    """Draw the input, W_Q with a band for each head, and the queries below it."""
    left, top, band, high = 62, 88, width * unit, d_model * unit
    sheet.text(left, 62, "input · W_Q = queries", 11.5)
    for h in range(num_heads):
        x = left + h * band
        sheet.box(x, top, band, high, TINTS[h % 2])
        sheet.box(x, top + followed * unit, band, unit, ORANGE)
        head_name(sheet, x + band / 2, top - 9, h, num_heads)
        sheet.box(x, top + 166, band, 12, TINTS[h % 2], LINE)
    for i in range(d_model):
        sheet.box(left - 22, top + i * unit, 14, unit, ORANGE if i == followed else "white", LINE)
    sheet.box(left, top, num_heads * band, high, edge=LINE)
    sheet.box(left + chosen * band, top, band, high, edge=INK, line=2.4)
    y = top + (followed + 0.5) * unit
    sheet.text(left - 26, y, str(followed), 12, "right", ORANGE, bold=True)
    sheet.text(left - 5, top + 172, "queries", 11, "right", FAINT)
    for i, text in enumerate(("each head", "attends by", "itself")):
        sheet.text(256, top + 16 + 15 * i, text, 11.5, "center")
    sheet.line([(222, top + 64), (290, top + 64)], INK)
    sheet.line([(284, top + 60), (290, top + 64), (284, top + 68)], INK)
    for i, text in enumerate(("keys, values:", "the same way")):
        sheet.text(256, top + 84 + 14 * i, text, 11, "center", FAINT)


def _mix(sheet, unit, d_model, num_heads, width, chosen):
    """Draw the joined heads, W_out with rows for each head, and the output below it."""
    left, top, band = 342, 88, width * unit
    sheet.text(left - 26, 62, "joined · W_out = output", 11.5)
    for h in range(num_heads):
        y = top + h * band
        sheet.box(left - 22, y, 14, band, TINTS[h % 2], LINE)
        sheet.box(left, y, d_model * unit, band, TINTS[h % 2])
        sheet.text(left - 26, y + band / 2, str(h), 10.5, "right")
    sheet.box(left, top, d_model * unit, num_heads * band, edge=LINE)
    sheet.box(left, top + chosen * band, d_model * unit, band, edge=INK, line=2.4)
    for j in range(d_model):
        sheet.box(left + j * unit, top + 166, unit, 12, "white", LINE)
    sheet.text(left - 5, top + 172, "output", 11, "right", FAINT)
