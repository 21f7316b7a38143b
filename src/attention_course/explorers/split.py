"""Notebook 4: loop against weight split, planted faults, costs and times."""

import torch

from .. import lectures
from ..attention import LoopedMultiHeadAttention, MultiHeadAttention
from ..figures.sheet import FAINT, INK, ORANGE, Sheet
from ..tables import largest_difference
from .explorer import Explorer
from .panels import MOST_NUMBERED_TOKENS, head_name
from .parts import (
    ROUNDING,
    button,
    choice,
    cost,
    head_dim,
    head_widths,
    measured,
    random_input,
    untrained,
    whole,
)

_FAULTS = [
    ("none", "none"),
    ("split by view", "split"),
    ("merge by view", "merge"),
    ("heads joined in wrong order", "order"),
]
_TASKS = (
    (
        "Try: plant a fault. What does it change, and what not?",
        lambda state: state["fault"] != "none",
    ),
    (
        "The shape is still right. Leave the fault and turn num_heads to 1: where is it now?",
        lambda state: state["fault"] != "none" and state["num_heads"] == 1,
    ),
    ("One head has nothing to mix up. Take the fault away and measure with 12 heads on 24.", None),
)


class _SplitByView(MultiHeadAttention):
    def _split(self, projected):  # cuts the buffer: (batch, num_heads, tokens, head_dim)
        return projected.reshape(len(projected), self.num_heads, -1, self.head_dim)


class _MergeByView(MultiHeadAttention):
    def _merge(self, context):  # forgets to bring tokens before heads
        return context.reshape(len(context), context.shape[2], -1)


def explore_split():
    """Explore the weight split: the heads side by side in W_Q, a planted fault, costs and times.

    Loop and split have the same weights; a batch of 2. head_dim is d_model / num_heads or a
    width of your own. Tokens, heads and numbers count from 0.
    Source: lecture 8, 20:42 to 1:08:40.
    """
    controls = {
        "tokens": whole("tokens", 1, 12, lectures.TOKENS),
        "d_model": whole("d_model", 1, 24, lectures.D_MODEL),
        "num_heads": whole("num_heads", 1, 12, lectures.NUM_HEADS),
        "head_dim": head_widths(),
        "fault": choice("planted fault", _FAULTS, "none"),
        "measure": button("measure times (a second)"),
    }
    enabled = {"measure": _can_measure}
    actions = {"measure": _measure}
    return Explorer("explore_split", controls, _render, _TASKS, enabled=enabled, actions=actions)


def _render(state):
    loop, split, x = _loop_and_split(state)
    with torch.no_grad():
        expected, output = loop(x), split(x)
    fault, order = state["fault"], list(range(loop.num_heads))
    if fault == "order":
        order.reverse()
    largest = largest_difference(expected, output, ROUNDING)
    costs = cost(state["tokens"], loop.d_model, loop.num_heads, loop.head_dim)
    w_query = split.W_query.weight.detach().mT  # nn.Linear keeps (out, in)
    picture = draw(w_query, order, expected[0], output[0], largest, costs, state.get("times"))
    text = (
        f"Both outputs have shape {tuple(output.shape)}. Largest difference between loop and "
        f"split: {largest}. "
    )
    if fault != "none":
        name = dict((value, label) for label, value in _FAULTS)[fault]
        same = largest.startswith("below")
        text += f"Planted fault: {name}. " + (
            "With these sizes it changes nothing. " if same else "The shape does not show it. "
        )
    text += f"{loop.num_heads} × head_dim {loop.head_dim}: {costs[0]} parameters. "
    if "times" in state:
        loop, split = state["times"]
        text += f"Loop {loop * 1e3:.3f} ms, split {split * 1e3:.3f} ms on this machine: "
        text += f"the loop takes {loop / split:.1f} times as long."
    return picture, text.strip()


def _loop_and_split(state):
    d_model, num_heads, fault = state["d_model"], state["num_heads"], state["fault"]
    loop = untrained(LoopedMultiHeadAttention, d_model, num_heads, head_dim(state))
    kind = {"split": _SplitByView, "merge": _MergeByView}.get(fault, MultiHeadAttention)
    split = kind.from_heads(loop)
    if fault == "order":
        with torch.no_grad():
            for layer in (split.W_query, split.W_key, split.W_value):
                by_head = layer.weight.unflatten(0, (num_heads, -1))
                layer.weight.copy_(by_head.flip(0).flatten(0, 1))
    return loop, split, random_input(lectures.BATCH, state["tokens"], d_model)


def _can_measure(state):
    fits = state["head_dim"] or state["d_model"] % state["num_heads"] == 0
    return state["fault"] == "none" and bool(fits)


def _measure(state):
    return {"times": measured(*_loop_and_split(state))}


def draw(w_query, order, expected, output, largest, costs, times):
    """Draw W_Q with its head bands, and the outputs of loop and split with what differs framed.

    w_query: (d_model, num_heads * head_dim), inputs down. order: the head in each band.
    expected, output: (tokens, d_model) of the first sequence. largest: text. costs: parameters
    and operations. times: (seconds of the loop, of the split), or None.
    """
    (d_model, joined), tokens = w_query.shape, len(output)
    sheet, side, top = Sheet(), 200, 78
    unit = side / max(d_model, joined)
    sheet.title(34, 16, "W_Q: the heads side by side", f"{d_model} × {joined}")
    decimals = 1 if max(d_model, joined) <= MOST_NUMBERED_TOKENS else None
    sheet.matrix(34, top, w_query, (unit, unit), decimals=decimals, size=10.5)
    band = unit * joined / len(order)
    for place, h in enumerate(order):
        sheet.box(34 + place * band, top, band, d_model * unit, edge=INK, line=2)
        head_name(sheet, 34 + (place + 0.5) * band, top - 10, h, len(order))
    sheet.text(20, top + d_model * unit / 2, "d_model", 11.5, "center", upright=True)
    cell = (side / d_model, min(104 / tokens, 18))
    decimals = 2 if max(d_model, tokens) <= MOST_NUMBERED_TOKENS else None
    limits = (-expected.abs().max().item(), expected.abs().max().item())
    for name, numbers, above in (("loop", expected, 20), ("split", output, 166)):
        sheet.title(284, above - 4, f"output of the {name}", f"{tokens} tokens × d_model {d_model}")
        sheet.matrix(284, above + 26, numbers, cell, limits=limits, decimals=decimals, size=10)
    for i, j in ((output - expected).abs() > ROUNDING).nonzero().tolist():
        sheet.box(284 + j * cell[0], 192 + i * cell[1], *cell, edge=ORANGE, line=1.6)
    y = 192 + cell[1] * tokens + 16
    sheet.text(284, y, f"largest difference: {largest}", bold=True)
    sheet.text(284, y + 18, "orange frame: not the loop's number", 11, color=FAINT)
    _costs(sheet, 348, costs, times)
    return sheet.picture(
        410,
        f"Heat maps: W_Q, {d_model} by {joined}, with the bands of {len(order)} heads, and the "
        f"outputs of loop and split, {tokens} tokens by {d_model} numbers, largest difference "
        f"{largest}." + (" Bars: their times." if times else ""),
    )


def _costs(sheet, y, costs, times):
    """Write what the heads cost, and how long a pass took where that was measured."""
    sheet.text(34, y, f"{costs[0]} parameters; {costs[1]} multiplications and additions a sequence")
    if times is None:
        sheet.text(34, y + 22, "times: not measured for these sizes", 11.5, color=FAINT)
    for i, (name, seconds) in enumerate(zip(("loop", "split"), times or (), strict=False)):
        length = 260 * seconds / max(times)
        sheet.text(76, y + 24 + 22 * i, name, 12, "right")
        sheet.bar(84, y + 16 + 22 * i, length, 16)
        sheet.text(90 + length, y + 24 + 22 * i, f"{seconds * 1e3:.3f} ms", 11.5)
