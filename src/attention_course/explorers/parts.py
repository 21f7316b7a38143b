"""What the explorers share: controls in one line, words and their vectors, sentences."""

import hashlib
import math
import statistics
import time

import ipywidgets as widgets
import torch

from .. import lectures
from .explorer import Impossible

MEASURE_SECONDS = 0.5  # of the loop, though never fewer than three passes
MOST_WORDS = 12
ROUNDING = 1e-6  # a smaller difference between float32 results is rounding

_WIDE = widgets.Layout(width="330px", max_width="100%")
_LABEL = {"description_width": "120px"}


def whole(label, low, high, value):
    return _control(widgets.IntSlider, label, value, min=low, max=high, continuous_update=False)


def steps(label, options, value):
    return _control(widgets.SelectionSlider, label, value, options=options, continuous_update=False)


def choice(label, options, value):
    return _control(widgets.Dropdown, label, value, options=options)


def switch(label, value):
    return _control(widgets.Checkbox, label, value)


def typed(label, value):
    return _control(widgets.Text, label, value, continuous_update=False)


def button(label):
    return widgets.Button(description=label, layout=widgets.Layout(width="260px", max_width="100%"))


def _control(kind, label, value, **options):
    return kind(value=value, description=label, layout=_WIDE, style=_LABEL, **options)


def head_widths():
    """Return the control of head_dim; 0 is the share of d_model."""
    shared = [("share", 0)]
    return steps("head_dim", shared + [(str(width), width) for width in range(1, 13)], 0)


def head_dim(state):
    """Return the width of one head; raises `Impossible` with the nearest sizes that fit."""
    d_model, num_heads = state["d_model"], state["num_heads"]
    if state.get("head_dim"):
        return state["head_dim"]
    if d_model % num_heads == 0:
        return d_model // num_heads
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


def split_words(text):
    """Return the words of a sentence, without the signs at their ends.

    Raises `Impossible`, with a sentence, where there are none, or more than a picture holds.
    """
    words = [word.strip(".,;:!?") or word for word in text.split()]
    if not words:
        raise Impossible("There are no words yet. Type up to 12, such as: dogs chase cats")
    if len(words) > MOST_WORDS:
        raise Impossible(f"{len(words)} words are too many: the picture has room for up to 12.")
    return words


def vectors(words, width):
    """Return (tokens, width) numbers from -1.7 to 1.7: the same for the same word, whatever case.

    They depend on the letters alone, so they are the same on any machine.
    """
    rows = []
    for word in words:
        digest = hashlib.shake_256(word.lower().encode()).digest(2 * width)
        rows.append([int.from_bytes(digest[i : i + 2], "big") for i in range(0, 2 * width, 2)])
    return (torch.tensor(rows) / 32767.5 - 1) * math.sqrt(3)  # spread 1


def untrained(module, *sizes, **options):
    """Return a module with random weights, always the same ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lectures.DREAM_SEED)
        return module(*sizes, **options)


def random_input(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def cost(tokens, d_model, num_heads, width):
    """Return (parameters, multiplications and additions for one sequence) of all heads."""
    parameters = 4 * d_model * num_heads * width  # W_Q, W_K, W_V and W_out
    products = tokens * parameters + 2 * tokens**2 * num_heads * width  # scores, weights · values
    return parameters, 2 * products


def measured(loop, split, x):
    """Return the median seconds of a pass of each, measured in turns."""
    times = {loop: [], split: []}
    with torch.no_grad():
        while len(times[loop]) < 4 or sum(times[loop][1:]) < MEASURE_SECONDS:
            for module, taken in times.items():
                start = time.perf_counter()
                module(x)
                taken.append(time.perf_counter() - start)
    return tuple(statistics.median(taken[1:]) for taken in times.values())  # without the first
