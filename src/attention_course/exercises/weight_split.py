"""Notebook 4: the heads' weights joined, the five steps, a fault among the heads."""

import torch
from torch import nn

from ..attention import MultiHeadAttention
from .exercise import Wrong, blame, draw, exercise, numbers, run, same, untrained
from .faults import Answer

FURTHER = "04_five_ways"  # in notebooks/further/


@exercise("join_weights", 4, "Join the weights")
def check_join_weights(answer):
    """Layers d_model -> head_dim, one for each head -> weight (num_heads * head_dim, d_model)."""
    for d_model, num_heads, head_dim in ((5, 3, 2), (7, 4, 3)):
        weights = draw(*[(head_dim, d_model)] * num_heads)
        width = num_heads * head_dim
        joined = run(answer, [_linear(weight) for weight in weights])
        sizes = f"{num_heads} heads of {head_dim}, tokens of {d_model} numbers"
        if isinstance(joined, nn.Linear):
            raise Wrong("This is a layer: return its `.weight`.")
        _name_axis(joined, weights, sizes)
        joined = numbers(joined, (width, d_model), f"out, in; here {sizes}")
        by_number = torch.stack(weights, dim=1).flatten(0, 1)  # number 0 of each head first
        if same(joined, torch.cat(weights[::-1])):
            raise Wrong("The heads are in the opposite order: head 0 should come first.")
        if same(joined, by_number):
            raise Wrong("The first rows are row 0 of each head: keep the rows of a head together.")
        if not same(joined, torch.cat(weights)):
            raise Wrong("The shape is right, but the rows are not those of the heads in order.")
    return "One layer with this weight gives what the heads give, side by side."


def _linear(weight):
    layer = nn.Linear(*weight.mT.shape, bias=False)
    layer.weight.data = weight
    return layer


def _name_axis(joined, weights, sizes):
    """Raise Wrong for the shapes that the usual mistakes have."""
    count, (head_dim, d_model) = len(weights), weights[0].shape
    named = {
        (head_dim, count * d_model): "This is joined along dim 1, the dim of the inputs. Every "
        "head reads the same inputs; it is the outputs that stand side by side.",
        (d_model, count * head_dim): "This is the slide's matrix, a row for each input. "
        "`nn.Linear` keeps it lying on its side: (out, in).",
        (count, head_dim, d_model): "The heads have got an axis of their own, as by `stack`. One "
        "layer has one matrix: join them with `cat`.",
        (head_dim, d_model): "This is as large as the weight of one head: the heads are joined, "
        "not added, and none is left out.",
        (2 * head_dim, d_model): f"There are {count} heads here, not 2: join all of the list.",
    }
    shape = tuple(getattr(joined, "shape", ()))
    if shape in named:
        raise Wrong(f"The shape is {shape}, with {sizes}. {named[shape]}")


@exercise("MyAttention", 4, "The five steps")
def check_my_attention(answer):
    """Class (d_model, num_heads) -> causal module (batch, tokens, d_model) -> the same shape."""
    if not isinstance(answer, type):
        raise Wrong(f"The class itself is wanted, but this is a {type(answer).__name__}.")
    for d_model, num_heads in ((12, 3), (10, 2)):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = run(answer, d_model, num_heads)
        [x] = draw((2, 5, d_model))
        try:
            out = run(module, x)
        except Wrong as stopped:
            raise Wrong(f"{stopped}{_missing_swap(module, x, num_heads)}") from None
        if isinstance(out, tuple | list):
            raise Wrong(f"It returns {len(out)} things: return the output alone.")
        shape = tuple(getattr(out, "shape", ()))
        if shape != (2, 5, d_model):
            raise Wrong(
                f"The shape is {shape}, but (2, 5, {d_model}) goes in and should come out: (batch, "
                f"tokens, d_model)."
            )
        blame(answer, num_heads=num_heads, causal=True, d_model=d_model)
        _compare(module, x, out, num_heads)
    return "check_attention finds nothing wrong, and on the same weights it equals the loop."


def _missing_swap(module, x, num_heads):
    """Return which swap of heads and tokens the shapes of a stopped run lack, or ""."""
    from shape_tracing import trace_shapes  # only who made an error needs it

    batch, tokens, d_model = x.shape
    seen = {shape.sizes for row in trace_shapes(module, x).rows for shape in row.outputs}
    if any(sizes[-2:] == (num_heads, num_heads) for sizes in seen):
        return (
            f" The scores end in ({num_heads}, {num_heads}), heads by heads: swap heads and "
            f"tokens, `transpose(1, 2)`, before queries meet keys."
        )
    if (batch, num_heads, tokens * d_model // num_heads) in seen:
        return (
            " The merge has joined the tokens of each head: swap heads and tokens back, "
            "`transpose(1, 2)`, before it."
        )
    return ""


def _compare(module, x, out, num_heads):
    """Raise Wrong where a module without a fault has other numbers than the same weights give."""
    d_model = x.shape[-1]
    counts = [n for n in range(1, d_model + 1) if d_model % n == 0]
    rivals = {n: untrained(MultiHeadAttention, d_model, n) for n in counts}
    right = rivals[num_heads]
    try:
        for rival in rivals.values():
            rival.load_state_dict(module.state_dict())
    except RuntimeError:  # layers of another kind: there are no same weights to compare on
        return
    if same(out, right(x)):
        return
    for count, rival in rivals.items():
        if same(out, rival(x)):
            raise Wrong(f"It was made for {num_heads} heads and works as if it had {count}.")
    raise Wrong(
        "The shape is right and check_attention finds no fault, but on the same weights the loop "
        "gives other numbers. Are the heads merged in order, each with its own numbers together?"
    )


@exercise("heads_fault", FURTHER, "Find the fault among the heads")
def check_heads_fault(answer):
    """What is wrong with a dealt module: `case.answer(code=…)`."""
    if not isinstance(answer, Answer):
        raise Wrong('Answer with heads_fault = case.answer(code="…").')
    return answer.judged(token_asked=False)
