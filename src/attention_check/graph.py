"""The calls of one run: what was made of what, found by the numbers."""

from dataclasses import dataclass, replace

import torch

from .guard import reachable
from .runs import Kept

# The operations that the check knows by name; all else is told by numbers.
LOGARITHM = "log_softmax"
SOFTMAX = ("softmax", "_softmax", LOGARITHM)
EXP, DROPOUT, SUM, TIMES = "exp", "dropout", "sum", ("mul", "multiply")
KERNEL, WHOLE_LAYER = "scaled_dot_product_attention", "multi_head_attention_forward"
WRITTEN = "assign"  # x[...] = v
EINSUM, WITH_ALPHA = "einsum", "baddbmm"
PRODUCTS = ("matmul", "bmm", "mm", WITH_ALPHA)
PROJECTIONS = ("linear", "addmm", "conv1d", "conv2d", "bilinear", "embedding")
FILLS = ("masked_fill", "where", "masked_scatter")
TRIANGLES = ("tril", "triu")
SUMS = ("add", "sub", "rsub")
SAMPLE = 256  # numbers of an output that are looked up among the inputs


@dataclass
class Product:
    """A matrix product as an einsum: operands, and a letter for each of their axes."""

    at: int
    left: Kept
    right: Kept
    letters: tuple  # (left, right, out), each a string
    values: tuple  # the operands' numbers, one axis for each letter

    @property
    def summed(self):
        left, right, out = self.letters
        return [a for a in left if a in right and a not in out]

    def axis_size(self, letter):
        left, right, _ = self.letters
        side = 0 if letter in left else 1
        return self.values[side].shape[(left, right)[side].index(letter)]


@dataclass
class Origin:
    """Where an operand comes from, through changes of layout and fixed factors alone.

    sources: (call index or None, Kept); factor: by how much the operand is larger; pure: False
    where something else stands between, such as rotary positions or a norm.
    """

    sources: list
    factor: float
    learned: bool = False


class Graph:
    """The calls of one run in order, with the maker of each tensor."""

    def __init__(self, record, sizes):
        self.given, self.sizes, self.module = record.given, sizes, record.module
        self.calls = [call for call in _opened(record.calls) if call.error is None]
        self._makers, self._users, self._places, self._carried = {}, {}, {}, {}
        self.known = _known(record.module)
        for at, call in enumerate(self.calls):
            for kept in _kept(call.output):
                self._makers.setdefault(id(kept.tensor), []).append(at)
                self._places.setdefault(_place(kept.tensor), []).append(at)
            for kept in call.inputs:
                self._users.setdefault(id(kept.tensor), []).append(at)

    def maker(self, kept, before):
        """The index of the call that made (or last wrote) the tensor; None for what came in."""
        made = self._makers.get(id(kept.tensor))
        if made is None and id(kept.tensor) not in self.known and kept.tensor is not self.given:
            made = self._places.get(_place(kept.tensor))  # x.data: another object, the same numbers
        earlier = [at for at in made or () if at < before]
        return earlier[-1] if earlier else None

    def users(self, kept, after):
        """The indices of the later calls that read the tensor."""
        return [at for at in self._users.get(id(kept.tensor), ()) if at > after]

    def used(self, tensor):
        return id(tensor) in self._users

    def foreign(self, known):
        """(name, parameter) for each trainable leaf that runs in forward but is not in known."""
        found = {}
        for call in self.calls:
            for kept in call.inputs:
                tensor = kept.tensor
                if not (tensor.is_leaf and tensor.requires_grad and tensor.dim()):
                    continue
                if id(tensor) not in known and tensor is not self.given:
                    name = f"a weight of shape {tuple(tensor.shape)} in `{call.line}`"
                    found.setdefault(id(tensor), (name, tensor))
        return list(found.values())

    # --- walking back -----------------------------------------------------------------------

    def carried(self, at):
        """(the inputs whose numbers go on, their factor), or None where a call makes new ones."""
        if at not in self._carried:
            self._carried[at] = _carried(self.calls[at])
        return self._carried[at]

    def origin(self, kept, before):
        """The Origin of an operand of the call at index `before`."""
        origin, todo, seen = Origin([], 1.0), [(kept, before, 1.0)], set()
        while todo:
            kept, before, factor = todo.pop()
            at = self.maker(kept, before)
            if (id(kept.tensor), at) in seen:
                continue
            seen.add((id(kept.tensor), at))
            carried = None if at is None else self.carried(at)
            if carried is None:
                origin.sources.append((at, kept))
                origin.factor = factor
                continue
            inputs, step = carried
            if step != 1.0:
                others = [k for k in self.calls[at].inputs if k not in inputs]
                origin.learned |= any(k.tensor.requires_grad for k in others)
            todo += [(k, at, factor * step) for k in inputs]
        return origin

    def is_weight(self, kept, before):
        """Whether an operand is a weight: a tensor of the module, or trainable, in any layout."""
        sources = self.origin(kept, before).sources
        return bool(sources) and all(
            at is None and (id(k.tensor) in self.known or k.tensor.requires_grad)
            for at, k in sources
        )

    def is_projection(self, at):
        if at is None:
            return False
        if self.calls[at].name in PROJECTIONS:
            return True
        product = self.product(at)
        return product is not None and self._has_weight(product)

    def _has_weight(self, product):
        return any(self.is_weight(k, product.at) for k in (product.left, product.right))

    def pure(self, origin):
        """Whether the origin is a projection or the input, with nothing else in between."""
        return bool(origin.sources) and all(
            k.tensor is self.given if at is None else self.is_projection(at)
            for at, k in origin.sources
        )

    def behind(self, kept, before, stops=lambda at: False):
        """(calls, [tensors from outside]) behind an operand, back to those where it stops."""
        calls, outside, todo = set(), [], [(kept, before)]
        while todo:
            kept, before = todo.pop()
            at = self.maker(kept, before)
            if at is None:
                outside.append(kept.tensor)
            elif at not in calls:
                calls.add(at)
                todo += [] if stops(at) else [(k, at) for k in self.calls[at].inputs]
        return sorted(calls), outside

    def leaves(self, kept, before):
        """The ids of all tensors that came from outside and stand behind an operand."""
        return {id(tensor) for tensor in self.behind(kept, before)[1]}

    def _nearest(self, kept, before):
        ends = self.is_projection
        return self.behind(kept, before, lambda at: ends(at) or at in self.products)[0]

    def back(self, kept, before):
        """(calls between, products of two) behind an operand, up to and without projections."""
        calls = [at for at in self._nearest(kept, before) if not self.is_projection(at)]
        return (
            [at for at in calls if at not in self.products],
            [at for at in calls if at in self.products],
        )

    def projections(self, kept, before):
        """The indices of the nearest projections behind an operand, whatever stands between."""
        return [at for at in self._nearest(kept, before) if self.is_projection(at)]

    # --- walking forward --------------------------------------------------------------------

    def last_moved(self, kept, after):
        """The last tensor that follows from one by changes of layout alone, or None."""
        last = None
        while True:
            steps = (u for u in self.users(kept, after) if self._whole(u, kept))
            after = next(steps, None)
            if after is None:
                return last
            last = kept = outputs(self.calls[after])[0]

    def _whole(self, at, kept):
        """Whether a call moves all numbers of a tensor, beside those of others or alone."""
        carried = self.carried(at)
        if carried is None or carried[1] != 1.0 or len(outputs(self.calls[at])) != 1:
            return False
        return any(k.tensor is kept.tensor for k in carried[0])

    # --- products ---------------------------------------------------------------------------

    @property
    def products(self):
        """Index -> Product, for products of two computed tensors."""
        if not hasattr(self, "_products"):
            self._products = {}
            for at in range(len(self.calls)):
                product = self.product(at)
                if product is not None and not self._has_weight(product):
                    self._products[at] = product
        return self._products

    @property
    def attends(self):
        """Whether anything of attention is seen: a product of two computed tensors, a softmax."""
        names = {call.name for call in self.calls}
        return bool(self.products) or bool(names & {*SOFTMAX, EXP, KERNEL})

    def product(self, at):
        """The call as a Product, or None where it is none."""
        call = self.calls[at]
        try:
            if call.name == EINSUM:
                return _einsum(at, call)
            if call.name == SUM:
                return self._sum(at, call)
            if call.name in PRODUCTS:
                return _matmul(at, *call.inputs[-2:])
        except (ValueError, IndexError, TypeError):
            return None
        return None

    def _sum(self, at, call):
        """(q * k).sum(-1): a product written out."""
        made = self.maker(call.inputs[0], at)
        if made is None or self.calls[made].name not in TIMES:
            return None
        left, right = self.calls[made].inputs
        total = call.inputs[0].value
        dim = call.kwargs.get("dim", call.args[1] if len(call.args) > 1 else None)
        if not isinstance(dim, int) or call.kwargs.get("keepdim"):
            return None
        if left.value.dim() != total.dim() or right.value.dim() != total.dim():
            return None
        letters = "abcdefgh"[: total.dim()]
        sides = [_squeezed(k.value, total.shape, letters) for k in (left, right)]
        if sides[0][1] == sides[1][1]:
            return None  # same axes on both sides: no product of all pairs
        out = letters.replace(letters[dim], "")
        return Product(
            made, left, right, (sides[0][1], sides[1][1], out), (sides[0][0], sides[1][0])
        )


def _known(module):
    """The ids of all tensors that belong to a module."""
    plain = [thing for _, thing in reachable(module) if isinstance(thing, torch.Tensor)]
    return {id(t) for t in [*module.parameters(), *module.buffers(), *plain]}


def _place(tensor):
    try:
        return tensor.data_ptr(), tensor.shape, tensor.stride()
    except RuntimeError:
        return None


def _squeezed(value, shape, letters):
    kept = [i for i in range(len(shape)) if value.shape[i] == shape[i]]
    value = value.reshape([value.shape[i] for i in kept])
    return value, "".join(letters[i] for i in kept)


def _opened(calls):
    """The calls, with nn.MultiheadAttention's one call replaced by those inside it.

    Operations in place go by the name of those that are not: masked_fill_ is masked_fill.
    """
    for call in calls:
        if call.name == WHOLE_LAYER and call.inner:
            yield from _opened(call.inner)
        else:
            yield replace(call, name=call.name.rstrip("_")) if call.name.endswith("_") else call


def _kept(value):
    if isinstance(value, Kept):
        return [value]
    if isinstance(value, list | tuple):
        return [kept for item in value for kept in _kept(item)]
    return []


def outputs(call):
    """The tensors that a call gave."""
    return _kept(call.output)


def _matmul(at, left, right):
    n, m = left.value.dim(), right.value.dim()
    if min(n, m) < 2:
        return None
    batch = "stuvwxyz"[: max(n, m) - 2]
    letters = (batch[len(batch) - n + 2 :] + "ic", batch[len(batch) - m + 2 :] + "cj")
    return Product(at, left, right, (*letters, batch + "ij"), (left.value, right.value))


def _einsum(at, call):
    if len(call.inputs) != 2 or not isinstance(call.args[0], str):
        return None
    equation = call.args[0].replace(" ", "")
    left, right = call.inputs
    terms, _, out = equation.partition("->")
    first, second = terms.split(",")
    dots = (
        max(
            k.value.dim() - len(term.replace("...", ""))
            for k, term in ((left, first), (right, second))
            if "..." in term
        )
        if "..." in terms
        else 0
    )
    names = "".join(c for c in "ABCDEFGHIJKLMNOP" if c not in equation)[:dots]

    def spelled(term, kept):
        missing = kept.value.dim() - len(term.replace("...", "")) if kept else dots
        return term.replace("...", names[dots - missing :] if missing else "")

    first, second = spelled(first, left), spelled(second, right)
    if "->" in equation:
        out = spelled(out, None)
    else:
        both = first + second
        out = names + "".join(sorted(c for c in set(both) - set(names) if both.count(c) == 1))
    return Product(at, left, right, (first, second, out), (left.value, right.value))


def _carried(call):
    """(the inputs whose numbers a call carries on, their factor), or None where it makes new ones.

    A call whose every output number stands among its inputs only moved numbers; one that makes
    each number of an input larger by the same factor scaled it.
    """
    numbers = [k for k in call.inputs if _decimal(k.value) and k.value.numel()]
    made = [k.value for k in outputs(call) if _decimal(k.value) and k.value.numel()]
    if not numbers or not made:
        return None
    if call.name == WRITTEN:
        first, last = numbers[0], numbers[-1]
        return ([last] if first is last or _constant(first.value) else [last, first]), 1.0
    if call.relation in ("view", "same object"):
        return [numbers[0]], 1.0
    sources = [k for k in numbers if not _constant(k.value)] or numbers[:1]
    if len(numbers) > 1 and made[0].numel() != sum(k.value.numel() for k in numbers):
        sources = sources[:1] if len(sources) == 1 else []  # no join
    if sources and all(_found(one, [k.value for k in sources]) for one in made):
        return sources, 1.0
    main = max(numbers, key=lambda k: k.value.numel())
    factor = _fixed_factor(main, [k for k in numbers if k is not main], made[0])
    return None if factor is None else ([main], factor)


def _decimal(value):
    return value.is_floating_point() or value.is_complex()


def _constant(value):
    return bool((value == value.flatten()[0]).all())


def _found(made, sources):
    """Whether all numbers, or a sample of many, stand among those of the sources."""
    real = [torch.view_as_real(v) if v.is_complex() else v for v in (made, *sources)]
    made, *sources = (value.flatten() for value in real)
    if len(sources) == 1 and made.dtype != sources[0].dtype:
        return made.shape == sources[0].shape and torch.allclose(
            made.double(), sources[0].double(), rtol=1e-2
        )
    step = max(len(made) // SAMPLE, 1)
    every = torch.cat([value.double() for value in sources])
    return bool(torch.isin(made[::step].double(), every).all())


def _fixed_factor(main, others, made):
    """By how much a call makes its main tensor larger, where that is one number; or None."""
    if any(k.value.numel() != 1 for k in others) or main.value.is_complex() or made.is_complex():
        return None
    before, after = main.value.flatten().double(), made.flatten().double()
    if main.value.shape != made.shape or not before.isfinite().equal(after.isfinite()):
        return None
    before, after = before[before.isfinite()], after[after.isfinite()]
    if not before.any() or not after.any():
        return None
    factor = (before @ after) / (before @ before)
    close = torch.allclose(after, factor * before, rtol=1e-4, atol=1e-6 * after.abs().max().item())
    return factor.item() if close else None
