"""Notebook 5: shapes before they are run, what `view` can join; Further: a row that is missing."""

from itertools import pairwise

import torch

from ..attention import MultiHeadAttention, attention, causal_mask
from .exercise import Wrong, entries, exercise, run, untrained

FURTHER = "05_traces"  # in notebooks/further/
SIZES = {"batch": 4, "tokens": 6, "num_heads": 2, "head_dim": 5, "d_model": 10}


@exercise("seven_shapes", 5, "Seven shapes")
def check_seven_shapes(answer):
    """{step: shape} for 4 sequences of 6 tokens and 2 heads of 5."""
    right = _shapes()
    for step, said in zip(right, entries(answer, right), strict=True):
        shape, axes = right[step]
        said = _as_shape(said, step)
        if said != shape:
            raise Wrong(f"{step}: {_what_is_wrong(step, said, shape)} ({axes}) is wanted.")
    return "All seven, before any of them was run."


@exercise("can_join", 5, "When can view join")
def check_can_join(answer):
    """sizes, strides -> whether the last two axes can be read as one without a copy."""
    for name, (tensor, hint) in _tensors().items():
        sizes, strides = tuple(tensor.shape), tensor.stride()
        said = run(answer, sizes, strides)
        if not isinstance(said, bool):
            raise Wrong(f"True or False is wanted, but this is a {type(said).__name__}.")
        if said != _can_join(tensor):
            torch_does = "cannot" if said else "can"
            raise Wrong(
                f"It says {said} of {name}, with sizes {sizes} and strides {strides}, and `view` "
                f"{torch_does} join its last two axes. {hint}"
            )
    return "The rule that torch goes by, at seven tensors."


def _tensors():
    """Return {name: (tensor, what to say)}, some of which can be joined and some not."""
    made = torch.zeros(2, 5, 12)
    per_token = made.view(2, 5, 3, 4)
    return {
        "the split queries": (per_token, "A row of 4 numbers ends at 4, where the next begins."),
        "the context, swapped back": (
            torch.zeros(2, 3, 5, 4).transpose(1, 2),
            "A row of 4 numbers ends at 4, and the next one begins at 20.",
        ),
        "the split queries, swapped": (
            per_token.transpose(1, 2),
            "A row of 4 numbers ends at 4, and the next one begins at 12.",
        ),
        "the first three numbers of each head": (
            per_token[..., :3],
            "The strides fall from axis to axis, but one number is left out between two rows.",
        ),
        "every second number of each head": (
            per_token[..., ::2],
            "Within a row the step is 2: a row of 2 ends at 4, where the next one begins.",
        ),
        "the split queries with the last two axes swapped": (
            per_token.mT,
            "Within a row the step is 4, and the next row begins at 1.",
        ),
        "the split queries of the first four tokens": (
            per_token[:, :4],
            "Tokens are left out between two sequences, but only the last two axes are joined.",
        ),
    }


def _can_join(tensor):
    try:
        tensor.view(*tensor.shape[:-2], -1)
    except RuntimeError:
        return False
    return True


class Suspect(MultiHeadAttention):
    """Multi-head attention with one operation missing, which no shape shows if tokens = heads."""

    def forward(self, x):
        batch, tokens, _ = x.shape
        num_heads, head_dim = self.num_heads, self.head_dim
        queries = self.W_query(x).view(batch, tokens, num_heads, head_dim).transpose(1, 2)
        keys = self.W_key(x).view(batch, tokens, num_heads, head_dim).transpose(1, 2)
        values = self.W_value(x).view(batch, tokens, num_heads, head_dim)
        context, _ = attention(queries, keys, values, causal_mask(tokens))
        return self.W_out(context.transpose(1, 2).flatten(-2))


@exercise("missing_row", FURTHER, "The missing row")
def check_missing_row(answer):
    """The number of the row in the trace of a `Suspect` after which an operation is missing."""
    from shape_tracing import trace_shapes

    rows = trace_shapes(untrained(Suspect, 12, 4), torch.zeros(2, 4, 12)).rows
    last = len(rows)
    if isinstance(answer, bool) or not isinstance(answer, int) or not 1 <= answer <= last:
        raise Wrong(f"The number of a row is wanted, from 1 to {last}.")
    [wrong] = [
        int(row.number)
        for row, after in pairwise(rows)
        if row.operation == "view" and after.operation != "transpose"
    ]
    if answer < wrong:
        raise Wrong(f"Up to row {answer} nothing is missing. Look further down.")
    if answer > wrong:
        raise Wrong(f"It is missing before row {answer}. Look further up.")
    return (
        f"After row {wrong}: queries and keys are viewed and then swapped, the values are only "
        f"viewed. With as many tokens as heads no shape tells."
    )


def _shapes():
    """Return {step: (shape, axes)} as the steps give them."""
    batch, tokens, num_heads, head_dim, _ = SIZES.values()
    x = torch.zeros(batch, tokens, num_heads * head_dim)
    per_token = x.view(batch, tokens, num_heads, head_dim)
    queries = keys = values = per_token.transpose(1, 2)
    context, weights = attention(queries, keys, values)
    steps = {
        "W_query(x)": (x, "batch, tokens, d_model"),
        "view": (per_token, "batch, tokens, num_heads, head_dim"),
        "transpose(1, 2)": (queries, "batch, num_heads, tokens, head_dim"),
        "keys.mT": (keys.mT, "batch, num_heads, head_dim, tokens"),
        "weights": (weights, "batch, num_heads, tokens, tokens"),
        "context": (context, "batch, num_heads, tokens, head_dim"),
        "merged": (context.transpose(1, 2).flatten(-2), "batch, tokens, d_model"),
    }
    return {step: (tuple(tensor.shape), axes) for step, (tensor, axes) in steps.items()}


def _as_shape(said, step):
    try:
        return tuple(int(size) for size in said)
    except (TypeError, ValueError):
        raise Wrong(f"{step}: a shape such as (1, 2, 3) is wanted, but this is {said!r}.") from None


def _what_is_wrong(step, said, shape):
    if (step, said) == ("weights", (4, 6, 2, 2)):
        return "(4, 6, 2, 2) compares heads with heads, which comes of a swap left out."
    if (step, said) == ("merged", (4, 2, 30)):
        return "(4, 2, 30) joins the tokens of a head, not the heads of a token: swap back first."
    if (step, said) == ("context", (4, 2, 6, 6)):
        return "(4, 2, 6, 6) are the sizes of the weights, which mix values of 5 numbers."
    if len(said) != len(shape):
        return f"{said} has {len(said)} axes, not {len(shape)}."
    if sorted(said) == sorted(shape):
        return f"{said} has the right sizes in another order."
    width = SIZES["d_model"]
    if shape[-1] == width != said[-1]:
        return f"{said} has a size that does not belong there: d_model is 2 × 5 = {width} here."
    return f"{said} has a size that does not belong there."
