"""The places of a captured run where scores become weights and weights meet values."""

import math
from dataclasses import dataclass

import torch

from .flow import SOFT, Kept, outputs

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


def cores(flow):
    """All cores of a run, in order. Their weights need not be (tokens, tokens)."""
    found = []
    for at, call in enumerate(flow.calls):
        if call.name == "scaled_dot_product_attention":
            found.append(_fused(at, call))
    for product in flow.products.values():
        for side in (0, 1):
            core = _core(flow, product, side)
            if core is not None:
                found.append(core)
                break
    return sorted(found, key=lambda core: core.at)


def _core(flow, product, side):
    operand = (product.left, product.right)[side]
    path, ends = flow.back(operand, product.at)
    ends = [at for at in ends if flow.calls[at].inputs]
    ends = [
        at
        for at in ends
        if _numel(flow, at) == operand.value.numel() or _soft(flow, path) is not None
    ]
    if not ends or len(product.summed) != 1:
        return None
    score = flow.products[ends[-1]]
    if not score.summed:
        return None
    mine, others = product.letters[side], product.letters[1 - side]
    key = product.summed[0]
    row = [a for a in mine if a not in others and a in product.letters[2]]
    col = [a for a in others if a not in mine]
    if not row or not col:
        return None
    row = _of_size(product, row, flow.sizes.tokens)
    weights, order = _arranged(product.values[side], mine, (row, key))
    values, _ = _arranged(product.values[1 - side], others, (key, col[-1]))
    queries, keys = _queries_keys(score, flow.sizes.tokens)
    soft = _soft(flow, path)
    result = outputs(flow.calls[_result(flow, product)])[0]
    context, _ = _arranged(result.value, product.letters[2], (row, col[-1]))
    width = 1
    for letter in score.summed:
        width *= score.axis_size(letter)
    into = None if soft is None else flow.calls[soft].inputs[0].value
    out = None
    raw = product.values[side]
    if soft is not None:
        by_hand = flow.calls[soft].name == "exp"
        out = _divided(flow, path, soft, raw) if by_hand else outputs(flow.calls[soft])[0].value
    turned = _turned(out, raw)
    names = {flow.calls[at].name for at in path}
    if soft is None and not names & POSITIVE:
        into = raw  # no softmax: the scores meet the values
    raw_products = outputs(flow.calls[_result(flow, score)])[0].value
    if flow.calls[score.at].name == "baddbmm":  # its alpha is a factor of the scores
        raw_products = score.left.value @ score.right.value
    return Core(
        at=product.at,
        width=width,
        queries=queries,
        keys=keys,
        values=values,
        weights=weights,
        products=raw_products,
        scores=_same(into, raw, order, turned),
        normalised=_same(out, raw, order, turned),
        operands=(
            (score.left, score.at),
            (score.right, score.at),
            ((product.left, product.right)[1 - side], product.at),
        ),
        context=(result, context),
        path=tuple(at for at in path if at > score.at),
        turned=turned,
        last_axis=out is not None and bool((out.sum(-1) - 1).abs().max() < 1e-3),
        softmaxes=sum(flow.calls[at].name in SOFT for at in path),
    )


def _divided(flow, path, soft, like):
    """What a softmax written by hand gives: an exp, divided by its sums; or None."""
    for at in path:
        value = outputs(flow.calls[at])[0].value if outputs(flow.calls[at]) else None
        if at > soft and value is not None and value.shape == like.shape:
            sums = [value.sum(axis) for axis in range(value.dim())]
            if any((total - 1).abs().max() < 1e-3 for total in sums):
                return value
    return None


def _result(flow, product):
    """The index of the call whose output is the product: the sum, where it is written out."""
    at = product.at
    if flow.calls[at].name in ("mul", "multiply"):
        made = outputs(flow.calls[at])[0]
        return next(u for u in flow.users(made, at) if flow.calls[u].name == "sum")
    return at


def _numel(flow, at):
    product = flow.products[at]
    return outputs(flow.calls[_result(flow, product)])[0].value.numel()


# calls that make weights of scores in a way of their own
POSITIVE = set(
    "exp sigmoid relu softmax log_softmax softplus elu gelu logsumexp square pow normalize "
    "sparsemax topk entmax exp_ exp2 tanh".split()
)


def _soft(flow, path):
    """The last softmax on the path, or else the last exp of a softmax written by hand."""
    for names in (SOFT, ("exp",)):
        for at in reversed(path):
            if flow.calls[at].name in names:
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
