"""Which weights act: those that make queries, keys and values, and the parts without effect."""

import contextlib
import re
from itertools import groupby

import torch

from .facts import fact, gradients
from .graph import outputs
from .guard import copy_module, reachable
from .search.prepare import weights_of
from .search.ways import flat
from .words import listed

WHOLE = "whole"  # of a weight; a part of it is (axis, places)

_LETTER = re.compile(
    r"^(?:w|to|lin|linear|proj|fc|layer|trainable|in)?_?(queries|query|q|keys|key|k|values|value|"
    r"val|v)(?:_?(?:proj|projection|w|weight|linear|lin|layer|net|map|s|fc|transform|heads?|"
    r"matrix))?\d*$"
)


def letter_of(path):
    """ "q", "k" or "v" by the layer's name, or None."""
    for part in reversed(path.split(".")):
        name = re.sub(r"\[.*\]", "", part).lower()
        if match := _LETTER.match(name):
            return match[1][0]
    return None


def is_matrix(weight):
    return weight.dim() >= 2 and weight.is_floating_point()


def layer_of(name):
    return name.removesuffix(".weight")


def parent(path):
    return path.rpartition(".")[0]


def within(path, owner):
    """Whether a path is that of a module, or of what stands in it; "" holds all."""
    return not owner or f"{path}.".startswith(f"{owner}.")


# --- parts of a weight ----------------------------------------------------------------------


def zero_part(gradient):
    """WHOLE, or (axis, places) where the gradient is exactly 0; None where it is nowhere."""
    if gradient is None:
        return WHOLE
    if gradient.is_sparse or gradient.all():
        return None
    if not gradient.any():
        return WHOLE
    for axis in range(gradient.dim()):
        live = gradient.movedim(axis, 0).reshape(gradient.shape[axis], -1).any(dim=1)
        if not live.all():
            return axis, (~live).nonzero().flatten().tolist()
    return None


def places_of(weight, part):
    """A part as a Boolean tensor of the weight's shape; None for the whole."""
    if part is WHOLE:
        return None
    axis, places = part
    chosen = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
    chosen.movedim(axis, 0)[places] = True
    return chosen


def in_words(name, part):
    """A part of a weight in words: rows 0 to 5 of W_key.weight."""
    axis, places = part
    return f"{('rows', 'columns')[axis]} {ranges(places)} of {name}"


def ranges(places):
    """Whole numbers in words: 0 to 5 and 12."""
    runs = groupby(enumerate(places), lambda pair: pair[1] - pair[0])
    runs = [[place for _, place in run] for _, run in runs]
    return listed([f"{run[0]} to {run[-1]}" if len(run) > 1 else run[0] for run in runs])


# --- without effect -------------------------------------------------------------------------


@fact
def projections(s):
    """The trainable matrices that make the queries, keys and values, by name: "q", "k", "v"."""
    names = {id(w): name for name, w in s.weights.items() if is_matrix(w) and w.requires_grad}
    found = {}
    for core in s.cores:
        for letter, _, _, operand in core.roles:
            for at in s.graph.back(*operand)[2]:
                read = [s.graph.origin(kept, at) for kept in s.graph.calls[at].inputs]
                for made, kept in (source for origin in read for source in origin.sources):
                    if made is None and id(kept.tensor) in names:
                        found.setdefault(names[id(kept.tensor)], set()).add(letter)
    return found


@fact
def dead(s):
    """{name: WHOLE or (axis, places)}: projections, or parts, without effect on the output.

    Their gradient is exactly 0 for several inputs and lengths, of the same parts each time, and
    drawing them anew changes nothing. What an input chooses (experts, a ReLU that is off) or a
    length (tables of positions) has no effect for one, and not for all.
    """
    if s.sizes.tokens < 2 or s.fresh or s.random or s.backward_error is not None:
        return {}
    parts = {name: zero_part(s.slopes.get(name)) for name in projections(s)}
    if not any(parts.values()):
        return {}
    for slopes in _other_slopes(s):
        if any(zero_part(slopes.get(name)) != part for name, part in parts.items()):
            return {}
    parts = {n: part for n, part in parts.items() if part and not _by_mask(s, projections(s)[n])}
    places = {name: places_of(s.weights[name], part) for name, part in parts.items()}
    places = {name: rows for name, rows in places.items() if not s.has_effect(name, rows)}
    return {} if _switched_off(s, places) else {name: parts[name] for name in places}


def _by_mask(s, letters):
    """Whether a head's weights are the same for any input, so that queries and keys, or all
    that it sees, have no effect by design: a head that sees itself alone, or nothing."""
    for first, second in zip(*s.both_cores, strict=False):
        a, b = first.weights, second.weights
        if a.shape != b.shape or a.dim() < 2:
            continue
        a, b = (weights.reshape(-1, *weights.shape[-2:]) for weights in (a, b))
        fixed = (a - b).abs().amax(dim=(1, 2)) < 1e-7
        if (fixed & (a.abs().amax(dim=(1, 2)) == 0)).any() or (fixed.any() and letters & {*"qk"}):
            return True
    return False


def _switched_off(s, places):
    """Whether gates, learned or kept as 0 and 1 by head, switch the parts off, and could on."""
    for sign in (1, -1, 0) if places else ():
        module = copy_module(s.pristine)
        generator = torch.Generator().manual_seed(8 + sign)
        for gate in weights_of(module).values():
            if gate.dim() < 2 and gate.is_floating_point():
                drawn = 3 * torch.randn(gate.shape, generator=generator)
                gate.data.copy_(sign * drawn.abs() if sign else drawn)
        for buffer in module.buffers():
            if buffer.numel() == s.sizes.num_heads and ((buffer == 0) | (buffer == 1)).all():
                buffer.fill_(1)
        with contextlib.suppress(Exception):
            slopes = all_slopes(s, s.x, module)
            for name, rows in places.items():
                gradient = slopes.get(name)
                if gradient is not None and (gradient if rows is None else gradient[rows]).any():
                    return True
    return False


def _other_slopes(s):
    """The gradients for other inputs and lengths, of all that forward returns."""
    tokens = [n for n in (8, 7, 6) if n != s.sizes.tokens and n <= (s.sizes.context or n)]
    lengths = [None] if s.masks or not tokens else [None, tokens[0]]
    for seed in (2, 3, 4):
        for length in lengths:
            for module in (s.pristine, s.training)[: 2 if seed == 2 else 1]:
                with contextlib.suppress(Exception):  # a length, or a mode, that it does not take
                    yield all_slopes(s, s.draw(seed, tokens=length), module)


def all_slopes(s, x, module):
    """As `Facts.slopes`, of all that a copy of `module` returns or keeps, save weights to see."""
    module, found = copy_module(module, share=True), []
    module.register_forward_hook(lambda part, given, result: found.extend(flat(result)))
    output = s.run(x, module=module)
    found += [thing for _, thing in reachable(module) if isinstance(thing, torch.Tensor)]
    square = (x.shape[1], x.shape[1])
    whole = [output] * output.requires_grad
    whole += [t for t in found if not t.is_leaf and t.shape[-2:] != square]
    if not whole:
        return {}
    weights = {n: w for n, w in weights_of(module).items() if n in s.weights and w.requires_grad}
    return gradients(whole, weights)


# --- modules without effect -----------------------------------------------------------------


@fact
def never_used(s):
    """The names of weights that are called queries, keys or values, and that no call reads."""
    named = [name for name, w in s.weights.items() if is_matrix(w) and letter_of(name)]
    return [name for name in named if not s.graph.used(s.weights[name])]


@fact
def all_dead(s):
    """Whether no projection, and there are some, has an effect on the output."""
    return bool(dead(s)) and all(dead(s).get(name) is WHOLE for name in projections(s))


@fact
def without_effect(s, owner):
    """Whether all projections of a module, and at least one, are without effect."""
    lost = {*never_used(s), *(name for name, part in dead(s).items() if part is WHOLE)}
    mine = {name for name in {*projections(s), *lost} if within(name, owner)}
    return bool(mine) and mine <= lost


def lifeless(s, path):
    """Whether the attention beside a part, such as a dropout, is without effect or never called."""
    return without_effect(s, parent(path))


def result_lost(s, name):
    """Whether a weight's layer runs, and nothing reads what it gives."""
    weight, calls = s.weights[name], s.graph.calls
    users = [at for at, call in enumerate(calls) if any(k.tensor is weight for k in call.inputs)]
    read = (s.graph.users(kept, at) for at in users for kept in outputs(calls[at]))
    return bool(users) and not any(read)
