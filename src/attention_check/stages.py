"""The places of a captured run where scores become weights and weights meet values."""

import math
from dataclasses import dataclass

import torch

from .graph import DROPOUT, EXP, KERNEL, SOFTMAX, SUM, TIMES, WITH_ALPHA, outputs
from .runs import Kept

ROLES = {"q": "queries", "k": "keys", "v": "values"}  # what meets in a core


@dataclass
class Core:
    """One place where scores become weights and weights meet values.

    queries, keys, values: numbers as (…, tokens, width); weights: (…, queries, keys), as they
    meet the values; scores: the numbers that go into the softmax, in the same layout or None;
    products: q·k before any factor; normalised: the softmax's output or None.
    """

    at: int
    width: int
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    weights: torch.Tensor
    products: torch.Tensor
    scores: torch.Tensor | None
    normalised: torch.Tensor | None
    operands: tuple  # ((Kept, index of the call that reads it), …) for q, k, v
    context: tuple  # (Kept, numbers as (…, tokens, width))
    path: tuple = ()  # the indices of the calls between products and weights
    softmaxes: int = 1
    turned: bool = False  # the weights are the transpose of what the softmax gave
    last_axis: bool = False  # the softmax ran along the last axis
    fused: object = None  # the call, where the fused kernel is used
    scaled: float | None = None


def cores(graph):
    """All cores of a run, in order. Their weights need not be (tokens, tokens)."""
    found = [_fused(at, call) for at, call in enumerate(graph.calls) if call.name == KERNEL]
    for product in graph.products.values():
        sides = (_core(graph, product, side) for side in (0, 1))
        found += [core for core in sides if core is not None][:1]
    return sorted(found, key=lambda core: core.at)


def _core(graph, product, side):
    """The core whose weights are that operand of a product, or None where they are none."""
    operand, other = (product.left, product.right)[:: 1 - 2 * side]
    path, ends = graph.back(operand, product.at)
    soft = _soft(graph, path)
    ends = [at for at in ends if soft is not None or _numel(graph, at) == operand.value.numel()]
    if not ends or len(product.summed) != 1 or not graph.products[ends[-1]].summed:
        return None
    score = graph.products[ends[-1]]
    mine, others = product.letters[side], product.letters[1 - side]
    row = [a for a in mine if a not in others and a in product.letters[2]]
    col = [a for a in others if a not in mine]
    if not row or not col:
        return None
    row, key, col = _of_size(product, row, graph.sizes.tokens), product.summed[0], col[-1]
    weights, order = _arranged(product.values[side], mine, (row, key))
    result = outputs(graph.calls[_result(graph, product)])[0]
    raw, products = product.values[side], _products(graph, score)
    into, out = _softmax(graph, path, soft, raw, products)
    turned = _turned(out, raw)
    queries, keys = _queries_keys(score, graph.sizes.tokens)
    return Core(
        at=product.at,
        width=math.prod(score.axis_size(letter) for letter in score.summed),
        queries=queries,
        keys=keys,
        values=_arranged(product.values[1 - side], others, (key, col))[0],
        weights=weights,
        products=products,
        scores=_same(into, raw, order, turned),
        normalised=_same(out, raw, order, turned),
        operands=((score.left, score.at), (score.right, score.at), (other, product.at)),
        context=(result, _arranged(result.value, product.letters[2], (row, col))[0]),
        path=tuple(at for at in path if at > score.at),
        turned=turned,
        last_axis=out is not None and bool((out.sum(-1) - 1).abs().max() < 1e-3),
        softmaxes=sum(graph.calls[at].name in SOFTMAX for at in path),
    )


def _products(graph, score):
    """q·k before any factor."""
    if graph.calls[score.at].name == WITH_ALPHA:  # its alpha is a factor of the scores
        return score.left.value @ score.right.value
    return outputs(graph.calls[_result(graph, score)])[0].value


def _softmax(graph, path, soft, raw, products):
    """(what goes into the softmax, what comes out), each None where it cannot be seen."""
    if soft is None:
        return (raw if _raw(products, raw) else None), None
    call = graph.calls[soft]
    out = _divided(graph, path, soft, raw) if call.name == EXP else outputs(call)[0].value
    return call.inputs[0].value, out


def _raw(products, weights):
    """Whether what meets the values is the products, but for a factor and what is hidden."""
    if products.numel() != weights.numel():
        return False
    for candidate in (products, products.mT):
        x, y = candidate.flatten().double(), weights.flatten().double()
        kept = (y != 0) & y.isfinite() & (y > -1e3)
        x, y = x[kept], y[kept]
        factor = (x @ y) / (x @ x).clamp_min(1e-12)
        if len(x) and factor > 0 and (y - factor * x).norm() < 1e-3 * y.norm():
            return True
    return False


def _divided(graph, path, soft, like):
    """What a softmax written by hand gives: an exp, divided by its sums; or None."""
    for at in path:
        value = outputs(graph.calls[at])[0].value if outputs(graph.calls[at]) else None
        if at > soft and value is not None and value.shape == like.shape:
            sums = [value.sum(axis) for axis in range(value.dim())]
            if any((total - 1).abs().max() < 1e-3 for total in sums):
                return value
    return None


def _result(graph, product):
    """The index of the call whose output is the product: the sum, where it is written out."""
    at = product.at
    if graph.calls[at].name in TIMES:
        made = outputs(graph.calls[at])[0]
        return next(u for u in graph.users(made, at) if graph.calls[u].name == SUM)
    return at


def _numel(graph, at):
    product = graph.products[at]
    return outputs(graph.calls[_result(graph, product)])[0].value.numel()


def _soft(graph, path):
    """The last softmax on the path, or else the last exp of a softmax written by hand."""
    for names in (SOFTMAX, (EXP,)):
        for at in reversed(path):
            if graph.calls[at].name in names:
                return at
    return None


def _same(value, like, order, turned):
    if value is None or value.shape != like.shape:
        return None
    if turned and value.shape[-1] == value.shape[-2]:
        value = value.mT
    return value.permute(order)


def _turned(normalised, weights):
    """Whether the weights meet the values as the transpose of what the softmax gave."""
    if normalised is None or normalised.shape != weights.shape or weights.dim() < 2:
        return False
    if weights.shape[-1] != weights.shape[-2]:
        return False
    straight, crossed = (_spread(normalised, w) for w in (weights, weights.mT))
    return crossed < 0.5 * straight


def _spread(before, after):
    """How far after / before is from one factor, entry by entry where after is not zero."""
    kept = after != 0
    ratio = (after[kept] / before[kept]).double().abs().log()
    return ratio.std().item() if len(ratio) > 1 and ratio.isfinite().all() else math.inf


def _arranged(value, letters, last):
    """Move two axes to the end."""
    order = [i for i, a in enumerate(letters) if a not in last]
    order += [letters.index(a) for a in last]
    return value.permute(order), order


def _of_size(product, letters, tokens):
    fitting = [a for a in letters if product.axis_size(a) == tokens]
    return (fitting or letters)[-1]


def _queries_keys(score, tokens):
    found = []
    for side in (0, 1):
        mine, others = score.letters[side], score.letters[1 - side]
        own = [a for a in mine if a not in others] or [a for a in mine if a not in score.summed]
        token = _of_size(score, own, tokens)
        found.append(_arranged(score.values[side], mine, (token, score.summed[-1]))[0])
    return found


def _fused(at, call):
    q, k, v = call.inputs[:3]
    width = q.value.shape[-1]
    scale = call.kwargs.get("scale")
    scale = width**-0.5 if scale is None else float(scale)
    keys, values = k.value, v.value
    if keys.dim() > 2 and keys.shape[-3] != q.value.shape[-3] and q.value.dim() > 3:
        times = q.value.shape[-3] // max(keys.shape[-3], 1)
        keys, values = (t.repeat_interleave(times, dim=-3) for t in (keys, values))
    products = q.value @ keys.mT
    scores = _masked(call, products * scale)
    weights = scores.softmax(dim=-1).nan_to_num(0.0)
    result = outputs(call)[0]
    return Core(
        at=at,
        width=width,
        queries=q.value,
        keys=keys,
        values=values,
        weights=weights,
        products=products,
        scores=scores,
        normalised=weights,
        operands=((q, at), (k, at), (v, at)),
        context=(result, result.value),
        fused=call,
        scaled=scale,
    )


def fused_mask(call):
    """The mask given to the fused kernel, its numbers, or None."""
    mask = call.kwargs.get("attn_mask", call.args[3] if len(call.args) > 3 else None)
    return mask.value if isinstance(mask, Kept) else None


def _masked(call, scores):
    mask = fused_mask(call)
    causal = call.kwargs.get("is_causal", call.args[5] if len(call.args) > 5 else False)
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    if mask is not None:
        bias = mask
        if mask.dtype == torch.bool:
            bias = torch.zeros_like(scores).masked_fill(~mask, -torch.inf)
        scores = scores + bias
    return scores


def drops(call):
    """Whether a call drops something at random."""
    if call.name == DROPOUT:
        return not torch.equal(call.inputs[0].value, call.output.value)
    return kernel_drops(call)


def kernel_drops(call):
    """Whether a call is the fused kernel with a dropout_p, its fifth argument, above 0."""
    given = call.args[4] if len(call.args) > 4 else call.kwargs.get("dropout_p")
    return call.name == KERNEL and bool(given)
