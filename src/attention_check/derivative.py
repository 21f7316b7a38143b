"""Weights where no line of the code makes them: how far a context moves with each value.

A context is linear in the values, so that its derivative by the value of a token is the weight on
it, whatever way it is computed: in chunks, online, in windows, without a softmax.
"""

import torch

from .graph import EXP, KERNEL, SOFTMAX, outputs
from .runs import Kept

CLOSE = 1e-3  # of the context's largest number: weights times values must come as near as this


def slopes(run, x, parts=None):
    """(weights (num_heads, tokens, tokens), the call that reads the context) of a run, or None.

    run: gives (Graph, output), with gradients, for x (1, tokens, d_model). The first context that
    explains itself counts: as weights times values. parts: look at two numbers of each of so many
    parts of a context's row alone, as where it is cut into heads; None: at all.
    """
    (graph, out), changed = run(x), []
    if not graph.attends:
        return None
    for context, at in _contexts(graph, out):
        rows = _rows(context, x.shape[1], parts)
        if rows is None or not context.requires_grad:
            continue
        for source in sorted(all_behind(graph, [(Kept(context), at)])):
            if not _is_value(graph, source):
                continue
            values = outputs(graph.calls[source])[0].tensor
            changed = changed or [run(one)[0].calls for one in _changed(x)]
            places = _places(changed, source, values)
            weights = None if places is None else _slopes(rows, values, places)
            if weights is not None:
                return weights, graph.calls[min(at, len(graph.calls) - 1)]
    return None


def _contexts(graph, out):
    """(context, index of its reader): what a projection takes, with attention behind it."""
    for at, call in enumerate(graph.calls):
        for kept in call.inputs[:2] if at in graph.projections else ():
            if _mixes(graph, all_behind(graph, [(kept, at)])):
                yield kept.tensor, at
    if isinstance(out, torch.Tensor):
        yield out, len(graph.calls)


def _mixes(graph, calls):
    attends = {*SOFTMAX, EXP, KERNEL}
    return any(at in graph.products or graph.calls[at].name in attends for at in calls)


def _is_value(graph, at):
    """Whether a call is a projection of the input, with no attention behind it."""
    if at not in graph.projections or not outputs(graph.calls[at]):
        return False
    made = outputs(graph.calls[at])[0]
    calls = all_behind(graph, [(kept, at) for kept in graph.calls[at].inputs])
    return made.tensor.requires_grad and not made.tensor.is_leaf and not _mixes(graph, calls)


def _rows(context, tokens, parts):
    """A context of one sentence as (tokens, numbers), or None."""
    axes = [axis for axis in range(context.dim() - 1) if context.shape[axis] == tokens]
    if not axes:
        return None
    rows = context.movedim(axes[-1], 0).reshape(tokens, -1)
    size = rows.shape[1] // (parts or rows.shape[1])
    chosen = torch.arange(rows.shape[1]) % max(size, 1) < 2
    return rows[:, chosen]


def _changed(x):
    """x with each token drawn anew in turn."""
    for token in range(x.shape[1]):
        other, generator = x.clone(), torch.Generator().manual_seed(token)
        other[:, token] = torch.randn(x.shape[-1], generator=generator).to(x)
        yield other


def _places(changed, source, values):
    """The flat places in a projection's result that each token fills: (tokens, numbers).

    changed: the calls of a run for each token, in which that one is drawn anew.
    """
    base, found = values.detach().flatten(), []
    for calls in changed:
        made = outputs(calls[source])[0].value.flatten() if source < len(calls) else base[:0]
        if made.shape != base.shape:
            return None
        found.append((made != base).nonzero().flatten())
    if len({len(places) for places in found}) > 1 or not len(found[0]):
        return None
    places = torch.stack(found)
    return places if places.unique().numel() == places.numel() else None


def _slopes(rows, values, places):
    """(num_heads, tokens, tokens), or None where the rows are not linear in the values."""

    def slope(number):
        (grad,) = torch.autograd.grad(number, values, retain_graph=True, allow_unused=True)
        return torch.zeros(places.shape) if grad is None else grad.flatten()[places]

    mix = torch.randn(len(rows), generator=torch.Generator().manual_seed(0)).to(rows)
    mixed = torch.stack([slope(mix @ column) for column in rows.mT])  # (numbers, tokens, features)
    acts = (mixed.abs() > 1e-9).any(dim=1)  # (numbers, features)
    acts &= acts.sum(0) == 1  # a key's feature moves all numbers of its head
    if (acts.sum(1) != 1).any():
        return None
    own = acts.int().argmax(1)  # the feature of the values that each number of the context mixes
    lines, heads = mixed[torch.arange(len(own)), :, own], []  # (numbers, tokens)
    for number, line in enumerate(lines):
        if not any(torch.allclose(line, lines[h], rtol=1e-4, atol=1e-7) for h in heads):
            heads.append(number)
    weights = torch.stack([torch.stack([slope(row[h])[:, own[h]] for row in rows]) for h in heads])
    numbers = values.detach().flatten()[places]  # (tokens, features)
    told = torch.stack([(w @ numbers[:, own[h]]) for h, w in zip(heads, weights, strict=True)])
    return weights if near(told, rows.detach().mT[heads]) else None


def all_behind(graph, operands):
    """The indices of all calls behind some operands: (Kept, index of its reader)."""
    return set().union(*(graph.behind(*operand)[0] for operand in operands))


def near(first, second):
    """Whether two tensors are the same, up to a thousandth of the largest number."""
    first, second = first.float().nan_to_num(0.0), second.float().nan_to_num(0.0)
    return bool((first - second).abs().max() <= CLOSE * second.abs().max())
