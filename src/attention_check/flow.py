"""The way of the numbers through a captured run: where scores, weights and values come from."""

from dataclasses import dataclass

import torch

from .guard import reachable

LAYOUT = set(
    "view reshape transpose permute contiguous flatten unflatten squeeze unsqueeze movedim "
    "moveaxis swapaxes swapdims mT T mH H expand expand_as clone chunk split unbind index narrow "
    "select tensor_split view_as reshape_as to float type_as repeat_interleave repeat dropout "
    "split_with_sizes unsafe_chunk detach alias broadcast_to tile t cat stack concat concatenate "
    "hstack requires_grad_ as_strided unfold swapaxes_ transpose_ squeeze_ unsqueeze_ "
    "index_select vsplit hsplit dsplit data".split()
)
SCALING = {"mul", "div", "mul_", "div_", "multiply", "divide", "true_divide"}
JOINING = {"cat", "stack", "concat", "concatenate", "hstack"}
_PROJECTIONS = {"linear", "addmm", "conv1d", "conv2d", "bilinear", "embedding", "baddbmm"}
SOFT = ("softmax", "_softmax", "log_softmax")


class Kept:
    """A tensor that was seen: the object itself, and its numbers at that moment."""

    __slots__ = ("tensor", "value")

    def __init__(self, tensor):
        self.tensor = tensor
        fixed = tensor.is_leaf and tensor.requires_grad
        self.value = tensor.detach() if fixed else tensor.detach().clone()


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


class Flow:
    """The calls of one run in order, with the maker of each tensor."""

    def __init__(self, calls, given, sizes, module):
        self.given, self.sizes, self.module = given, sizes, module
        self.calls = [call for call in _opened(calls) if call.error is None]
        self._makers, self._users, self._places = {}, {}, {}
        self.known = _known(module)
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

    def origin(self, kept, before):
        """The Origin of an operand of the call at index `before`."""
        origin, todo, seen = Origin([], 1.0), [(kept, before, 1.0)], set()
        while todo:
            kept, before, factor = todo.pop()
            at = self.maker(kept, before)
            if (id(kept.tensor), at) in seen:
                continue
            seen.add((id(kept.tensor), at))
            call = None if at is None else self.calls[at]
            if call is None or not call.inputs:
                origin.sources.append((at, kept))
                origin.factor = factor
            elif call.name in JOINING:
                todo += [(k, at, factor) for k in call.inputs]
            elif call.name in LAYOUT:
                todo.append((call.inputs[0], at, factor))
            elif call.name == "assign":
                todo.append((call.inputs[-1], at, factor))
                if self._written_before(call.inputs[0], at):
                    todo.append((call.inputs[0], at, factor))
            elif call.name in SCALING and (step := _fixed_factor(call)):
                origin.learned |= any(k.tensor.requires_grad for k in call.inputs[1:])
                main = max(call.inputs, key=lambda k: k.value.numel())
                todo.append((main, at, factor * step))
            else:
                origin.sources.append((at, kept))
                origin.factor = factor
        return origin

    def _written_before(self, kept, at):
        maker = self.maker(kept, at)
        return maker is not None and self.calls[maker].name == "assign"

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
        call = self.calls[at]
        if call.name in _PROJECTIONS - {"baddbmm"}:
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

    def leaves(self, kept, before):
        """The ids of all tensors that came from outside and stand behind an operand."""
        found, todo, done = set(), [(kept, before)], set()
        while todo:
            kept, before = todo.pop()
            at = self.maker(kept, before)
            if at is None:
                found.add(id(kept.tensor))
            elif at not in done:
                done.add(at)
                todo += [(k, at) for k in self.calls[at].inputs]
        return found

    def back(self, kept, before):
        """All calls behind an operand, up to and without projections, and the products there."""
        between, _, products = self._behind(kept, before)
        return between, products

    def projections(self, kept, before):
        """The indices of the nearest projections behind an operand, whatever stands between."""
        return self._behind(kept, before)[1]

    def _behind(self, kept, before):
        """(calls between, projections, products of two) behind an operand, in order."""
        between, projections, products = set(), set(), set()
        todo = [(kept, before)]
        while todo:
            kept, before = todo.pop()
            at = self.maker(kept, before)
            if at is None or at in between | projections | products:
                continue
            if self.is_projection(at):
                projections.add(at)
            elif at in self.products:
                products.add(at)
            else:
                between.add(at)
                todo += [(k, at) for k in self.calls[at].inputs]
        return sorted(between), sorted(projections), sorted(products)

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
        return bool(self.products) or bool(names & {*SOFT, "exp", "scaled_dot_product_attention"})

    def product(self, at):
        """The call as a Product, or None where it is none."""
        call = self.calls[at]
        try:
            if call.name in ("matmul", "bmm", "mm"):
                return _matmul(at, *call.inputs[:2])
            if call.name == "baddbmm":
                return _matmul(at, *call.inputs[1:3])
            if call.name == "einsum":
                return _einsum(at, call)
            if call.name == "sum":
                return self._sum(at, call)
        except (ValueError, IndexError, TypeError):
            return None
        return None

    def _sum(self, at, call):
        """(q * k).sum(-1): a product written out."""
        made = self.maker(call.inputs[0], at)
        if made is None or self.calls[made].name not in ("mul", "multiply"):
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
    """The calls, with nn.MultiheadAttention's one call replaced by those inside it."""
    for call in calls:
        if call.name == "multi_head_attention_forward" and call.inner:
            yield from _opened(call.inner)
        else:
            yield call


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


def _fixed_factor(call):
    """By how much mul or div makes its main tensor larger, where that is one number."""
    main = max(call.inputs, key=lambda k: k.value.numel())
    others = [k for k in call.inputs if k is not main]
    if any(k.value.numel() != 1 for k in others) or not outputs(call):
        return None
    before, after = main.value.flatten().double(), outputs(call)[0].value.flatten().double()
    if before.shape != after.shape or before.abs().max() == 0:
        return None
    factor = (before @ after) / (before @ before)
    close = torch.allclose(after, factor * before, rtol=1e-4, atol=1e-6 * after.abs().max().item())
    return factor.item() if close and factor != 0 else None
