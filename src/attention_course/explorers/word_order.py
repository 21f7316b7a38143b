"""Notebook 6: what attention knows of word order."""

import torch

from .. import lectures
from ..attention import attention, causal_mask
from ..figures.sheet import FAINT, INK, ORANGE, Sheet
from ..positions import LearnedPositions, rotary, sinusoidal
from ..tables import largest_difference, power_text
from .explorer import Explorer, Impossible
from .panels import MOST_NUMBERED_TOKENS, names_height, names_of
from .parts import (
    MOST_WORDS,
    ROUNDING,
    choice,
    count,
    head_dim,
    nearest,
    split_words,
    switch,
    typed,
    untrained,
    vectors,
    whole,
)

_OWN = "own words"
_SENTENCES = [lectures.ALL_DOGS, lectures.TWO_ITS, _OWN]
_ORDERS = [
    ("swap second and last", "swap"),
    ("reverse", "reverse"),
    ("shuffle all but the last", "shuffle"),
    ("leave as it is", "same"),
]
_POSITIONS = ["none", "sinusoidal", "learned", "rotary"]
_TASKS = (
    ("Try: set the causal mask. Which words notice the other order?", lambda state: state["mask"]),
    (
        "The first word does not: it sees itself alone. Take the mask away and add positions.",
        lambda state: not state["mask"] and state["positions"] != "none",
    ),
    ("Now all notice. Choose own words and repeat a word: when do its two rows part?", None),
)


def explore_word_order():
    """Explore what attention knows of word order: your own words, mask, positions, layers.

    Untrained heads; each word has one vector, made from its letters. The second layer takes the
    first one's output. Tokens and heads count from 0. Source: lecture 8, 1:10:15.
    """
    controls = {
        "sentence": choice("sentence", _SENTENCES, lectures.ALL_DOGS),
        "words": typed("own words", "dogs chase dogs and cats"),
        "order": choice("second order", _ORDERS, "swap"),
        "mask": switch("causal mask", False),
        "positions": choice("positions", _POSITIONS, "none"),
        "layers": whole("layers", 1, 2, 1),
        "d_model": whole("d_model", 1, 24, 8),
        "num_heads": whole("num_heads", 1, 12, 1),
        "head": whole("head", 0, 0, 0),
    }
    bounds = {"head": lambda state: state["num_heads"] - 1}
    enabled = {"words": lambda state: state["sentence"] == _OWN}
    return Explorer("explore_word_order", controls, _render, _TASKS, bounds, enabled=enabled)


def _render(state):
    own = state["sentence"] == _OWN
    words = split_words(state["words"] if own else state["sentence"])
    _check_even(state)
    places = _reordered(len(words), state["order"])
    x = vectors(words, state["d_model"])
    first, weights, hidden = _ordered_attention(x, state)
    second, other, _ = _ordered_attention(x[places], state)
    back = torch.tensor(places).argsort()  # where each word of the first order went
    sizes = (first - second[back]).abs().amax(-1).tolist()
    shown, head = hidden if state["mask"] else None, state["head"]
    name = f"head {head} of {len(weights)}, d_model {x.shape[1]}"
    second_words = [words[i] for i in places]
    picture = draw((words, weights[head], shown), (second_words, other[head], shown), sizes, name)
    return picture, f"{_status(words, places, sizes, first)} The weights are those of {name}."


def _check_even(state):
    """Raise `Impossible` where positions meet a width that is odd, as pairs of numbers need."""
    d_model, num_heads, positions = state["d_model"], state["num_heads"], state["positions"]
    width = head_dim(state)
    name, odd, step = {
        "sinusoidal": ("d_model", d_model, 1 if num_heads % 2 == 0 else 2),
        "rotary": ("head_dim", width, 2),
    }.get(positions, ("", 0, 1))
    if odd % 2:
        fitting = nearest(d_model, range(num_heads * step, 49, num_heads * step))
        raise Impossible(
            f"{positions.capitalize()} positions take the numbers in pairs, so {name} must be "
            f"even, but it is {odd}. Nearest that work with {count(num_heads, 'head')}: d_model "
            f"{fitting}."
        )


def _reordered(tokens, order):
    places = list(range(tokens))
    if order == "reverse":
        return places[::-1]
    if order == "swap" and tokens > 1:
        places[1], places[-1] = places[-1], places[1]
        return places if tokens > 2 else places[::-1]
    if order == "shuffle":
        return [*reversed(places[1:-1]), *places[:1], places[-1]] if tokens > 2 else places
    return places


def _ordered_attention(x, state):
    """Return the last layer's output (tokens, d_model), its weights of all heads, and the mask."""
    (tokens, d_model), num_heads, positions = x.shape, state["num_heads"], state["positions"]
    hidden = causal_mask(tokens) & state["mask"]
    if positions == "sinusoidal":
        x = x + sinusoidal(tokens, d_model)
    if positions == "learned":
        with torch.no_grad():
            x = untrained(LearnedPositions, MOST_WORDS, d_model)(x)
    generator = torch.Generator().manual_seed(lectures.DREAM_SEED)
    for _ in range(state["layers"]):
        matrices = torch.randn(3, d_model, d_model, generator=generator) * 1.2 / d_model**0.5
        # (3, tokens, d_model) -> three of (num_heads, tokens, head_dim)
        split = (x @ matrices).unflatten(-1, (num_heads, -1)).transpose(1, 2)
        queries, keys, values = split
        if positions == "rotary":
            queries, keys = rotary(queries), rotary(keys)
        context, weights = attention(queries, keys, values, hidden)
        x = context.transpose(0, 1).flatten(1)
    return x, weights, hidden


def _status(words, places, sizes, outputs):
    order = " ".join(words[i] for i in places)
    text = f"First order: {' '.join(words)}. Second order: {order}. "
    moved = [
        f"{word} {size:.2g}" for word, size in zip(words, sizes, strict=True) if size >= ROUNDING
    ]
    if not moved:
        text += "Every word's output is the same in both orders, up to rounding. "
    else:
        text += f"Outputs that differ: {', '.join(moved)}. The same up to rounding: "
        text += f"{count(len(words) - len(moved), 'word')}. "
    lower = [word.lower() for word in words]
    for word in dict.fromkeys(lower):
        where = [i for i, other in enumerate(lower) if other == word]
        if len(where) > 1:
            apart = largest_difference(outputs[where[0]], outputs[where[-1]])
            text += f"First and last {word} in the first order differ by: {apart}. "
    if len(words) > MOST_NUMBERED_TOKENS:
        text += "More than 8 words: no numbers in the cells."
    return text.strip()


def draw(first, second, differences, head):
    """Draw one head's weights in two orders side by side, and how each word's output differs.

    first, second: (words, weights (tokens, tokens), hidden or None). differences: a size for
    each word of the first order; those below `ROUNDING` are rounding. head: which one, in words.
    """
    sheet, tokens = Sheet(), len(first[0])
    words = names_of(first[0])
    names = dict(zip(first[0], words, strict=True))
    cell = (178 / tokens, max(17, min(36, 190 // tokens)))
    top = 36 + names_height(words, cell[0])
    limits = (0.0, max(first[1].max().item(), second[1].max().item()))
    decimals = 2 if tokens <= MOST_NUMBERED_TOKENS else None
    for x, title, (order, weights, hidden) in ((66, "first", first), (316, "second", second)):
        sheet.title(x, 14, f"weights, {title} order", head)
        labels = [names[word] for word in order]
        sheet.matrix(x, top, weights, cell, labels, labels, hidden, limits, decimals)
    bottom = top + cell[1] * tokens
    sheet.title(20, bottom + 26, "difference of each word's output between the two orders")
    unit = 300 / max(1e-9, *differences)
    for i, (word, size) in enumerate(zip(words, differences, strict=True)):
        y, real = bottom + 42 + 20 * i, size >= ROUNDING
        sheet.text(84, y + 9, word, 12, "right")
        if real:
            sheet.bar(90, y + 2, size * unit, 14, ORANGE)
        text = f"{size:.2g}" if real else f"none (below {power_text(ROUNDING)}: rounding)"
        sheet.text(96 + real * size * unit, y + 9, text, 11.5, color=INK if real else FAINT)
    return sheet.picture(
        bottom + 56 + 20 * tokens,
        f"Two heat maps: the weights of {tokens} words in two orders, {head}, on one scale. Bars: "
        f"how far each word's output differs between them.",
    )
