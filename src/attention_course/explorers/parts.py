"""What the explorers share: controls in one line, fixed random numbers, sentences."""

import ipywidgets as widgets
import torch

from .. import lectures
from .explorer import Impossible

MOST_NUMBERED_TOKENS = 8  # more rows than this, and the cells stay without numbers
ROUNDING = 1e-6  # a smaller difference between float32 results is rounding

WIDE = widgets.Layout(width="330px", max_width="100%")
LABEL = {"description_width": "120px"}


def whole(label, low, high, value):
    return widgets.IntSlider(
        value, low, high, description=label, continuous_update=False, layout=WIDE, style=LABEL
    )


def decimal(label, low, high, step, value):
    return widgets.FloatSlider(
        value=value,
        min=low,
        max=high,
        step=step,
        description=label,
        continuous_update=False,
        readout_format=".1f",
        layout=WIDE,
        style=LABEL,
    )


def choice(label, options, value):
    return widgets.Dropdown(
        options=options, value=value, description=label, layout=WIDE, style=LABEL
    )


def switch(label, value):
    return widgets.Checkbox(value=value, description=label, layout=WIDE, style=LABEL)


def check_heads(d_model, num_heads):
    if d_model % num_heads == 0:
        return
    by_heads = nearest(num_heads, [n for n in range(1, d_model + 1) if d_model % n == 0])
    by_width = nearest(d_model, [num_heads * k for k in range(1, 26)])
    raise Impossible(
        f"{d_model} numbers (d_model) cannot be shared equally by {num_heads} heads (num_heads). "
        f"Nearest that work: {by_heads} heads on d_model {d_model}, or d_model {by_width} with "
        f"{num_heads} heads."
    )


def nearest(value, fitting):
    below = [n for n in fitting if n < value][-1:]
    above = [n for n in fitting if n > value][:1]
    return " or ".join(map(str, below + above))


def count(number, one, many=None):
    return f"{number} {one if number == 1 else many or one + 's'}"


def split_words(sentence):
    return sentence.replace(",", "").split()


def untrained(module, *sizes, **options):
    """Return a module with random weights, always the same ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lectures.DREAM_SEED)
        return module(*sizes, **options)


def random_input(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def head_name(sheet, x, y, h, num_heads):
    sheet.text(x, y, f"head {h + 1}" if num_heads <= 4 else str(h + 1), 10.5, "center")
