"""Notebook 4: loop against weight split, planted faults, times."""

import ipywidgets as widgets
import torch

from .. import lectures
from ..attention import LoopedMultiHeadAttention, MultiHeadAttention
from ..figures.sheet import FAINT, INK, Sheet
from ..tables import largest_difference
from .explorer import Explorer
from .parts import (
    MOST_NUMBERED_TOKENS,
    ROUNDING,
    check_heads,
    choice,
    head_name,
    random_input,
    untrained,
    whole,
)

MEASURE_SECONDS = 1.2  # for both together, well below the two that the button names
_FAULTS = [
    ("none", "none"),
    ("split by view", "split"),
    ("merge by view", "merge"),
    ("heads joined in wrong order", "order"),
]


class _SplitByView(MultiHeadAttention):
    def _split(self, projected):  # cuts the buffer: (batch, num_heads, tokens, head_dim)
        return projected.reshape(len(projected), self.num_heads, -1, self.head_dim)


class _MergeByView(MultiHeadAttention):
    def _merge(self, context):  # forgets to bring tokens before heads
        return context.reshape(len(context), context.shape[2], -1)


def explore_split():
    """Explore the weight split: the heads side by side in W_Q, a planted fault, the times.

    Loop and split have the same weights; a batch of 2. The button measures both for at most
    two seconds. Source: lecture 8, 20:42 to 1:08:40.
    """
    controls = {
        "tokens": whole("tokens", 1, 12, lectures.TOKENS),
        "d_model": whole("d_model", 1, 24, lectures.D_MODEL),
        "num_heads": whole("num_heads", 1, 12, lectures.NUM_HEADS),
        "fault": choice("planted fault", _FAULTS, "none"),
        "measure": widgets.Button(
            description="measure times (at most 2 seconds)",
            layout=widgets.Layout(width="260px", max_width="100%"),
        ),
    }
    enabled = {"measure": _can_measure}
    actions = {"measure": _measure_split}
    return Explorer("explore_split", controls, _render_split, enabled=enabled, actions=actions)


def _render_split(state):
    loop, split, x = _loop_and_split(state)
    with torch.no_grad():
        expected, output = loop(x), split(x)
    num_heads, fault = state["num_heads"], state["fault"]
    order = list(range(num_heads))
    if fault == "order":
        order.reverse()
    largest = largest_difference(expected, output, ROUNDING)
    times = state.get("times", {})
    w_query = (
        split.W_query.weight.detach().mT
    )  # nn.Linear keeps (out, in); the slide has inputs down
    difference = (expected - output).abs()[0]
    shape = tuple(output.shape)
    picture = draw(w_query, order, difference, shape, largest, times)
    text = (
        f"Both outputs have shape {shape}. Largest difference between loop and split: {largest}. "
    )
    same = largest.startswith("below")
    if fault != "none":
        name = dict((value, label) for label, value in _FAULTS)[fault]
        text += f"Planted fault: {name}. " + (
            "With these sizes it changes nothing. " if same else "The shape does not show it. "
        )
    if times:
        text += _times_status(times)
    return picture, text.strip()


def _times_status(times):
    ratio = times["loop"] / times["split"]
    return (
        f"Loop {times['loop'] * 1e3:.3f} ms, split {times['split'] * 1e3:.3f} ms on this machine: "
        f"the loop takes {ratio:.1f} times as long."
    )


def _loop_and_split(state):
    d_model, num_heads, fault = state["d_model"], state["num_heads"], state["fault"]
    check_heads(d_model, num_heads)
    loop = untrained(LoopedMultiHeadAttention, d_model, num_heads)
    kind = {"split": _SplitByView, "merge": _MergeByView}.get(fault, MultiHeadAttention)
    split = kind.from_heads(loop)
    if fault == "order":
        with torch.no_grad():
            for layer in (split.W_query, split.W_key, split.W_value):
                by_head = layer.weight.unflatten(0, (num_heads, -1))
                layer.weight.copy_(by_head.flip(0).flatten(0, 1))
    return loop, split, random_input(2, state["tokens"], d_model)


def _can_measure(state):
    return state["fault"] == "none" and state["d_model"] % state["num_heads"] == 0


def _measure_split(state):
    from ..timing import compare_times  # brings torch's benchmark tools, which take a while to load

    loop, split, x = _loop_and_split(state)
    times = compare_times({"loop": loop, "split": split}, x, seconds=MEASURE_SECONDS)
    return {"times": {name: times.median(name) for name in ("loop", "split")}}


def draw(w_query, order, difference, shape, largest, times):
    """Draw W_Q with its head bands, and where loop and split differ.

    w_query: (d_model, d_model), inputs down. order: the head in each band. difference:
    (tokens, d_model) of the first item. largest: text. times: {name: seconds}, may be empty.
    """
    d_model, num_heads = w_query.shape[0], len(order)
    side, top = 200, 78
    sheet = Sheet(380)
    sheet.title(34, 16, "W_Q: the heads side by side")
    decimals = 1 if d_model <= MOST_NUMBERED_TOKENS else None
    sheet.matrix(34, top, w_query, (side / d_model,) * 2, decimals=decimals, size=10.5)
    band = side / num_heads
    for place, h in enumerate(order):
        sheet.box(34 + place * band, top, band, side, edge=INK, line=1.6)
        head_name(sheet, 34 + (place + 0.5) * band, top - 10, h, num_heads)
    sheet.text(20, top + side / 2, "input numbers", 11.5, "center", rotation=90)
    sheet.text(34, 40, f"{d_model} × {d_model}", 11.5, color=FAINT)
    sheet.title(284, 16, "output, |loop − split|")
    sheet.text(284, 40, f"both outputs have shape {shape}", 11.5, color=FAINT)
    tokens = difference.shape[0]
    cell = (side / d_model, min(side / tokens, 25))
    same = largest.startswith("below")
    shown = torch.zeros_like(difference) if same else difference
    decimals = None if same or max(d_model, tokens) > MOST_NUMBERED_TOKENS else 2
    sheet.matrix(284, top, shown, cell, limits=(0.0, shown.max().item() or 1.0), decimals=decimals)
    if same:
        place = (284 + side / 2, top + cell[1] * tokens / 2)
        sheet.text(*place, "0 up to rounding", 12, "center", color=FAINT)
    sheet.text(272, top + cell[1] * tokens / 2, "tokens", 11.5, "center", rotation=90)
    sheet.text(284 + side / 2, top - 10, "d_model", 11.5, "center")
    sheet.title(284, top + side + 18, f"difference: {largest}")
    if max(d_model, tokens) > MOST_NUMBERED_TOKENS:
        sheet.text(34, top + side + 18, "too many cells for numbers", 11.5, color=FAINT)
    _times(sheet, top + side + 40, times)
    return sheet.picture(
        f"Heat maps: W_Q, {d_model} by {d_model}, with the bands of {num_heads} heads, and the "
        f"difference between loop and split, {tokens} tokens by {d_model} numbers."
        + (" Bars: their times." if times else "")
    )


def _times(sheet, top, times):
    if not times:
        sheet.text(34, top + 12, "times: not measured for these sizes", 11.5, color=FAINT)
        return
    unit = 300 / max(times.values())
    for i, (name, seconds) in enumerate(times.items()):
        y = top + 4 + 22 * i
        sheet.text(76, y + 8, name, 12, "right")
        sheet.bar(84, y, seconds * unit, 16)
        sheet.text(90 + seconds * unit, y + 8, f"{seconds * 1e3:.3f} ms", 11.5)
