"""The layers: which of them act, learn, and belong to the module."""

import contextlib
import re
from dataclasses import replace

import torch
from torch import nn

from .. import acting
from ..acting import WHOLE, parent, within, zero_part
from ..facts import fact
from ..findings import Finding, Unjudged
from ..graph import TO_A_DEVICE
from ..guard import reachable
from ..search.sizes import is_mask
from ..trust import never_given
from ..words import listed
from .effect import alike, largest
from .registry import rule
from .roles import told_idle

# --- layers that forward does not use -------------------------------------------------------


@rule("unused-layer", whole=True)
def unused_layer(s):
    """forward never reaches a layer, or throws its result away.

    return context  # and out_proj(context) was meant
    """
    unused = list(dict.fromkeys(_owner(name) for name in s.weights if _unused(s, name)))
    if not unused:
        return None
    owners = {_owner(name) for name in s.weights}  # a module stands for all its layers
    unused = largest(unused, lambda o: all(i in unused for i in owners if within(i, o)))
    if without := never_given(s):
        return replace(without, of=listed(unused))
    verb, it = ("is", "it") if len(unused) == 1 else ("are", "them")
    return Finding(
        f"{listed(unused)} {verb} never called, or the result is thrown away: the output does "
        f"not depend on {it}. Use {it} in forward, or remove {it}.",
    )


def _owner(name):
    """The layer that a weight belongs to; a parameter that stands alone is its own."""
    layer, _, last = name.rpartition(".")
    return layer if layer and last in ("weight", "bias") else name


def _unused(s, name):
    """Whether a weight's layer has no effect, and that is told by no other rule."""
    owner, used = _owner(name), s.graph.used(s.weights[name])
    if s.random == "layer" and name not in dict(s.original.named_parameters()):
        return False  # forward made the layer
    if used and (
        not (acting.result_lost(s, name) or _unreached(s, name))
        or acting.all_dead(s)
        or acting.without_effect(s, parent(owner))
    ):
        return False  # it has an effect, or stands beside what is told to have none
    if told_idle(s, owner) or (alike(s) and acting.letter_of(owner)):
        return False  # or is a head in whose place another stands
    if any(within(reached, owner) for reached in _reached(s)) or _chosen_by_input(s, name):
        return False
    return not any(s.has_effect(other) for other in s.weights if _owner(other) == owner)


def _unreached(s, name):
    """Whether no gradient can reach a weight from the output: what it made goes nowhere."""
    unreached = s.slopes.get(name) is None and s.backward_error is None
    weight = s.weights[name]
    return unreached and weight.requires_grad and acting.is_matrix(weight)


@fact
def _reached(s):
    """The names of the weights on which something that forward returns or keeps depends."""
    found = set()
    for module in (s.pristine, s.training):
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):
            slopes = acting.all_slopes(s, s.x, module)
            found |= {name for name, slope in slopes.items() if slope is not None and slope.any()}
    return found


def _chosen_by_input(s, name):
    """Whether a weight stands in a list from which each input chooses others, as experts do."""
    numbered = re.compile(re.sub(r"\\\.\d+\b", r"\\.\\d+", re.escape(name)))
    like = [n for n in s.weights if numbered.fullmatch(n)]
    first, second = ({n for n in like if graph.used(s.weights[n])} for graph in s.graphs)
    return first != second


@rule("layers-alike", unless={"heads-alike"}, whole=True)
def layers_alike(s):
    """One and the same layer stands several times in a list, so that all share their weights.

    self.layers = nn.ModuleList([Layer(d_model, num_heads)] * depth)
    """
    for path, part in s.original.named_modules():
        listed_in = part if isinstance(part, nn.ModuleList | nn.Sequential) else ()
        layers = [layer for layer in listed_in if next(layer.parameters(), None) is not None]
        if len({id(layer) for layer in layers}) < len(layers):
            return Finding(
                f"{path or 'It'} holds {len({id(layer) for layer in layers})} layer for "
                f"{len(layers)} places: as in [Layer(...)] * depth, it is one and the same, and "
                f"what one place learns stands in all. Make each anew: "
                f"nn.ModuleList([Layer(...) for _ in range(depth)])."
            )
    return None


# --- weights that do not learn --------------------------------------------------------------


@rule("detached")
def detached(s):
    """The output depends on a weight, and no gradient reaches it.

    keys = self.W_key(x).detach()
    """
    if s.backward_error is not None:
        return Unjudged("backward fails")
    matrices = {name: weight for name, weight in s.weights.items() if acting.is_matrix(weight)}
    cut = [label for name, weight in matrices.items() if (label := _cut(s, name, weight))]
    if not cut:
        return None
    one = len(cut) == 1 and not cut[0].startswith(("rows ", "columns "))
    what, text = ("weight is", "it") if one else ("weights are", "them")
    text = f"The output depends on {listed(cut)}, but no gradient reaches {text}"
    if len(cut) == len(matrices):
        what, text = "weights are", "No gradient reaches any weight"
    return Finding(
        f"{text}: .detach(), .data, torch.no_grad() or .item() cuts the graph in forward, so "
        f"the {what} never trained. Remove it there.",
    )


def _cut(s, name, weight):
    """What of a weight acts and gets no gradient: its name, some rows or columns, or ""."""
    if not weight.requires_grad or is_mask(weight):
        return ""
    part = zero_part(s.slopes.get(name))
    if part is WHOLE:
        return name if s.acts(weight) else ""
    if part is None or weight.dim() != 2:
        return ""
    acts = _acts_both_ways(s, weight, acting.places_of(weight, part))
    return acting.in_words(name, part) if acts else ""


def _acts_both_ways(s, weight, places):
    """Whether the output moves as soon as parts of a weight grow, and as they shrink.

    The rows of a unit that a ReLU has switched off have no gradient, rightly: it stays off.
    """
    weights = weight.detach()
    changed = (torch.where(places, factor * weights, weights) for factor in (1.01, 0.99))
    return all(s.moves(weight, values) for values in changed)


# --- weights and masks that are not the module's --------------------------------------------


@rule("not-registered", whole=True)
def not_registered(s):
    """forward uses weights that parameters() does not give.

    self.heads = [Head(d_model, head_dim) for _ in range(num_heads)]
    """
    owned = {id(thing) for thing in [*s.module.parameters(), *s.module.buffers()]}
    lists, plain = _in_plain_sight(s, owned)
    if lists:
        top = dict.fromkeys(re.split(r"[\[.]", path)[0] or path for path in lists)
        text = (
            f"{listed([f'self.{path}' for path in top])} holds layers in a plain list, dict or "
            f"object: parameters() does not give them, so the optimiser never sees these weights "
            f"and to(device) does not move them. Use nn.ModuleList or nn.ModuleDict."
        )
    elif plain:
        text = (
            f"{listed([f'self.{path}' for path in plain])}: a weight in a plain tensor, which "
            f"parameters() does not give. Wrap it as nn.Parameter(...), an attribute of its own."
        )
    elif foreign := _foreign(s, owned):
        text = (
            f"forward uses {listed(foreign)}, which this module does not own: a layer of the "
            f"notebook in place of self's? Its weights are not in parameters(). Create it in "
            f"__init__ and write self. before it."
        )
    else:
        return None
    return Finding(text)


def _in_plain_sight(s, owned):
    """The paths of modules, and of weights beside them, that stand in plain attributes."""
    read = [kept.tensor for graph in s.graphs for call in graph.calls for kept in call.inputs]
    strange = {id(tensor) for tensor in read if tensor.is_leaf} - owned
    lists, plain = [], []
    for path, thing in reachable(s.module):
        if isinstance(thing, nn.Module):
            lists += [path] * any(id(p) in strange for p in thing.parameters())
        elif id(thing) in strange and _as_weight(s, thing):
            plain.append(path)
    return lists, [path for path in plain if not any(within(path, held) for held in lists)]


def _as_weight(s, tensor):
    """Whether a plain tensor is trainable, or a computed tensor is multiplied by it."""
    if tensor.requires_grad:
        return True
    if tensor.dim() < 2 or not tensor.is_floating_point() or is_mask(tensor) or _turns(tensor):
        return False
    for at in s.graph.projections:
        sources = (s.graph.origin(kept, at).sources for kept in s.graph.calls[at].inputs)
        if any(kept.tensor is tensor for found in sources for _, kept in found):
            return True
    return False


def _turns(tensor):
    """Whether square matrices only turn what they multiply, as no weight does at random."""
    if tensor.shape[-2] != tensor.shape[-1]:
        return False
    product = tensor @ tensor.mT
    return torch.allclose(product, torch.eye(len(product[-1])).to(product), atol=1e-4)


def _foreign(s, owned):
    """Weights of somebody else, in words, that both runs use."""
    owned = owned | {id(p) for p in s.original.parameters()}
    first, second = (graph.foreign(owned) for graph in s.graphs)
    return [name for key, name in first.items() if key in second]


@rule("not-a-buffer", whole=True)
def not_a_buffer(s):
    """A mask, or another constant table, is a plain attribute that forward uses, or a parameter.

    self.mask = torch.ones(context_length, context_length).triu(1).bool()
    """
    trained = [
        (name, weight)
        for name, weight in s.weights.items()
        if weight.requires_grad and is_mask(weight) and _hides(s, name, weight)
    ]
    tables = trained or _plain_tables(s)
    if not tables:
        return None
    what = "is a plain attribute: to(device) does not move it and state_dict() does not know it."
    if trained:
        what = "is a trainable nn.Parameter: a mask is no weight, and an optimiser would change it."
    path, table = tables[0]
    shape, name = tuple(table.shape), path.split(".")[-1]
    kind = "mask" if is_mask(table) else "table of constants"
    return Finding(
        f"self.{path}, the {shape} {kind}, {what} Write "
        f"self.register_buffer('{name}', {kind.partition(' ')[0]}, persistent=False).",
    )


def _hides(s, name, weight):
    """Whether a triangle hides pairs: no gradient reaches it, or what it adds hides them."""
    far = weight.detach().min().item() < -100
    return s.graph.used(weight) and (far or zero_part(s.slopes.get(name)) is WHOLE)


def _brought(s, table):
    """Whether each call brings the table, or a part of it, to the device where it is needed."""
    moves = [call for call in s.graph.calls if call.name in TO_A_DEVICE]
    read = (kept.tensor for call in moves for kept in call.inputs)
    place = table.untyped_storage().data_ptr()
    return any(tensor.untyped_storage().data_ptr() == place for tensor in read)


def _plain_tables(s):
    """(path, tensor) of the plain attributes that were there from the start and are read."""
    first, things = dict(reachable(s.original)), dict(reachable(s.graph.module))
    parts = [thing for thing in things.values() if isinstance(thing, nn.Module)]
    buffers = {id(buffer) for part in parts for buffer in part.buffers()}  # told with their list
    plain = [
        (path, thing)
        for path, thing in things.items()
        if isinstance(thing, torch.Tensor) and isinstance(first.get(path), torch.Tensor)
    ]
    plain = [(path, t) for path, t in plain if not t.requires_grad and id(t) not in buffers]
    plain = [(path, t) for path, t in plain if t.numel() > 1 and s.graph.used(t)]
    plain = [(path, t) for path, t in plain if not (_as_weight(s, t) or _brought(s, t))]
    return sorted(plain, key=lambda named: not is_mask(named[1]))
