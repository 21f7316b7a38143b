"""Notebooks 2, 3 and 4: the attention that a reader wrote, whatever its style."""

import textwrap
from functools import lru_cache

import torch

from ..figures.drawing import CODE
from ..figures.sheet import FAINT, ORANGE, Sheet
from .explorer import Explorer, Impossible
from .panels import every_head, head_table, moved_bars, names_of
from .parts import count, split_words, switch, typed, vectors, whole

_WORDS = "dogs chase dogs and cats"
_MOVED = 1e-5  # of the output's largest number: less is rounding
_TASKS = (
    (
        "Try: disturb token 0. Do exactly the outputs move whose rows have a weight for it?",
        lambda state: state["disturb"] == 0,
    ),
    ("Type words of your own, one of them twice. Do its rows differ, and should they?", None),
)
_HOW = {
    "softmax": "as the run gave them",
    "kernel": "rebuilt from the queries and keys that the fused kernel got",
    "derivative": "no line of the code makes them: the derivative of the context by the values",
}


def explore_attention(module_or_factory, num_heads=None, d_model=None):
    """Explore an attention of your own: the weights of every head, and what they leave unsaid.

    module_or_factory, num_heads, d_model: as for `check_attention`. Beside the weights stand the
    lines that made them, which outputs move when one token is changed, and what the check says.
    The module keeps its weights and is not changed. Where its weights cannot be read, a sentence
    says why. Tokens, heads and layers count from 0.
    """
    from attention_check.weights import Reader

    said = _check(module_or_factory, num_heads, d_model)
    try:
        reader = Reader(module_or_factory, num_heads, d_model)
        seen = _Seen(reader)
        layers = seen.layers(tuple(_WORDS.split()), False, False)
    except ValueError as error:
        text = f"The weights cannot be shown. {error} The check says: {'. '.join(said)}"

        def refuse(_state):
            raise Impossible(text)

        return Explorer("explore_attention", {}, refuse)
    controls = {
        "words": typed("your own words", _WORDS),
        "layer": whole("layer", 0, len(layers) - 1, 0),
        "head": whole("head", 0, layers[0].weights.shape[1] - 1, 0),
        "disturb": whole("disturb token", 0, 4, 4),
        "mask": switch(reader.mask or "no mask argument", False),
        "training": switch("training mode", False),
    }
    bounds = {
        "head": lambda state: layers[state["layer"]].weights.shape[1] - 1,
        "disturb": lambda state: len(state["words"].split()) - 1,
    }
    enabled = {"layer": lambda _: len(layers) > 1, "mask": lambda _: reader.mask is not None}
    return Explorer(
        "explore_attention", controls, lambda state: _render(seen, said, state), _TASKS, bounds,
        enabled=enabled,
    )  # fmt: skip


def _check(*subject):
    """Return the sentences of the check on a module."""
    from attention_check import check_attention

    module, num_heads, d_model = subject
    try:
        report = check_attention(module, num_heads, d_model=d_model)
    except ValueError as error:
        return [f"not checked: {error}"]
    return [report.headline, *map(str, report.findings)]


class _Seen:
    """What the runs of a module on words show; what was read once is kept."""

    def __init__(self, reader):
        self.reader = reader
        self.layers, self.output = lru_cache(8)(self._layers), lru_cache(32)(self._output)

    def _layers(self, words, *mode):
        return self.reader.layers(vectors(words, self.reader.d_model)[None], *mode)

    def _output(self, words, *mode):
        return self.reader.output(vectors(words, self.reader.d_model)[None], *mode)[0]


def _render(seen, said, state):
    words, token = tuple(split_words(state["words"])), state["disturb"]
    mode = state["mask"], state["training"]
    other = (*words[:token], "another word", *words[token + 1 :])
    try:
        layers = seen.layers(words, *mode)
        before, after = seen.output(words, *mode), seen.output(other, *mode)
    except ValueError as reason:
        raise Impossible(f"The weights cannot be shown. {reason}") from reason
    moved = (after - before).abs().amax(-1)
    moved = torch.where(moved < _MOVED * before.abs().max(), 0.0, moved)
    odd = ((moved > 0) & ~_sees(layers)[:, token]).nonzero().flatten().tolist()
    layer = layers[min(state["layer"], len(layers) - 1)]
    head = min(state["head"], layer.weights.shape[1] - 1)
    title = f"{seen.reader.name} {layer.path}".strip()
    picture = draw(title, layer, head, words, moved, token, odd, said)
    status = _status(layer, head, words, moved, token, odd)
    return picture, f"Layer {state['layer']} of {len(layers)}. {status}"


def _sees(layers):
    """Return (tokens, tokens): whom each token can see, through all layers and past them."""
    sees = torch.eye(layers[0].weights.shape[-2], dtype=torch.bool)
    for layer in layers:
        direct = (layer.weights[0] != 0).any(0)
        if direct.shape == sees.shape:  # a memory of another length tells nothing here
            sees = sees | (direct.float() @ sees.float() > 0)
    return sees


def _status(layer, head, words, moved, token, odd):
    weights, hidden = layer.weights[0], layer.hidden[0]
    sums = weights[head].sum(-1)
    one = bool(((sums - 1).abs() < 1e-3).all())
    text = f"Head {head} of {len(weights)}: largest weight {weights[head].max():.2f}, "
    text += f"{int(hidden[head].sum())} cells hidden, rows add up to "
    text += "1. " if one else f"{sums.min():.2f} to {sums.max():.2f}. "
    names = [f"{word} ({i})" for i, word in enumerate(words) if moved[i] > 0]
    text += f"Changing {words[token]} ({token}) moves the outputs of: {', '.join(names) or 'none'}."
    if odd:
        rows = ", ".join(f"{words[i]} ({i})" for i in odd)
        text += (
            f" No weight lets {rows} see it, and yet the output moves: somewhere before or after "
            f"the weights, numbers of one token come to stand in another."
        )
    return text


def draw(title, layer, head, words, moved, disturbed, odd, said):
    """Draw one head's weights with their lines of code, what moved, every head, and the check.

    layer: a `Layer`, of which the first sentence is drawn. moved: (tokens,). odd: tokens that
    move although no weight lets them. said: sentences of the check, its headline first.
    """
    sheet, names = Sheet(), names_of(words)
    weights, hidden = layer.weights[0], layer.hidden[0]
    num_heads, rows, keys = weights.shape
    columns = names if keys == rows else [str(j) for j in range(keys)]
    sheet.title(20, 16, title, f"weights: {_HOW[layer.how]}")
    top = _code(sheet, 56, layer.lines)
    sheet.title(62, top + 8, f"head {head} of {num_heads}")
    largest = weights.abs().max().nan_to_num(1.0).item() or 1.0
    limits = (min(0.0, -largest * bool((weights < 0).any())), largest)
    right, below, step = head_table(
        sheet, top + 22, weights[head], names, columns, hidden[head], limits
    )
    moved_bars(sheet, right, below, step, moved, disturbed, odd)
    bottom = below + step * rows + 14
    notes = ["hatched: hidden by a mask"] * bool(hidden.any())
    notes += ["✗: moves, though every weight hides the token"] * bool(odd)
    sheet.text(62, bottom, "; ".join(notes), 11.5, color=FAINT)
    sheet.title(20, bottom + 26, f"{count(num_heads, 'head')}, one scale to {largest:.2f}")
    end = every_head(sheet, 20, bottom + 38, weights, head, limits, hidden) + 14
    sheet.title(20, end, "the check says")
    for number, sentence in enumerate(said):
        for line in textwrap.wrap(sentence, 76):
            end += 17
            sheet.text(20, end, line, 11, color=ORANGE if number else FAINT)
        end += 4
    return sheet.picture(
        end + 14,
        f"Heat maps: the weights of head {head} of {num_heads} of {title} over {rows} words, and "
        f"of every head on one scale; bars: how far each output moved when "
        f"{words[disturbed]} was changed. The check says: {said[0]}.",
    )


def _code(sheet, y, lines):
    """Write the lines of code that made the weights, each once; return where they end."""
    steps = {}
    for step, line in lines.items():
        steps.setdefault(line, []).append(step)
    for (_, number, text), names in steps.items():
        sheet.text(20, y, f"{', '.join(names)}: line {number}", 11, color=FAINT)
        sheet.text(170, y, textwrap.shorten(text, 48, placeholder=" …"), 10.5, font=CODE)
        y += 17
    return y
