"""The places of a captured run where scores become weights and weights meet values."""

import math
from dataclasses import dataclass

import torch

from .graph import DROPOUT, EXP, KERNEL, SOFTMAX, WITH_ALPHA, argument, factor, outputs
from .runs import Kept

ROLES = {"q": "queries", "k": "keys", "v": "values"}  # what meets in a core


@dataclass(eq=False)
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
    last_axis: bool = False  # the softmax ran along the last axis
    fused: object = None  # the call, where the fused kernel is used

    @property
    def roles(self):
        """[(letter, role, numbers, operand)] of the queries, the keys and the values."""
        numbers = self.queries, self.keys, self.values
        return list(zip(ROLES, ROLES.values(), numbers, self.operands, strict=True))

    @property
    def soft(self):
        """The weights as the softmax gave them, where that is seen."""
        return self.weights if self.normalised is None else self.normalised

    @property
    def changed(self):
        """Whether the weights are changed between the softmax and the values."""
        return not torch.allclose(self.weights, self.soft, atol=1e-5, equal_nan=True)


def cores(graph):
    """All cores of a run, in order. Their weights need not be (tokens, tokens)."""
    found = [_fused(at, call) for at, call in enumerate(graph.calls) if call.name == KERNEL]
    for product in graph.products.values():
        found.append(_core(graph, product, 0) or _core(graph, product, 1))
    return sorted(filter(None, found), key=lambda core: core.at)


def _core(graph, product, side):
    """The core whose weights are that operand of a product, or None where they are none."""
    operand, other = product.sides[side], product.sides[1 - side]
    path, ends, _ = graph.back(operand, product.at)
    named = [at for names in ((EXP,), SOFTMAX) for at in path if graph.calls[at].name in names]
    soft = named[-1] if named else None  # the last softmax, or else exp
    raw, ends = product.values[side], [graph.products[at] for at in ends]
    if soft is None:
        ends = [score for score in ends if score.result.value.numel() == raw.numel()]
    mine, others, out = product.letters[side], product.letters[1 - side], product.letters[2]
    rows = [a for a in mine if a in out and a not in others]
    columns = [a for a in others if a not in mine]
    if not (ends and ends[-1].summed and len(product.summed) == 1 and rows and columns):
        return None
    score, key, tokens = ends[-1], product.summed[0], graph.sizes.tokens
    row, column = _token(product, rows, tokens), columns[-1]
    products = score.result.value
    if graph.calls[score.at].name == WITH_ALPHA:  # its alpha is a factor of the scores
        products = score.sides[0].value @ score.sides[1].value
    into, given = _softmax(graph, path, soft, raw, products)
    order = _order(mine, (row, key))
    scores, normalised = _laid(into, given, raw, order)
    queries, keys = (_rows(score, side, tokens) for side in (0, 1))
    return Core(
        at=product.at,
        width=math.prod(score.sizes[letter] for letter in score.summed),
        queries=queries,
        keys=keys,
        values=product.values[1 - side].permute(_order(others, (key, column))),
        weights=raw.permute(order),
        products=products,
        scores=scores,
        normalised=normalised,
        operands=(*((kept, score.at) for kept in score.sides), (other, product.at)),
        context=(product.result, product.result.value.permute(_order(out, (row, column)))),
        path=tuple(at for at in path if at > score.at),
        last_axis=given is not None and bool((given.sum(-1) - 1).abs().max() < 1e-3),
        softmaxes=sum(graph.calls[at].name in SOFTMAX for at in path),
    )


def _softmax(graph, path, soft, raw, products):
    """(what goes into the softmax, what comes out), each None where it cannot be seen."""
    if soft is None:
        return (raw if fits(products, raw) or fits(products.mT, raw) else None), None
    call, made = graph.calls[soft], [outputs(graph.calls[at])[0].value for at in path if at >= soft]
    if call.name != EXP:
        return call.inputs[0].value, made[0]
    # by hand: the exp, divided by its sums
    sums = ((value, value.sum(axis)) for value in made[1:] for axis in range(value.dim()))
    found = (v for v, total in sums if v.shape == raw.shape and (total - 1).abs().max() < 1e-3)
    return call.inputs[0].value, next(found, None)


def fits(before, after):
    """Whether numbers are others times one factor, save what is hidden."""
    shown = (after != 0) & (after > -1e3) & after.isfinite()
    alike = before.numel() == after.numel()
    return alike and factor(before.reshape(after.shape)[shown], after[shown], 1e-3) is not None


def _laid(into, given, raw, order):
    """[what goes into the softmax, what comes out] in the layout of the weights, each or None."""
    turned = given is not None and not fits(given, raw) and fits(given.mT, raw)
    values = [value.mT if turned else value for value in (into, given)]
    return [v.permute(order) if v is not None and v.shape == raw.shape else None for v in values]


def _order(letters, last):
    """The order of the axes that has two of them at the end."""
    return [*(i for i, a in enumerate(letters) if a not in last), *map(letters.index, last)]


def _token(product, letters, tokens):
    return ([a for a in letters if product.sizes[a] == tokens] or letters)[-1]


def _rows(score, side, tokens):
    """The queries (0) or the keys (1) of a product, as (…, tokens, width)."""
    mine, others = score.letters[side], score.letters[1 - side]
    own = [a for a in mine if a not in others] or [a for a in mine if a not in score.summed]
    order = _order(mine, (_token(score, own, tokens), score.summed[-1]))
    return score.values[side].permute(order)


def _fused(at, call):
    """The core of a call of the fused kernel."""
    operands = [argument(call, n, name) for n, name in enumerate(("query", "key", "value"))]
    queries, keys, values = (kept.value for kept in operands)
    scale = call.kwargs.get("scale") or queries.shape[-1] ** -0.5
    if queries.dim() > 3 and keys.shape[-3] != queries.shape[-3]:  # each for several heads
        times = queries.shape[-3] // max(keys.shape[-3], 1)
        keys, values = (t.repeat_interleave(times, dim=-3) for t in (keys, values))
    products, mask = queries @ keys.mT, fused_mask(call)
    scores, result = products * scale, outputs(call)[0]
    if argument(call, 5, "is_causal"):
        scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
    if mask is not None:
        keeps = mask.dtype == torch.bool
        scores = scores.masked_fill(~mask, -torch.inf) if keeps else scores + mask
    weights = scores.softmax(dim=-1).nan_to_num(0.0)
    return Core(
        at=at,
        width=queries.shape[-1],
        queries=queries,
        keys=keys,
        values=values,
        weights=weights,
        products=products,
        scores=scores,
        normalised=weights,
        operands=tuple((kept, at) for kept in operands),
        context=(result, result.value),
        fused=call,
    )


def fused_mask(call):
    """The mask given to the fused kernel, its numbers, or None."""
    mask = argument(call, 3, "attn_mask")
    return mask.value if isinstance(mask, Kept) else None


def drops(call):
    """Whether a call drops something at random."""
    acts = call.name == DROPOUT and not torch.equal(call.inputs[0].value, call.output.value)
    return acts or kernel_drops(call)


def kernel_drops(call):
    """Whether a call is the fused kernel with a dropout_p above 0."""
    return call.name == KERNEL and bool(argument(call, 4, "dropout_p"))
