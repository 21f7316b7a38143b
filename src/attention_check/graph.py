"""The calls of one run: what was made of what, found by the numbers."""

from collections import defaultdict
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import NamedTuple

import torch

from .guard import reachable
from .runs import Kept

# The operations that the check knows by name; all else is told by numbers.
LOGARITHM = "log_softmax"
TO_A_DEVICE = ("to", "cuda")
SOFTMAX = ("softmax", "_softmax", LOGARITHM)
EXP, DROPOUT, SUM, TIMES = "exp", "dropout", "sum", ("mul", "multiply")
KERNEL, WHOLE_LAYER = "scaled_dot_product_attention", "multi_head_attention_forward"
WRITTEN = "assign"  # x[...] = v
EINSUM, WITH_ALPHA = "einsum", "baddbmm"
PRODUCTS = ("matmul", "bmm", "mm", WITH_ALPHA)
PROJECTIONS = ("linear", "addmm", "conv1d", "conv2d", "bilinear", "embedding")
FILLS = ("masked_fill", "where", "masked_scatter")
TRIANGLES = ("tril", "triu")
SAMPLE = 256  # numbers of an output that are looked up among the inputs
UNNAMED = "01234567"  # the axes that an einsum writes as ...


@dataclass
class Product:
    """A matrix product as an einsum: two operands, and a letter for each of their axes."""

    at: int
    sides: tuple  # (Kept, Kept)
    letters: tuple  # (left, right, out), each a string
    values: tuple  # the operands' numbers, one axis for each letter
    result: Kept

    @property
    def summed(self):
        left, right, out = self.letters
        return [a for a in left if a in right and a not in out]

    @property
    def doubled(self):
        """[(number of the side, letter)] of each letter that stands twice in one side."""
        return [(n, a) for n, t in enumerate(self.letters[:2]) for a in t if t.count(a) > 1]

    @property
    def apart(self):
        """[(left letter, right letter)] of axes of one size, each summed in its own side alone."""
        every = "".join(self.letters)
        first, second = ([a for a in t if every.count(a) == 1] for t in self.letters[:2])
        return [(a, b) for a in first for b in second if self.sizes[a] == self.sizes[b] > 1]

    @property
    def sizes(self):
        """The size of each axis by its letter."""
        both = zip(self.letters, self.values, strict=False)
        return {a: n for letters, v in both for a, n in zip(letters, v.shape, strict=True)}


class Origin(NamedTuple):
    """Where an operand comes from, through changes of layout and fixed factors alone."""

    sources: list  # (index of the call that made it, or None, Kept)
    factor: float  # by how much the operand is larger


class Graph:
    """The calls of one run in order, with the maker of each tensor."""

    def __init__(self, record, sizes):
        self.given, self.sizes, self.module = record.given, sizes, record.module
        self.calls = [call for call in _opened(record.calls) if call.error is None]
        plain = [t for _, t in reachable(self.module) if isinstance(t, torch.Tensor)]
        self.known = {id(t) for t in [*self.module.parameters(), *self.module.buffers(), *plain]}
        # (the inputs whose numbers go on, their factor) of the call at an index
        self.carried = cache(lambda at: _carried(self.calls[at]))
        self._makers, self._users = defaultdict(list), defaultdict(list)
        self.every = {}  # index -> Product, of two computed tensors or with a weight
        for at, call in enumerate(self.calls):
            for kept in outputs(call):
                self._makers[id(kept.tensor)].append(at)
                self._makers[_place(kept.tensor)].append(at)
            for kept in call.inputs:
                self._users[id(kept.tensor)].append(at)
            if product := self._product(at, call):
                self.every[at] = product

    def maker(self, kept, before):
        """The index of the call that made (or last wrote) the tensor; None for what came in."""
        made = self._makers.get(id(kept.tensor))
        if made is None and id(kept.tensor) not in self.known and kept.tensor is not self.given:
            made = self._makers.get(_place(kept.tensor))  # x.data: another object, same numbers
        return max((at for at in made or () if at < before), default=None)

    def users(self, kept, after):
        """The indices of the later calls that read the tensor."""
        return [at for at in self._users.get(id(kept.tensor), ()) if at > after]

    def used(self, tensor):
        return id(tensor) in self._users

    def foreign(self, known):
        """{id: in words} of the trainable leaves that run in forward but are not in known."""
        read = [(kept.tensor, call.line) for call in self.calls for kept in call.inputs]
        return {
            id(t): f"a weight of shape {tuple(t.shape)} in `{line}`"
            for t, line in read
            if t.is_leaf and t.requires_grad and t.dim()
            if id(t) not in known and t is not self.given
        }

    # --- walking back and forward -----------------------------------------------------------

    def _walk(self, kept, before, onward):
        """[(index or None, Kept, factor, whether it ends there)] for all behind an operand.

        onward: of a call, (the inputs to go on with, their factor), as `carried` gives them.
        """
        steps, todo = {}, [(kept, before, 1.0)]
        while todo:
            kept, before, factor = todo.pop()
            at = self.maker(kept, before)
            if (id(kept.tensor), at) not in steps:
                inputs, step = ((), 1.0) if at is None else onward(at)
                steps[id(kept.tensor), at] = at, kept, factor, not inputs
                todo += [(k, at, factor * step) for k in inputs]
        return list(steps.values())

    def origin(self, kept, before):
        """The Origin of an operand of the call at index `before`."""
        ends = [step[:3] for step in self._walk(kept, before, self.carried) if step[3]]
        return Origin([(at, kept) for at, kept, _ in ends], ends[-1][2])

    def pure(self, origin):
        """Whether the origin is a projection or the input, with nothing else in between."""
        ends = origin.sources
        return all(
            k.tensor is self.given if at is None else at in self.projections for at, k in ends
        )

    def behind(self, kept, before, stops=()):
        """(the indices of the calls, the ids of the tensors from outside) behind an operand."""
        steps = self._walk(
            kept, before, lambda at: (self.calls[at].inputs * (at not in stops), 1.0)
        )
        calls = sorted({at for at, *_ in steps if at is not None})
        return calls, {id(kept.tensor) for at, kept, *_ in steps if at is None}

    def back(self, kept, before):
        """(calls between, products of two, projections): the nearest behind an operand."""
        stops = self.products.keys() | self.projections
        calls, _ = self.behind(kept, before, stops)
        kinds = {*calls} - stops, self.products, self.projections
        return [[at for at in calls if at in kind] for kind in kinds]

    def moved(self, kept, after):
        """The last tensor that holds all numbers of one, beside others or alone; or itself."""
        for at in self.users(kept, after):
            (inputs, factor), made = self.carried(at), outputs(self.calls[at])[0]
            read = factor == 1.0 and any(k.tensor is kept.tensor for k in inputs)
            if read and made.value.numel() >= kept.value.numel():
                return self.moved(made, at)
        return kept

    def ends(self, kept, after):
        """The indices of the calls that read the numbers of a tensor and make others of them."""
        found, todo = {}, [(kept, after)]
        while todo:
            kept, after = todo.pop()
            for at in set(self.users(kept, after)) - set(found):
                found[at] = any(k.tensor is kept.tensor for k in self.carried(at)[0])
                todo += [(made, at) for made in outputs(self.calls[at]) if found[at]]
        return [at for at, goes_on in found.items() if not goes_on]

    # --- products ---------------------------------------------------------------------------

    @cached_property
    def projections(self):
        """The indices of the calls that multiply by a weight: of the module, or trainable."""
        found = {at for at, call in enumerate(self.calls) if call.name in PROJECTIONS}
        for at, product in self.every.items():
            for origin in (self.origin(kept, at) for kept in product.sides):
                leaves = [kept.tensor for made, kept in origin.sources if made is None]
                own = [t for t in leaves if id(t) in self.known or t.requires_grad]
                found |= {at} if len(own) == len(origin.sources) else set()
        return found

    @cached_property
    def products(self):
        """Index -> Product, for products of two computed tensors."""
        return {at: p for at, p in self.every.items() if at not in self.projections}

    @property
    def attends(self):
        """Whether anything of attention is seen: a product of two computed tensors, a softmax."""
        named = any(call.name in (*SOFTMAX, EXP, KERNEL) for call in self.calls)
        return named or bool(self.products)

    def _product(self, at, call):
        """The call as a Product, or None where it is none."""
        try:
            if call.name in PRODUCTS:
                return _spelled(at, call, "...ic,...cj->...ij", call.inputs[-2:])
            if call.name == EINSUM:
                return _spelled(at, call, equation(call), call.inputs)
            return self._sum(at, call) if call.name == SUM else None
        except (AttributeError, IndexError, TypeError, ValueError):
            return None  # other operands than two tensors

    def _sum(self, at, call):
        """(q * k).sum(-1): a product written out."""
        total = call.inputs[0]
        made, shape = self.calls[self.maker(total, at)], total.value.shape
        letters = "abcdefgh"[: len(shape)]
        axes = [[i for i, n in enumerate(shape) if k.value.shape[i] == n] for k in made.inputs]
        left, right = ("".join(letters[i] for i in side) for side in axes)
        kept = "z" if call.output.value.dim() == len(shape) else ""  # keepdim: a letter of its own
        out = letters.replace(letters[argument(call, 1, "dim")], kept)
        if made.name not in TIMES or left == right or len(out) != call.output.value.dim():
            return None  # with the same axes on both sides: no product of all pairs
        sides = zip(made.inputs, axes, strict=True)
        values = [k.value.reshape([shape[i] for i in side]) for k, side in sides]
        return _spelled(at, call, f"{left},{right}->{out}", made.inputs, values)


def _spelled(at, call, terms, sides, values=None):
    """The Product of an einsum's equation, with a letter for each axis."""
    values = values or [kept.value for kept in sides]
    terms, arrow, out = terms.partition("->")
    if not arrow:
        out = "..." + "".join(sorted(c for c in set(terms) - set(".,") if terms.count(c) == 1))
    left, right = terms.split(",")
    spelled = zip((left, right), values, strict=True)
    dots = [value.dim() - len(term.replace("...", "")) for term, value in spelled]
    if min(dots) < 0:
        return None
    spelled = zip((left, right, out), (*dots, max(dots)), strict=True)
    letters = tuple(term.replace("...", UNNAMED[len(UNNAMED) - n :]) for term, n in spelled)
    return Product(at, tuple(sides), letters, tuple(values), outputs(call)[0])


def _place(tensor):
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride()
    except RuntimeError:  # a sparse tensor has several
        return None


def _opened(calls):
    """The calls, and those inside of nn.MultiheadAttention's one; masked_fill_ is masked_fill.

    An einsum of three operands or more is one for each two, from the left.
    """
    for call in calls:
        if call.name == WHOLE_LAYER and call.inner:
            yield from _opened(call.inner)
        elif len(call.inputs) > 2 and call.error is None and "->" in equation(call):
            yield from _by_twos(call)
        else:
            yield replace(call, name=call.name.rstrip("_")) if call.name.endswith("_") else call


def _by_twos(call):
    """The calls of an einsum's operands, two by two; ... stands where it stood."""
    terms, _, out = equation(call).partition("->")
    (left, *rest), (first, *others) = terms.split(","), call.inputs
    while len(rest) > 1:
        later = "".join([*rest[1:], out])
        dots = "..." * ("..." in left + rest[0])
        made = dots + "".join(a for a in dict.fromkeys(left + rest[0]) if a in later and a != ".")
        half = f"{left},{rest[0]}->{made}"
        result = Kept(torch.einsum(half, first.tensor, others[0].tensor))
        yield replace(call, args=(half,), inputs=[first, others[0]], output=result)
        (left, first), rest, others = (made, result), rest[1:], others[1:]
    yield replace(call, args=(f"{left},{rest[0]}->{out}",), inputs=[first, others[0]])


def outputs(call):
    """The tensors that a call gave."""
    given = call.output if isinstance(call.output, list | tuple) else [call.output]
    return [kept for kept in given if isinstance(kept, Kept)]


def equation(call):
    """The equation of an einsum, without spaces; "" for other calls."""
    written = call.args[0] if call.name == EINSUM else ""
    return written.replace(" ", "") if isinstance(written, str) else ""


def divides(call):
    """The computed tensor by which a call divides one tensor or a number; or None."""
    made, inputs = outputs(call), _decimals(call.inputs)
    for by in (k for k in inputs if made and k.tensor.requires_grad):
        others = [k.value for k in inputs if k is not by]
        try:
            back = made[0].value * by.value
            if torch.allclose(back, others[0] if others else back.flatten()[0], rtol=1e-4):
                return by
        except RuntimeError:
            continue  # shapes that do not go together
    return None


def argument(call, place, name):
    """What a call was given by place or by name; None where that was left out."""
    return call.args[place] if len(call.args) > place else call.kwargs.get(name)


# --- the same numbers -----------------------------------------------------------------------


def factor(before, after, within=1e-4):
    """By how much a tensor is larger than another, where that is one number; or None."""
    x, y = before.flatten().double(), after.flatten().double()
    found = (x @ y) / (x @ x).clamp_min(1e-12)
    return found.item() if (y - found * x).norm() < within * y.norm() else None


def _carried(call):
    """(the inputs whose numbers go on, their factor); ((), 1.0) where a call makes new ones.

    A call whose every output number stands among its inputs only moved numbers; one that makes
    each number of an input larger by the same factor scaled it.
    """
    numbers, made = _decimals(call.inputs), [kept.value for kept in _decimals(outputs(call))]
    if not numbers or not made:
        return (), 1.0
    first, last = numbers[0], numbers[-1]
    if call.name == WRITTEN:
        return ([last] if first is last or _constant(first) else [last, first]), 1.0
    if call.relation in ("view", "same object"):
        return [first], 1.0
    sources = [k for k in numbers if not _constant(k)] or [first]
    if len(numbers) > 1 and made[0].numel() != sum(k.value.numel() for k in numbers):
        sources = sources if len(sources) == 1 else []  # no join
    if sources and all(_found(one, sources) for one in made):
        return sources, 1.0
    main = max(numbers, key=lambda k: k.value.numel())
    single = all(k is main or k.value.numel() == 1 for k in numbers)
    times = _scaled(main.value, made[0]) if single else None
    return ((), 1.0) if times is None else ([main], times)


def _decimals(tensors):
    full = [k for k in tensors if k.value.layout == torch.strided and k.value.numel()]
    return [k for k in full if k.value.is_floating_point() or k.value.is_complex()]


def _constant(kept):
    return bool((kept.value == kept.value.flatten()[0]).all())


def _found(made, sources):
    """Whether all numbers, or a sample of many, stand among those of the sources."""
    values = (made, *(kept.value.to(made.dtype) for kept in sources))
    made, *others = (torch.view_as_real(v) if v.is_complex() else v for v in values)
    sample = made.flatten()[:: max(made.numel() // SAMPLE, 1)].double()
    return bool(torch.isin(sample, torch.cat([v.flatten().double() for v in others])).all())


def _scaled(before, after):
    """The factor between two tensors, where -inf stays where it is; or None."""
    finite = before.isfinite()
    if before.shape != after.shape or after.is_complex() or not finite.equal(after.isfinite()):
        return None
    return factor(before[finite], after[finite])
