"""Notebook 6: a test for what moves with the words, places of one's own."""

import torch

from ..attention import attention, causal_mask
from ..positions import sinusoidal
from .exercise import Wrong, draw, exercise, numbers, run, same

TOKENS, WIDTH = 5, 8
FURTHER = "06_places"  # in notebooks/further/
NEAR = 0.003  # places that are no further apart are hard to tell
LARGEST = 3  # that a number of a place may be
ORDER = [3, 0, 4, 1, 2]  # another order than the one that undoes it
OTHER_ORDERS = (  # rows move along when they are reversed, or turned, and not by ORDER
    "a layer that adds the rows from the last to the first",
    "a layer that adds to each row the one after it, the first to the last",
)


@exercise("moves_along", 6, "A test for equivariance")
def check_moves_along(answer):
    """layer, x (5, 8), order -> whether the layer's rows move with the words."""
    [x] = draw((TOKENS, WIDTH), seed=1)
    layers = _layers()
    said = {name: _yes_or_no(run(answer, layer, x, ORDER)) for name, layer in layers.items()}
    if all(said[name] != _moves_along(layer, x) for name, layer in layers.items()):
        raise Wrong("Every answer is the opposite of the right one: True is for rows that move.")
    if not said["a layer that doubles every number"]:
        raise Wrong(
            "It says False of a layer that doubles every number, whose rows do move along. "
            "Compare layer(x[order]) with layer(x)[order]: both in the new order."
        )
    if (
        said["a layer that exchanges its first two rows"]
        and not said["attention with a causal mask"]
    ):
        raise Wrong(
            "It says True of a layer that exchanges its first two rows. A mean or a sum over the "
            "rows hides that: compare row by row."
        )
    for name, layer in layers.items():
        right = _moves_along(layer, x)
        if said[name] and not right and name in OTHER_ORDERS:
            raise Wrong(
                f"It says True of {name}, as it is for an order of your own, but not for the "
                f"`order` that it was given: index x and layer(x) with `order`."
            )
        if said[name] and not right:
            raise Wrong(
                f"It says True of {name}, where rows do not move with their words. Compare every "
                f"entry of every row, with abs(), and allow for rounding only, such as 1e-5."
            )
        if right and not said[name]:
            raise Wrong(
                f"It says False of {name}, where the rows differ by rounding alone. "
                f"Compare with a tolerance: torch.allclose(…, atol=1e-5)."
            )
    return f"{len(layers)} layers judged, {sum(said.values())} of them equivariant."


@exercise("places", FURTHER, "Places of your own")
def check_places(answer):
    """tokens, d_model -> (tokens, d_model), one row for each place."""
    short, long = (_rows(answer, tokens) for tokens in (5, 60))
    if not same(short, _rows(answer, 5)):
        raise Wrong(
            "Two calls give two answers. A place has to be the same in every sentence; a random "
            "vector must be drawn once and kept."
        )
    apart = torch.cdist(long, long, compute_mode="donot_use_mm_for_euclid_dist")
    alike = (apart < NEAR).triu(diagonal=1).nonzero().tolist()
    if alike:
        first, second = alike[0]
        if apart[first, second] == 0:
            raise Wrong(f"Places {first} and {second} have the same row: no word could tell them.")
        raise Wrong(
            f"Places {first} and {second} have nearly the same row ({apart[first, second]:.1g} "
            f"apart): a word could hardly tell them."
        )
    if not same(short, long[:5]):
        moved = int((short - long[:5]).abs().amax(dim=-1).argmax())
        raise Wrong(
            f"Place {moved} has one row in a sentence of 5 words and another in one of 60. What "
            f"was learned at that place would not hold."
        )
    largest = _rows(answer, 1000).abs().amax(dim=-1)
    if largest.max() > LARGEST:
        far = int((largest > LARGEST).nonzero()[0])
        raise Wrong(
            f"Place {far} holds a number as large as {largest[far]:.3g}: added to a word's vector, "
            f"whose numbers are about 1, it drowns the word. Keep all of them within {LARGEST}."
        )
    return "60 places, all of them different, each the same in every sentence, none too large."


def _layers():
    """Return {name: layer}; each takes (tokens, 8) to (tokens, 8)."""
    waves, mask = sinusoidal(TOKENS, WIDTH), causal_mask(TOKENS)
    last = torch.zeros(TOKENS, WIDTH)
    last[-1, -1] = 0.01
    return {
        "a layer that doubles every number": lambda x: 2 * x,
        "attention without a mask": lambda x: _attention(x),
        "attention twice, without a mask": lambda x: _attention(_attention(x)),
        "attention with a causal mask": lambda x: _attention(x, mask),
        "attention with sinusoidal positions": lambda x: _attention(x + waves),
        "a layer that exchanges its first two rows": lambda x: x[[1, 0, 2, 3, 4]],
        "a layer that gives each place a fixed row, whatever the word": lambda x: waves + 0 * x,
        "a layer that adds the length of the first row to every number": lambda x: x + x[0].norm(),
        "a layer that takes the length of the first row off every number": lambda x: (
            x - x[0].norm()
        ),
        OTHER_ORDERS[0]: lambda x: x + x.flip(0),
        OTHER_ORDERS[1]: lambda x: x + x.roll(-1, 0),
        "a layer that adds 0.01 to the last number of the last row": lambda x: x + last,
    }


def _attention(x, hidden=None):
    W_query, W_key, W_value = draw((3, WIDTH, WIDTH))[0] / WIDTH**0.5
    return attention(x @ W_query, x @ W_key, x @ W_value, hidden)[0]


def _moves_along(layer, x):
    return same(layer(x[ORDER]), layer(x)[ORDER])


def _yes_or_no(result):
    if isinstance(result, torch.Tensor) and result.numel() == 1:
        result = result.item()
    if not isinstance(result, bool):
        raise Wrong(f"True or False is wanted, but this is a {type(result).__name__}.")
    return result


def _rows(answer, tokens):
    try:
        rows = run(answer, tokens, 6)
    except Wrong as mistake:
        raise Wrong(f"{mistake} It was called with {tokens} tokens and d_model = 6.") from None
    return numbers(rows, (tokens, 6), "tokens, d_model")
