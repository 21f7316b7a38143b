"""The layers: which of them act, learn, and belong to the module."""

import contextlib
import re

import torch
from torch import nn

from .calling import is_mask
from .effect import all_slopes, largest, parent, reported, result_lost, without_effect
from .guard import reachable
from .report import Finding, listed
from .roles import is_matrix, letter_of


def unused_layer(s):
    """A layer that forward never reaches, or whose result it throws away."""
    unused = []
    train = None
    made = dict(s.original.named_parameters())
    for name, weight in s.weights.items():
        owner = parent(name) or name
        if "not-repeatable" in s.found and name not in made:
            continue  # forward made the layer
        if (name.endswith("bias") and f"{name[:-4]}weight" in s.weights) or owner in s.named:
            continue
        if s.flow.used(weight) and (not result_lost(s, name) or "attention-unused" in s.found):
            continue
        if "heads-alike" in s.found and letter_of(owner):
            continue  # a head in whose place another stands
        if "no-effect" in s.found and s.flow.used(weight) and without_effect(s, parent(owner)):
            continue  # told with all that stands beside it
        if s.moves(weight) or ((gradient := s.slopes.get(name)) is not None and gradient.any()):
            continue
        if _chosen_by_input(s, name):
            continue
        train = train or s.capture(s.x, train=True)
        if s.flow.used(weight) or not train.used(weight):
            unused.append(owner)
    unused = list(dict.fromkeys(name for name in unused if not reported(s, name)))
    unused = [owner for owner in unused if not _elsewhere(s, owner)] if unused else []
    if not unused:
        return None
    unused = _joined(s, unused)
    if s.absent(listed(unused)):
        return None
    verb, it = ("is", "it") if len(unused) == 1 else ("are", "them")
    return Finding(
        "unused-layer",
        f"{listed(unused)} {verb} never called, or the result is thrown away: the output does "
        f"not depend on {it}. Use {it} in forward, or remove {it}.",
    )


def _chosen_by_input(s, name):
    """Whether a weight stands in a list from which each input chooses others, as experts do."""
    numbered = re.compile(re.sub(r"\\\.\d+\b", r"\\.\\d+", re.escape(name)))
    like = [n for n in s.weights if numbered.fullmatch(n)]
    first, second = ({n for n in like if flow.used(s.weights[n])} for flow in s.flows)
    return first != second


def _joined(s, unused):
    """The layers, with the module in place of all its layers where none of them is used."""
    owners = {parent(name) or name for name in s.weights}
    return largest(
        unused, lambda o: all(i in unused for i in owners if f"{i}.".startswith(f"{o}."))
    )


def _elsewhere(s, owner):
    """Whether a layer has an effect on something else that forward returns or keeps."""
    for train in (False, True):
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):
            slopes = all_slopes(s, s.x, train)
            names = [n for n in slopes if n == owner or n.startswith(f"{owner}.")]
            if any(slopes[name] is not None and slopes[name].any() for name in names):
                return True
    return False


def detached(s):
    """The output depends on a weight, and no gradient reaches it."""
    if s.backward_error is not None:
        s.tell("gradients not judged, because backward fails")
        return None
    cut = []
    for name, weight in s.weights.items():
        if not is_matrix(weight) or not weight.requires_grad or is_mask(weight):
            continue
        gradient = s.slopes.get(name)
        if gradient is None or not gradient.any():
            if s.moves(weight):
                cut.append(name)
            continue
        for rows, label in _dead_rows(name, weight, gradient):
            if s.moves_a_little(weight, rows):
                cut.append(label)
    if not cut:
        return None
    if len(cut) == len([w for w in s.weights.values() if is_matrix(w)]):
        what, text = "weights are", "No gradient reaches any weight"
    else:
        one = len(cut) == 1 and not cut[0].startswith(("rows ", "columns "))
        them = "it" if one else "them"
        what = "weight is" if one else "weights are"
        text = f"The output depends on {listed(cut)}, but no gradient reaches {them}"
    return Finding(
        "detached",
        f"{text}: .detach(), .data, torch.no_grad() or .item() cuts the graph in forward, so "
        f"the {what} never trained. Remove it there.",
    )


def _dead_rows(name, weight, gradient):
    """Rows (or columns) of a fused weight whose gradient is zero, with a label."""
    if weight.dim() != 2:
        return
    for axis in (0, 1):
        dead = gradient.abs().amax(dim=1 - axis) == 0
        if dead.sum() > 0 and dead.sum() >= len(dead) // 4:
            numbers = dead.nonzero().flatten().tolist()
            rows = dead[:, None] if axis == 0 else dead[None, :]
            word = "rows" if axis == 0 else "columns"
            yield rows, f"{word} {numbers[0]} to {numbers[-1]} of {name}"


def not_registered(s):
    """Weights that forward uses and `parameters()` does not give."""
    owned = {id(p) for p in s.module.parameters()} | {id(b) for b in s.module.buffers()}
    used = {
        id(k.tensor): (k.tensor, call)
        for flow in s.flows
        for call in flow.calls
        for k in call.inputs
        if k.tensor.is_leaf
    }
    lists, plain = [], []
    for path, thing in reachable(s.module):
        if isinstance(thing, nn.Module):
            if any(id(p) in used and id(p) not in owned for p in thing.parameters()):
                lists.append(path)
        elif id(thing) in used and id(thing) not in owned and _as_weight(s, thing):
            plain.append(path)
    if lists:
        top = list(dict.fromkeys(re.split(r"[\[.]", path)[0] or path for path in lists))
        name = listed([f"self.{path}" for path in top])
        return Finding(
            "not-registered",
            f"{name} holds layers in a plain list, dict or object: parameters() does not give "
            f"them, so the optimiser never sees these weights and to(device) does not move "
            f"them. Use nn.ModuleList or nn.ModuleDict.",
        )
    plain = [path for path in plain if not path.startswith(tuple(f"{p}." for p in lists))]
    if plain:
        return Finding(
            "not-registered",
            f"{listed([f'self.{path}' for path in plain])}: a weight in a plain tensor, which "
            f"parameters() does not give. Wrap it as nn.Parameter(...), an attribute of its own.",
        )
    return _foreign(s, owned)


def _as_weight(s, tensor):
    """Whether a plain tensor stands in a product with the input, or is trainable."""
    if tensor.requires_grad:
        return True
    if tensor.dim() < 2 or not tensor.is_floating_point() or is_mask(tensor):
        return False
    for at, call in enumerate(s.flow.calls):
        if call.name == "linear" and call.inputs[1].tensor is tensor:
            return True
        product = s.flow.product(at)
        if product is None:
            continue
        for kept in (product.left, product.right):
            sources = s.flow.origin(kept, product.at).sources
            if any(k.tensor is tensor for _, k in sources):
                return True
    return False


def _foreign(s, owned):
    """Weights of somebody else: a layer of the notebook in place of self's."""
    known = owned | {id(w) for w in s.weights.values() if w is None}
    mine = {id(p) for p in s.original.parameters()}
    first, second = (dict((id(t), n) for n, t in f.foreign(known)) for f in s.flows)
    both = [name for key, name in first.items() if key in second and key not in mine]
    if not both:
        return None
    return Finding(
        "not-registered",
        f"forward uses {listed(both)}, which this module does not own: a layer of the notebook "
        f"in place of self's? Its weights are not in parameters(). Create it in __init__ and "
        f"write self. before it.",
    )


def _hides(s, name, weight):
    """Whether a triangle hides pairs: no gradient reaches it, or what it adds hides them."""
    gradient = s.slopes.get(name)
    far = weight.detach().min().item() < -100
    return s.flow.used(weight) and (far or gradient is None or not gradient.any())


def not_a_buffer(s):
    """The mask is a plain attribute that forward uses, or a parameter."""
    for name, weight in s.weights.items():
        if weight.requires_grad and is_mask(weight) and _hides(s, name, weight):
            size, last = weight.shape[-1], name.split(".")[-1]
            return Finding(
                "not-a-buffer",
                f"self.{name}, the ({size}, {size}) mask, is a trainable nn.Parameter: a mask is "
                f"no weight, and an optimiser would change it. Write "
                f"self.register_buffer('{last}', mask, persistent=False).",
            )
    things = list(zip(reachable(s.pristine), reachable(s.original), strict=False))
    parts = [thing for (_, thing), _ in things if isinstance(thing, nn.Module)]
    buffers = {id(buffer) for part in parts for buffer in part.buffers()}
    for (path, thing), (_, original) in things:
        if id(thing) in buffers:
            continue  # its module is in a plain list, and is reported as such
        if not isinstance(thing, torch.Tensor) or thing.requires_grad:
            continue
        if not isinstance(original, torch.Tensor) or not is_mask(thing):
            continue
        copied = dict(reachable(s.flow.module)).get(path)
        if isinstance(copied, torch.Tensor) and s.flow.used(copied):
            size = thing.shape[-1]
            return Finding(
                "not-a-buffer",
                f"self.{path}, the ({size}, {size}) mask, is a plain attribute: to(device) does "
                f"not move it and state_dict() does not know it. Write "
                f"self.register_buffer('{path.split('.')[-1]}', mask, persistent=False).",
            )
    return None
