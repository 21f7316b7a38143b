"""Notebook 3: heads in a loop, a prediction for R²; Further: what one head adds."""

import re

import torch

from ..attention import attention, causal_mask
from .exercise import Wrong, draw, exercise, numbers, run, same

FURTHER = "03_loop"  # in notebooks/further/


@exercise("all_heads", 3, "Heads in a loop")
def check_all_heads(answer):
    """x (batch, tokens, d_model), heads [(W_Q, W_K, W_V), …], W_out -> output, as x."""
    for batch, tokens, num_heads, head_dim in ((3, 7, 2, 4), (2, 6, 3, 5)):  # 2: no triple
        d_model = num_heads * head_dim
        # small matrices: no softmax is saturated, so that every mistake shows
        drawn = draw(*[(d_model, head_dim)] * 3 * num_heads, (d_model, d_model), seed=num_heads)
        x, W_out = *draw((batch, tokens, d_model)), drawn.pop() / 2
        heads = [tuple(W / 4 for W in drawn[i : i + 3]) for i in range(0, len(drawn), 3)]
        try:
            output = run(answer, x, heads, W_out)
        except Wrong as mistake:
            hint = _mixing_hint(mistake.error or str(mistake), x, heads)
            raise Wrong(f"{mistake}{hint}") from None
        output = numbers(output, x.shape, "batch, tokens, d_model")
        contexts = [_context(x, *matrices) for matrices in heads]
        joined = torch.cat(contexts, dim=-1)  # (batch, tokens, d_model)
        if not same(output, joined @ W_out):
            _name_mixing(output, x, heads, contexts, W_out)
    return "Two heads of width 4 and three of width 5, joined and mixed."


def _mixing_hint(mistake, x, heads):
    """Return what is probably behind an error, as far as torch's or Python's words tell."""
    batch, tokens, d_model = x.shape
    head_dim, rows = heads[0][0].shape[-1], batch * tokens
    if "unpack" in mistake:
        return " `heads` is a list of triples (W_Q, W_K, W_V), one triple for each head."
    if "required positional arguments" in mistake:
        return " One head is a triple: *triple hands its three matrices over."
    if "not generator" in mistake:
        return " Make it a list, in brackets: [… for … in heads]."
    if "tuple" in mistake:
        return " A head that returns context and weights: take the first, the context."
    if f"{head_dim} and {d_model}x{head_dim}" in mistake:
        return (
            " A W_Q meets a token that is too narrow: every head reads the whole token, all "
            f"{d_model} numbers of x, neither a part of it nor what another head returned."
        )
    if f"({rows}x{head_dim} and" in mistake:
        return (
            " What meets W_out is as wide as one head: collect what the heads return in the loop, "
            "and join it side by side after the loop."
        )
    if any(f"({n}x{head_dim} and" in mistake for n in (rows * len(heads), tokens)):
        return " W_out meets all heads of a token, after the loop. Side by side is dim=-1."
    found = re.search(rf"\({rows}x(\d+) and", mistake)
    if found and int(found[1]) % head_dim == 0:
        return (
            f" {int(found[1]) // head_dim} heads are joined, and `heads` has {len(heads)} triples "
            "in this call: go through all of them."
        )
    return ""


@exercise("predicted_r2", 3, "Predict R²")
def check_predicted_r2(answer):
    """(questions, heads) -> the mean R² that can be reached, from 0 to 1."""
    for questions, heads in ((2, 1), (4, 1), (4, 2), (2, 2), (4, 4), (3, 2), (2, 3)):
        found = numbers(run(answer, questions, heads), (), "one number").item()
        right = min(1, heads / questions)
        if abs(found - right) < 0.005:
            continue
        rows = "1 row has 1 unit" if heads == 1 else f"{heads} rows have {heads} units"
        asked = f"{questions} questions with {heads} head{'s' * (heads > 1)}"
        if found > 1 and heads < questions:
            hint = f"R² is a share and never above 1; here {_units(heads)} shared by {questions} "
            hint += "questions"
        elif found > 1:
            hint = "R² is a share: once every question is answered, more heads add nothing"
        elif found < 0.005 and heads == 1:
            hint = f"One head does not answer nothing: a blend of {questions} answers still "
            hint += "explains part of each"
        elif found > right:
            hint = f"{rows} to spend, and {questions} questions have to share"
        else:
            hint = f"{rows} to spend: each head has a row of its own"
        raise Wrong(f"You predict {found:.2f} for {asked}. {hint}.")
    return "One unit for each head, shared by the questions, and never more than 1."


def _units(count):
    return "1 unit is" if count == 1 else f"{count} units are"


@exercise("added_by", FURTHER, "What one head adds")
def check_added_by(answer):
    """context (tokens, head_dim) of head i from 0, W_out -> what head i adds, (tokens, d_model)."""
    for tokens, num_heads, head_dim in ((5, 3, 4), (7, 2, 3)):
        d_model = num_heads * head_dim
        context, W_out = draw((tokens, head_dim), (d_model, d_model))
        for i in range(num_heads):
            try:
                added = run(answer, context, W_out, i)
            except Wrong as mistake:
                hint = _slicing_hint(answer, context, W_out)
                sizes = f"Here {num_heads} heads are {head_dim} wide."
                raise Wrong(" ".join(filter(None, [str(mistake), hint, sizes]))) from None
            added = numbers(added, (tokens, d_model), "tokens, d_model")
            _name_rows(added, context, W_out, i)
    return "Each head has its own rows, for three heads of width 4 and two of width 3."


def _slicing_hint(answer, context, W_out):
    """Return what is probably behind an error: the answer is tried where the mistakes do run."""
    head_dim = context.shape[-1]
    trials = {
        "For i = 0 your slice is empty: heads count from 0.": (W_out, context @ W_out[:head_dim]),
        "A head owns rows of W_out, not columns.": (
            W_out[:head_dim],  # so few rows that columns of it meet the context
            context @ W_out[:head_dim, head_dim : 2 * head_dim],
        ),
    }
    for sentence, (matrix, mistaken) in trials.items():
        try:
            found = numbers(run(answer, context, matrix, 1), mistaken.shape, "")
        except Wrong:
            continue
        if same(found, mistaken):
            return sentence
    return ""


def _name_rows(added, context, W_out, i):
    width = context.shape[-1]
    rows = {j: W_out[width * j : width * (j + 1)] for j in range(len(W_out) // width)}
    if same(added, context @ rows[i]):
        return
    for j in rows:
        if same(added, context @ rows[j]):
            raise Wrong(f"For i = {i} these are the rows of head {j}; the heads count from 0.")
    if same(added, context @ W_out[i : i + width]):
        raise Wrong(f"Row {i} is not where head {i} begins: every head before it has {width} rows.")
    every = W_out[i :: len(rows)]
    if same(added, context @ every):
        raise Wrong(
            f"The rows of one head stand together; these are rows {i}, {i + len(rows)} and so on."
        )
    if same(added, context @ W_out[:, width * i : width * (i + 1)].mT):
        raise Wrong(
            "These are columns of W_out, laid on their side. A head owns rows, not columns: "
            "a row meets a number of a head, a column makes an output feature."
        )
    raise Wrong(f"The shape is right and the numbers are not, for i = {i}.")


def _context(x, W_query, W_key, W_value, causal=True, width=None):
    """Return the context (batch, tokens, head_dim) of one head; width: what is under the root."""
    queries, keys, values = x @ W_query, x @ W_key, x @ W_value
    head_dim = keys.shape[-1]
    queries = queries * (head_dim / (width or head_dim)) ** 0.5  # attention divides by √head_dim
    return attention(queries, keys, values, causal_mask(x.shape[-2]) if causal else None)[0]


def _name_mixing(output, x, heads, contexts, W_out):
    """Raise Wrong with the mistake that gives this output."""
    joined = torch.cat(contexts, dim=-1)
    for sentence, mistaken in _unmixed(joined, contexts, W_out).items():
        if same(output, mistaken):
            raise Wrong(f"{sentence}.")
    for sentence, parts in _other_heads(x, heads, contexts, len(W_out)).items():
        if same(output, torch.cat(parts, dim=-1) @ W_out):
            raise Wrong(f"{sentence}.")
    raise Wrong(f"The shape is right and the numbers are not, for {len(heads)} heads.")


def _unmixed(joined, contexts, W_out):
    """Return {sentence: output} of right heads that are wrongly joined or mixed."""
    woven = torch.stack(contexts, dim=-1).flatten(-2)
    shape = joined.shape
    return {
        "These are the joined heads: W_out is missing": joined,
        "W_out lies on its side: joined @ W_out is wanted, without a transpose": joined @ W_out.mT,
        "The heads are woven into each other: join them side by side, with torch.cat": (
            woven @ W_out
        ),
        "Heads and tokens have not changed places before `reshape`, so a row holds several tokens "
        "of one head: join side by side, with torch.cat": (
            torch.stack(contexts, dim=1).reshape(shape) @ W_out
        ),
        "The heads are stacked in front of the batch and reshaped, so a row holds several tokens "
        "of one head: join side by side, with torch.cat": (
            torch.stack(contexts).reshape(shape) @ W_out
        ),
    }


def _other_heads(x, heads, contexts, d_model):
    """Return {sentence: contexts} of heads that are wrong themselves."""
    width = d_model // len(heads)
    parts = [slice(i * width, (i + 1) * width) for i in range(len(heads))]
    order = "the triple is (W_Q, W_K, W_V)"
    return {
        "Every head is the first one: each has matrices of its own": contexts[:1] * len(heads),
        "The heads stand in the wrong order, so each meets the rows of another": contexts[::-1],
        "The token is cut before the heads: each sees its own part of x. Every head reads the "
        "whole token": [
            _context(x[..., own], *(W[own] for W in matrices))
            for own, matrices in zip(parts, heads, strict=True)
        ],
        f"W_Q and W_K have changed places: {order}": [_context(x, K, Q, V) for Q, K, V in heads],
        f"W_K and W_V have changed places: {order}": [_context(x, Q, V, K) for Q, K, V in heads],
        f"W_Q and W_V have changed places: {order}": [_context(x, V, K, Q) for Q, K, V in heads],
        "The future is visible: a head here is causal": [
            _context(x, *matrices, causal=False) for matrices in heads
        ],
        f"The scores are divided by √{d_model}, the width of all heads: √head_dim is wanted": [
            _context(x, *matrices, width=d_model) for matrices in heads
        ],
        "The scores are not divided by √head_dim": [
            _context(x, *matrices, width=1) for matrices in heads
        ],
    }
