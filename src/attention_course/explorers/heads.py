"""Notebook 3: heads, joining and W_out."""

import torch

from .. import lectures
from ..attention import MultiHeadAttention
from ..figures import explored
from .explorer import Explorer
from .parts import check_heads, random_input, split_words, untrained, whole


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
    picture = explored.heads(weights[0], d_model, head - 1, follow - 1, words)
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
