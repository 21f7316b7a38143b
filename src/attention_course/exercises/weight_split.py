"""Notebook 4: the heads' weights joined, the heads merged, a fault among the heads."""

import torch
from torch import nn

from .exercise import Wrong, draw, exercise, numbers, run, same
from .faults import Answer


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
        by_number = torch.stack(weights, dim=1).flatten(0, 1)  # number 1 of each head first
        if same(joined, torch.cat(weights[::-1])):
            raise Wrong("The heads are in the opposite order: head 1 should come first.")
        if same(joined, by_number):
            raise Wrong("The first rows are row 1 of each head: keep the rows of a head together.")
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


@exercise("merge_heads", 4, "Merge the heads")
def check_merge_heads(answer):
    """context (batch, num_heads, tokens, head_dim) -> (batch, tokens, num_heads * head_dim)."""
    for sizes in ((2, 3, 5, 4), (3, 2, 4, 6), (1, 5, 7, 2), (4, 7, 3, 5)):
        batch, num_heads, tokens, head_dim = sizes
        (context,) = draw(sizes)
        d_model = num_heads * head_dim
        try:
            merged = numbers(
                run(answer, context), (batch, tokens, d_model), "batch, tokens, d_model"
            )
            _name_merge(merged, context)
        except Wrong as mistake:
            raise Wrong(f"{mistake} (The context was {sizes}.)") from None
    return "Each token has its heads side by side again, at all four sizes."


def _name_merge(merged, context):
    per_token = context.transpose(1, 2)  # (batch, tokens, num_heads, head_dim)
    if same(merged, per_token.flatten(-2)):
        return
    mistakes = {
        "The shape is right and the content is not: heads and tokens have not changed places, so "
        "a row holds numbers of several tokens. `transpose(1, 2)` comes first.": context,
        "Each token has its own numbers, but the heads are mixed: number 1 of every head, then "
        "number 2. The numbers of a head belong together.": per_token.mT,
        "The heads are in the opposite order: head 1 should come first.": per_token.flip(2),
    }
    for sentence, laid_out in mistakes.items():
        if same(merged, laid_out.reshape(merged.shape)):
            raise Wrong(sentence)
    raise Wrong("The shape is right and the numbers are not.")


@exercise("heads_fault", 4, "Find the fault among the heads")
def check_heads_fault(answer):
    """What is wrong with a dealt module, and a token whose output is wrong: `case.answer(…)`."""
    if not isinstance(answer, Answer):
        raise Wrong('Answer with heads_fault = case.answer(code="…", token=…).')
    return answer.judged()
