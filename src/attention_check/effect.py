"""Heads, and parts of projections, that are computed and have no effect on the output."""

import contextlib
import re

import torch

from .calling import flat, weights_of
from .flow import JOINING, outputs
from .guard import copy_module, reachable
from .report import Finding, listed
from .roles import is_matrix, letter_of

WHOLE = "whole"


def heads_alike(s):
    """Heads joined side by side that hold the same numbers: one head that stands several times."""
    contexts = [core.context[1] for core in s.cores]
    for call in s.flow.calls if contexts else ():
        if call.name not in JOINING:
            continue
        parts = [kept.value for kept in call.inputs]
        same = [n for n in range(1, len(parts)) if _equal(parts[0], parts[n])]
        if same and any(_equal(parts[0], context) for context in contexts):
            return Finding(
                "heads-alike",
                f"{len(same) + 1} heads of {len(parts)} give the same numbers: {_why_alike(s)}",
            )
    return None


def _why_alike(s):
    idle = _owners(s, [*(n for n, part in s.dead.items() if part is WHOLE), *_never_used(s)])
    parts = {name: part for name, part in s.dead.items() if part is not WHOLE}
    if idle or parts:
        what = f"{listed(idle)} {_have(idle)}" if idle else _parts_in_words(s, parts)
        return (
            f"the same head is taken each time. {what} no effect on the output. Is the index "
            f"fixed, or is a lambda's i looked up too late? Take head i at turn i."
        )
    return (
        "they are one and the same module, as in [Head(...)] * num_heads, and share their "
        "weights. Make each anew: nn.ModuleList([Head(...) for _ in range(num_heads)])."
    )


def _equal(first, second):
    return first.numel() == second.numel() and torch.equal(first.flatten(), second.flatten())


def attention_unused(s):
    """Queries, keys and values are computed, and none of them has an effect on the output."""
    if not _all_dead(s):
        return None
    lost = [
        n for n, w in s.weights.items() if is_matrix(w) and result_lost(s, n) and not s.moves(w)
    ]
    where = f" What {_layer(lost[-1])} gives is thrown away: return it." if lost else ""
    return Finding(
        "attention-unused",
        f"The attention has no effect on the output: changing {listed(map(_layer, s.dead))} "
        f"changes nothing. Its result is computed, and is left out of what forward returns, or "
        f"multiplied by 0.{where}",
    )


def no_effect(s):
    """Heads, or columns of a projection, that are computed and have no effect on the output."""
    if {"heads-alike", "attention-unused", "softmax-axis"} & set(s.found):
        return None
    dead = {name: part for name, part in s.dead.items() if not reported(s, _layer(name))}
    whole = [name for name, part in dead.items() if part is WHOLE]
    if whole:
        owners = _owners(s, whole)
        advice = "Let it reach what forward returns."
        if any(re.search(r"\.\d", owner) for owner in owners):
            advice = (
                "In a loop over heads keep each result, outs.append(head(x)), and join them: "
                "torch.cat(outs, dim=-1)."
            )
        return Finding(
            "no-effect",
            f"{listed(owners)} {_have(owners)} no effect on the output: what is computed there is "
            f"not used afterwards. {advice}",
        )
    if dead:
        return Finding(
            "no-effect", f"{_parts_in_words(s, dead)} no effect on the output. {_cut_how(s, dead)}"
        )
    return None


def _cut_how(s, dead):
    """What to do where parts of a projection do not reach the output."""
    width, heads = s.cores[0].width, s.sizes.num_heads or 1
    for name, (axis, places) in dead.items():
        size = s.weights[name].shape[axis]
        if _word(s, name, axis) != "column":
            return "Let the result of each head reach the output."
        if len(places) == size % width and places[0] == size - len(places):
            return (
                f"{size} columns are not a whole number of heads of {width}, so the rest is left "
                f"out: choose num_heads so that it divides d_model."
            )
        if size < width * heads:
            return (
                "Where several heads share keys and values, each group takes its own: "
                "values.repeat_interleave(num_heads // kv_heads, dim=1)."
            )
    return (
        "Let head i take the columns i * head_dim to (i + 1) * head_dim, those of no other head, "
        "and join the results of all heads."
    )


def _word(s, name, axis):
    """What an axis of a weight holds: the columns of its result, heads, or else rows."""
    weight = s.weights[name]
    linear = any(c.name == "linear" and c.inputs[1].tensor is weight for c in s.flow.calls)
    if axis == (0 if linear else weight.dim() - 1):
        return "column"
    return "head" if weight.dim() > 2 and weight.shape[axis] == s.sizes.num_heads else "row"


def _parts_in_words(s, dead):
    """Which columns of what, with the verb."""
    groups = {}
    for name, (axis, places) in dead.items():
        groups.setdefault((_word(s, name, axis), tuple(places)), []).append(_layer(name))
    texts = [
        f"{word}{'s' if len(places) > 1 else ''} {_ranges(places)} of {listed(names)}"
        for (word, places), names in groups.items()
    ]
    one = len(groups) == 1 and len(places) == 1
    text = f"{'; '.join(texts)} {'has' if one else 'have'}"
    return text[0].upper() + text[1:]


def _ranges(places):
    """Whole numbers in words: 0 to 5 and 12."""
    runs = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return listed([f"{run[0]} to {run[-1]}" if len(run) > 1 else run[0] for run in runs])


def _owners(s, names):
    """The largest modules of which all projections are without effect, for each name."""
    return largest(map(_layer, names), lambda owner: without_effect(s, owner))


def largest(paths, holds):
    """For each path the outermost module above it for which `holds`, or itself; each once."""
    found = []
    for path in paths:
        steps = path.split(".")
        above = (".".join(steps[:n]) for n in range(1, len(steps)))
        found.append(next(filter(holds, above), path))
    return list(dict.fromkeys(found))


def parent(path):
    return path.rpartition(".")[0]


def _layer(name):
    return name.removesuffix(".weight")


def _have(names):
    return "has" if len(names) == 1 else "have"


def _all_dead(s):
    return bool(s.dead) and all(s.dead.get(name) is WHOLE for name in s.projections)


def lifeless(s, path):
    """Whether the attention beside a part, such as a dropout, is without effect or never called."""
    if not s.dead and not _never_used(s):
        return False
    return without_effect(s, parent(path))


def without_effect(s, owner):
    """Whether all projections of a module, and at least one, are without effect."""
    start = f"{owner}." if owner else ""
    unused = _never_used(s)
    mine = [n for n in s.weights if n.startswith(start) and (n in s.projections or n in unused)]
    return bool(mine) and all(n in unused or s.dead.get(n) is WHOLE for n in mine)


def _never_used(s):
    return [
        name
        for name, weight in s.weights.items()
        if is_matrix(weight) and letter_of(name) and not s.flow.used(weight)
    ]


def find_projections(s):
    """The trainable matrices that make the queries, keys and values, by name: "q", "k", "v"."""
    names = {id(weight): name for name, weight in s.weights.items() if is_matrix(weight)}
    found = {}
    for core in s.cores:
        for letter, operand in zip("qkv", core.operands, strict=True):
            for at in s.flow.projections(*operand):
                for kept in s.flow.calls[at].inputs:
                    for made, source in s.flow.origin(kept, at).sources:
                        name = names.get(id(source.tensor)) if made is None else None
                        if name and source.tensor.requires_grad:
                            found.setdefault(name, set()).add(letter)
    return found


def find_dead(s):
    """{name: WHOLE or (axis, places)}: projections, or parts, without effect on the output.

    Their gradient is exactly 0 for several inputs and lengths, of the same parts each time, and
    drawing them anew changes nothing. What an input chooses (experts, a ReLU that is off) or a
    length (tables of positions) has no effect for one, and not for all.
    """
    if s.sizes.tokens < 2 or s.fresh or s.random or s.backward_error is not None:
        return {}
    own = [n for n, w in s.weights.items() if is_matrix(w) and w.requires_grad and "`" not in n]
    parts = {name: _zero_part(s.slopes.get(name)) for name in own}
    if any(parts.values()):
        parts = {name: part for name, part in parts.items() if name in s.projections}
    if not any(parts.values()):
        return {}
    for slopes in _other_slopes(s):
        if any(_zero_part(slopes.get(name)) != part for name, part in parts.items()):
            return {}
    dead = {n: part for n, part in parts.items() if part and not _by_mask(s, s.projections[n])}
    dead = {name: part for name, part in dead.items() if not s.moves(*_chosen(s, name, part))}
    return {} if dead and _switched_off(s, dead) else dead


def _zero_part(gradient):
    """WHOLE, or (axis, places) where the gradient is exactly 0; None where it is nowhere."""
    if gradient is None:
        return WHOLE
    if gradient.is_sparse or gradient.all():
        return None
    if not gradient.any():
        return WHOLE
    for axis in range(gradient.dim()):
        live = gradient.movedim(axis, 0).flatten(1).any(dim=1)
        if not live.all():
            return axis, (~live).nonzero().flatten().tolist()
    return None


def _chosen(s, name, part):
    weight = s.weights[name]
    if part is WHOLE:
        return weight, None
    axis, places = part
    rows = torch.zeros(weight.shape, dtype=torch.bool, device=weight.device)
    rows.movedim(axis, 0)[places] = True
    return weight, rows


def _switched_off(s, dead):
    """Whether gates, learned or kept as 0 and 1 by head, switch the parts off, and could on."""
    for sign in (1, -1, 0):
        module = copy_module(s.pristine)
        gates = [w for w in weights_of(module).values() if w.dim() < 2 and w.is_floating_point()]
        generator = torch.Generator().manual_seed(8 + sign)
        for gate in gates:
            drawn = 3 * torch.randn(gate.shape, generator=generator).to(gate)
            gate.data = sign * drawn.abs() if sign else drawn
        for buffer in module.buffers():
            if buffer.numel() == s.sizes.num_heads and ((buffer == 0) | (buffer == 1)).all():
                buffer.fill_(1)
        with contextlib.suppress(Exception):
            slopes = _slopes_of(s, s.x, module)
            for name, part in dead.items():
                gradient, rows = slopes.get(name), _chosen(s, name, part)[1]
                if gradient is not None and (gradient if rows is None else gradient[rows]).any():
                    return True
    return False


def _by_mask(s, letters):
    """Whether a head's weights are the same for any input, so that queries and keys, or all
    that it sees, have no effect by design: a head that sees itself alone, or nothing."""
    for first, second in zip(*s.both_cores, strict=False):
        a, b = first.weights, second.weights
        if a.shape != b.shape or a.dim() < 2:
            continue
        a, b = a.flatten(0, -3) if a.dim() > 2 else a[None], b.reshape(-1, *b.shape[-2:])
        fixed = (a - b).abs().flatten(1).amax(dim=1) < 1e-7
        empty = fixed & (a.abs().flatten(1).amax(dim=1) == 0)
        if empty.any() or (fixed.any() and letters & {"q", "k"}):
            return True
    return False


def _other_slopes(s):
    """The gradients for other inputs and lengths, of all that forward returns."""
    tokens = [n for n in (8, 7, 6) if n != s.sizes.tokens and n <= (s.sizes.context or n)]
    lengths = [None] if s.masks is not None or not tokens else [None, tokens[0]]
    for seed in (2, 3, 4):
        for length in lengths:
            for train in (False, True) if seed == 2 else (False,):
                try:
                    yield all_slopes(s, s.draw(seed, tokens=length), train)
                except Exception:
                    continue  # a length, or a mode, that it does not take


def all_slopes(s, x, train):
    """As `Subject.gradients`, of all that forward returns or keeps, save weights for a look."""
    return _slopes_of(s, x, copy_module(s.training if train else s.pristine, share=True))


def _slopes_of(s, x, module):
    found = []
    module.register_forward_hook(lambda part, given, result: found.extend(flat(result)))
    output = s.run(x, module=module)
    found += [thing for _, thing in reachable(module) if isinstance(thing, torch.Tensor)]
    square = (x.shape[1], x.shape[1])
    whole = [t.flatten() for t in found if not t.is_leaf and t.shape[-2:] != square]
    whole = [output.flatten(), *whole] if output.requires_grad else whole
    if not whole:
        return {}
    whole = torch.cat(whole)
    mix = torch.linspace(1, 2, len(whole), device=whole.device, dtype=whole.dtype)
    weights = {n: w for n, w in weights_of(module).items() if n in s.weights and w.requires_grad}
    found = torch.autograd.grad(whole @ mix, list(weights.values()), allow_unused=True)
    return dict(zip(weights, found, strict=True))


def reported(s, owner):
    words = [word for _, label in s.idle for word in label.split()]
    return any(f"{word}.".startswith(f"{owner}.") for word in words)


def result_lost(s, name):
    """Whether a weight's layer runs, and nothing reads what it gives."""
    weight = s.weights[name]
    users = [at for at, c in enumerate(s.flow.calls) if any(k.tensor is weight for k in c.inputs)]
    return bool(users) and all(
        not any(s.flow.users(k, at) for k in outputs(s.flow.calls[at])) for at in users
    )
