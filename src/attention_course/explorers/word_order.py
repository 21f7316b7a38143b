"""Notebook 6: what attention knows of word order."""

import hashlib
import math

import ipywidgets as widgets
import torch

from .. import lectures
from ..attention import attention, causal_mask
from ..figures.sheet import FAINT, INK, LINE, ORANGE, Sheet, drawable, turned
from ..positions import LearnedPositions, rotary, sinusoidal
from ..tables import largest_difference, power_text
from .explorer import Explorer, Impossible
from .parts import (
    LABEL,
    MOST_NUMBERED_TOKENS,
    ROUNDING,
    WIDE,
    choice,
    count,
    split_words,
    switch,
    untrained,
    whole,
)

_OWN = "own words"
_SENTENCES = [lectures.ALL_DOGS, lectures.TWO_ITS, _OWN]
_MOST_WORDS, _LONGEST_WORD = 12, 20
_WIDTH = 8  # d_model of the word-order attention
_ORDERS = [
    ("swap the second and the last", "swap"),
    ("reverse", "reverse"),
    ("shuffle all but the last", "shuffle"),
    ("leave as it is", "same"),
]
_POSITIONS = ["none", "sinusoidal", "learned", "rotary"]


def explore_word_order():
    """Explore what attention knows of word order: your own words, mask, positions, layers.

    One untrained head of width 8; each word has one vector, made from its letters. The second
    layer takes the first one's output. Source: lecture 8, 1:10:15.
    """
    controls = {
        "sentence": choice("sentence", _SENTENCES, lectures.ALL_DOGS),
        "words": widgets.Text(
            value="dogs chase dogs and cats",
            description="own words",
            continuous_update=False,
            layout=WIDE,
            style=LABEL,
        ),
        "order": choice("second order", _ORDERS, "swap"),
        "mask": switch("causal mask", False),
        "positions": choice("positions", _POSITIONS, "none"),
        "layers": whole("layers", 1, 2, 1),
    }
    enabled = {"words": lambda state: state["sentence"] == _OWN}
    return Explorer("explore_word_order", controls, _render_word_order, enabled=enabled)


def _render_word_order(state):
    own = state["sentence"] == _OWN
    words = _own_words(state["words"]) if own else split_words(state["sentence"])
    places = _reordered(len(words), state["order"])
    x = torch.stack([_word_vector(word.lower()) for word in words])
    first, weights, hidden = _ordered_attention(x, state)
    second, other, _ = _ordered_attention(x[places], state)
    back = torch.tensor(places).argsort()  # where each word of the first order went
    sizes = (first - second[back]).abs().amax(-1).tolist()
    shown = hidden if state["mask"] else None
    picture = draw(
        (words, weights, shown),
        ([words[i] for i in places], other, shown),
        sizes,
        ROUNDING,
    )
    return picture, _order_status(words, places, sizes, first, weights)


def _own_words(text):
    """Return the words of a learner's own sentence; raises `Impossible` with a sentence."""
    words = text.split()
    if not words:
        raise Impossible("There are no words yet. Type up to 12, such as: dogs chase cats")
    if len(words) > _MOST_WORDS:
        raise Impossible(f"{len(words)} words are too many: the picture has room for up to 12.")
    for word in words:
        if len(word) > _LONGEST_WORD:
            raise Impossible(
                f"The word {word[:_LONGEST_WORD]}… has {len(word)} letters: up to "
                f"{_LONGEST_WORD} fit."
            )
        if set("<>&") & set(word):
            raise Impossible(
                f"{text} holds markup, which is shown here as text and nothing else. Type plain "
                f"words, such as: dogs chase cats"
            )
    return words


def _word_vector(word):
    """Return 8 numbers between -1.7 and 1.7 that depend on the letters alone, on any machine."""
    digest = hashlib.sha256(word.encode()).digest()[: 2 * _WIDTH]
    whole = [int.from_bytes(digest[i : i + 2], "big") for i in range(0, 2 * _WIDTH, 2)]
    return (torch.tensor(whole) / 32767.5 - 1) * math.sqrt(3)  # spread 1


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
    """Return (output, weights, mask) of the last layer for one order of the words."""
    tokens = len(x)
    hidden = causal_mask(tokens) & state["mask"]
    positions = state["positions"]
    if positions == "sinusoidal":
        x = x + sinusoidal(tokens, _WIDTH)
    if positions == "learned":
        with torch.no_grad():
            x = untrained(LearnedPositions, _MOST_WORDS, _WIDTH)(x)
    generator = torch.Generator().manual_seed(lectures.DREAM_SEED)
    for _ in range(state["layers"]):
        matrices = (torch.rand(3, _WIDTH, _WIDTH, generator=generator) - 0.5) * 1.5
        queries, keys, values = x @ matrices
        if positions == "rotary":
            queries, keys = rotary(queries), rotary(keys)
        x, weights = attention(queries, keys, values, hidden)
    return x, weights, hidden


def _order_status(words, places, sizes, outputs, weights):
    order = " ".join(words[i] for i in places)
    text = f"First order: {' '.join(words)}. Second order: {order}. "
    moved = [
        f"{word} {size:.2g}" for word, size in zip(words, sizes, strict=True) if size >= ROUNDING
    ]
    same = len(words) - len(moved)
    if not moved:
        text += "Every word's output is the same in both orders, up to rounding. "
    else:
        text += f"Outputs that differ: {', '.join(moved)}. The same up to rounding: "
        text += f"{count(same, 'word')}. "
    lower = [word.lower() for word in words]
    for word in dict.fromkeys(lower):
        where = [i for i, other in enumerate(lower) if other == word]
        if len(where) > 1:
            apart = largest_difference(outputs[where[0]], outputs[where[-1]])
            text += f"First and last {word} in the first order differ by: {apart}. "
    if len(words) > MOST_NUMBERED_TOKENS:
        text += "More than 8 words: no numbers in the cells."
    return text.strip()


def draw(first, second, differences, rounding):
    """Draw the weights of two orders side by side and the difference of each word's output.

    first, second: (words, weights (tokens, tokens), hidden or None). differences: {word: size};
    sizes below `rounding` are rounding.
    """
    words = [drawable(word, i + 1, room=56) for i, word in enumerate(first[0])]
    tokens = len(words)
    high = max(17, min(36, 190 // tokens))
    top = 52 + 8 * max(map(len, words)) if turned(words, 178 / tokens) else 56
    bottom = top + high * tokens
    sheet = Sheet(bottom + 84 + 20 * tokens)
    names = dict(zip(first[0], words, strict=True))
    limits = (0.0, max(first[1].max().item(), second[1].max().item()))
    decimals = 2 if tokens <= MOST_NUMBERED_TOKENS else None
    for x, title, (order, weights, hidden) in (
        (66, "weights, first order", first),
        (316, "weights, second order", second),
    ):
        sheet.title(x, 14, title)
        labels = [names[word] for word in order]
        cell = (178 / tokens, high)
        size = min(11.0, cell[0] / 1.9)
        sheet.matrix(x, top, weights, cell, labels, labels, hidden, limits, decimals, size)
    sheet.title(20, bottom + 26, "difference of each word's output between the two orders")
    _differences(sheet, bottom + 42, words, list(differences), rounding)
    if decimals is None:
        text = f"more than {MOST_NUMBERED_TOKENS} words: no numbers in the cells"
        sheet.text(480, sheet.height - 12, text, 11, "right", color=FAINT)
    return sheet.picture(
        f"Two heat maps: the weights of {tokens} words in two orders, on one scale. Bars: how far "
        f"each word's output differs between them, against the rounding size "
        f"{power_text(rounding)}."
    )


def _differences(sheet, top, words, sizes, rounding):
    left, unit = 90, 32  # pixels for each power of ten, from 1e-9

    def place(size):
        return left + unit * max(0.0, math.log10(max(size, 1e-9)) + 9)

    for i, (word, size) in enumerate(zip(words, sizes, strict=True)):
        y, real = top + 20 * i, size >= rounding
        sheet.text(left - 6, y + 9, word, 12, "right")
        sheet.bar(left, y + 2, place(size) - left, 14, ORANGE if real else LINE)
        text = f"{size:.2g}" if real else "0" if size == 0 else "rounding"
        sheet.text(max(place(size), place(rounding)) + 6, y + 9, text, 11.5)
    bottom = top + 20 * len(words)
    sheet.line([place(rounding)] * 2, [top, bottom + 4], INK, linestyle="--")
    sheet.text(
        place(rounding), bottom + 14, f"rounding: below {power_text(rounding)}", 11, "center"
    )
