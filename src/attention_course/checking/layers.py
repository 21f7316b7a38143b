"""The layers: which of them act, learn, and belong to the module."""

import contextlib
import re

import torch
from torch import nn

from .calling import ENCODER, context_number, flat, is_mask, weights_of
from .cores import cores
from .flow import JOINING, outputs
from .guard import copy_module, reachable
from .layout import one_row, token_axes
from .report import DISTURBED, Finding, listed

# --- queries, keys, values ------------------------------------------------------------------


def wrong_pair(s):
    """W_query or W_key has no effect: the scores are made of something else."""
    for letter, name in s.idle:
        if letter in "qk":
            return _idle(s, "wrong-pair", letter, name)
    _note_one_projection(s)
    return _one_for_all(s, "qk") or _arguments_confused(s, "kq") or _context_confused(s, "kq")


def wrong_values(s):
    """W_value has no effect: the weights meet something else."""
    for letter, name in s.idle:
        if letter == "v":
            return _idle(s, "wrong-values", letter, name)
    return _one_for_all(s, "v") or _arguments_confused(s, "v") or _context_confused(s, "v")


def _one_for_all(s, letters):
    """One token's queries, keys or values stand for those of all, though each token has its own."""
    for core in s.cores if s.sizes.tokens > 1 else ():
        for letter in letters:
            number = "qkv".index(letter)
            rows = (core.queries, core.keys, core.values)[number]
            if rows.shape[-2] != s.sizes.tokens or not one_row(rows):
                continue
            origin = s.flow.origin(*core.operands[number])
            made = [t for _, k in origin.sources for t in token_axes(k.value, s.sizes)]
            if s.flow.pure(origin) and made and all((t != t[:1]).any() for t in made):
                role = _ROLES[letter]
                return Finding(
                    "one-for-all",
                    f"All rows of the {role} are the same: those of one token stand for all "
                    f"{s.sizes.tokens}. Use the {role} of each token: {role} of shape (batch, "
                    f"num_heads, tokens, head_dim), without an index on the tokens' axis.",
                )
    return None


def _note_one_projection(s):
    """Note where one layer has two names, or one projection makes queries, keys and values."""
    if shared := [names for part in s.original.modules() for names in _two_names(part)]:
        s.note(
            "one-projection",
            f"{listed(shared[0])} are one and the same layer and share their weights. Give each "
            f"a layer of its own, unless that is meant.",
        )
        return
    for core in s.cores:
        one = _same_numbers(core.queries, core.keys) and _same_numbers(core.keys, core.values)
        if one and s.weights:
            s.note(
                "one-projection",
                "Queries, keys and values are the numbers of one projection: each score is the "
                "same in both directions. Give each a layer of its own, unless that is meant.",
            )


def _two_names(part):
    """The names, two or more each, of layers for queries, keys or values that are the same."""
    names = {}
    for name, thing in [*part._modules.items(), *part._parameters.items()]:
        if thing is not None and letter_of(name):
            names.setdefault(id(thing), []).append(name)
    return [same for same in names.values() if len(same) > 1]


def _arguments_confused(s, letters):
    """forward(queries, keys, values), where one has no effect or stands in another's place."""
    roles = s.way.roles
    if not roles or s.sizes.tokens < 2 or DISTURBED & set(s.found):
        return None
    token = s.sizes.tokens // 2
    changed = s.x.clone()
    changed[:, token] = 1.5 * s.draw(2)[:, token]
    for letter in letters:
        name = s.way.names[roles[letter]]
        try:
            moved = s.moved_by_input(roles[letter], changed)
        except Exception:
            return None  # it takes the same tensor three times only
        code = "wrong-values" if letter == "v" else "wrong-pair"
        if not moved.any():
            return Finding(
                code,
                f"Changing {name} alone changes nothing: the {_ROLES[letter]} are made of "
                f"another argument. With three different inputs the answer is wrong.",
            )
        others = moved.nonzero().flatten().tolist()
        values = (
            letter != "q" or s.moved_by_input(roles["v"], changed).any()
        )  # else: reported there
        if letter == "q" and values and others != [token]:
            return Finding(
                code,
                f"Changing token {token} of {name} alone moves the rows {listed(others)} of the "
                f"output, not row {token} alone: {name} stands where the keys or the values "
                f"should. scores = queries @ keys.mT, a row for each query.",
            )
    return None


# names of what gives the keys and the values, and of what looks at it
_LOOKED_AT = re.compile(ENCODER)  # a memory, say, may look in its turn
_LOOKS = re.compile(r"x|tgt|trg|target|dec.*|inputs?|hidden_states|tokens")


def inputs_read(s):
    """For each core and each of two inputs: which of queries, keys and values move with it.

    None where forward takes another number of inputs, where that cannot be told, and where
    all is as in cross-attention: keys and values move with the context, and queries do not.
    """
    if not s.several or len(s.way.names) != 2 or s.sizes.tokens < 2 or not s.cores:
        return None
    at = context_number(s.way.names)
    at = 1 if at is None else at
    with_context = _read(s, at)
    if with_context is None:
        return None
    if {"k", "v"} in with_context and all(len(read) != 1 for read in with_context):
        return None
    with_x = _read(s, 1 - at)
    if with_x is None:
        return None
    return list(zip(*((with_x, with_context) if at else (with_context, with_x)), strict=True))


def _read(s, number):
    """For each core: which of queries, keys and values move with one of several inputs."""
    with s.other(number, s.draw(2)):
        again = cores(s.capture(s.x))
    if len(again) != len(s.cores):
        return None
    return [_moved(*pair) for pair in zip(s.cores, again, strict=True)]


def _moved(core, again):
    pairs = zip("qkv", _qkv(core), _qkv(again), strict=True)
    return {letter for letter, first, second in pairs if not _near(first, second)}


def _qkv(core):
    return core.queries, core.keys, core.values


def _near(first, second):
    return first.shape == second.shape and torch.allclose(first, second, rtol=1e-4, atol=1e-6)


def _context_confused(s, letters):
    """forward(x, context), where one is not read, or stands in the other's place."""
    if DISTURBED & set(s.found) or s.inputs_read is None:
        return None
    at = context_number(s.way.names)
    if "k" in letters and (finding := _not_read(s, at is not None)):
        return finding
    if at is None:
        return None
    context, x = s.way.names[at], s.way.names[1 - at]
    for read in s.inputs_read:
        with_context, with_x = read[at], read[1 - at]
        for letter, other in ("kv", "vk"):
            crossed = letter in with_x - with_context and other in with_context - with_x
            if letter in letters and crossed:
                return _from_another(letter, other, x, context)
        turned = with_context == {"q"} and with_x == {"k", "v"}
        named = _LOOKED_AT.fullmatch(context.lower()) and _LOOKS.fullmatch(x.lower())
        if "k" in letters and turned and named:
            return Finding(
                "wrong-pair",
                f"The queries are made of {context}, and the keys and the values of {x}: the "
                f"rows of the output belong to the tokens of {context}. Make the queries of "
                f"{x}, the keys and the values of {context}.",
            )
    return None


def _not_read(s, cross):
    """An input that acts on nothing: a fault where one is a context, or else a note."""
    for number, name in enumerate(s.way.names):
        if any(read[number] for read in s.inputs_read) or _acts(s, number):
            continue
        other = s.way.names[1 - number]
        seen = f"Changing {name} alone changes nothing: queries, keys and values are all made of "
        if cross:
            return Finding(
                "wrong-pair",
                f"{seen}{other}. In cross-attention the queries come from one input, and the "
                f"keys and the values from the other.",
            )
        s.note("unused-argument", f"{seen}{other}. forward can do without {name}.")
    return None


def _acts(s, number):
    """Whether the output moves with one of the inputs."""
    return any(s.moved_by_input(number, s.draw(seed)).any() for seed in (2, 3))


def _from_another(letter, other, x, context):
    return Finding(
        "wrong-values" if letter == "v" else "wrong-pair",
        f"The {_ROLES[letter]} are made of {x}, and the {_ROLES[other]} of {context}: changing "
        f"{context} alone leaves the {_ROLES[letter]} as they are. A weight then belongs to a "
        f"token of one and meets a value of the other. Make both of {context}.",
    )


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


_ROLES = {"q": "queries", "k": "keys", "v": "values"}


def _idle(s, code, letter, name):
    taken = _taken(s)
    if code == "wrong-values":
        advice = f"the weights meet {taken or 'something else'} in place of the values"
        fix = "context = weights @ values"
    else:
        advice = f"the scores use {taken or 'something else'} in place of the {_ROLES[letter]}"
        fix = "scores = queries @ keys.mT"
    return Finding(
        code, f"Changing {name} changes nothing, with one token or five: {advice}. {fix}."
    )


def _taken(s):
    """Which operand stands twice, in words."""
    for core in s.cores:
        ids = [_source_ids(s, operand) for operand in core.operands]
        if ids[0] and ids[0] == ids[1]:
            return "one projection twice"
        if ids[2] and ids[1] == ids[2]:
            return "one projection for keys and values"
        if ids[2] and ids[0] == ids[2]:
            return "one projection for queries and values"
        if any(at is None for at, _ in s.flow.origin(*core.operands[2]).sources):
            return "the input x"
    return None


def _source_ids(s, operand):
    return {id(kept.tensor) for _, kept in s.flow.origin(*operand).sources}


def find_idle(s):
    """[(letter, label)] of each projection, or part of a fused one, that no output depends on.

    letter: "q", "k" or "v". A layer that holds its place in the scores or at the values is not
    idle for that, only for a reason that another test names.
    """
    if s.sizes.tokens < 2 or not s.sees_others:
        return []
    names = [name for name, weight in s.weights.items() if _matrix(weight)]
    found = []
    for name in names:
        weight, gradient = s.weights[name], s.slopes.get(name)
        if name.endswith("bias") or _norm_like(name) or "`" in name:  # "`": not the module's own
            continue
        named = letter_of(name) or (None if _out_like(name) else _by_order(s, name, names))
        for letter, label, rows in _parts(name, weight, gradient, named):
            if rows is None and gradient is not None and _strong(gradient, s):
                continue
            if rows is None and _place_taken(s, letter, weight):
                continue
            if letter and not s.moves(weight, rows) and not _in_place(s, letter, weight, rows):
                found.append((letter, label))
    return found


def _matrix(weight):
    return weight.dim() >= 2 and weight.is_floating_point()


def _norm_like(name):
    return bool(re.search(r"norm|\bln", name.lower()))


def _strong(gradient, s):
    return gradient.abs().max().item() > 1e-3 * s.size


def _parts(name, weight, gradient, letter):
    """(letter, label, rows) for a weight, or for the rows of a fused one without a gradient."""
    if letter or weight.dim() != 2 or gradient is None:
        yield letter, name.removesuffix(".weight"), None
        return
    for axis in (0, 1):
        idle = gradient.abs().amax(dim=1 - axis) == 0
        count = int(idle.sum())
        if not count or (parts := round(len(idle) / count)) not in (2, 3):
            continue
        places = idle.nonzero().flatten().tolist()
        run = next(n for n in range(1, len(idle)) if places[0] + n not in places)
        # q, k and v one after another, for all heads or for each head in turn
        letter = ("kv" if parts == 2 else "qkv")[places[0] // run % parts]
        rows = idle[:, None] if axis == 0 else idle[None, :]
        words = "to" if run == len(places) else "and so on to"
        label = f"rows {places[0]} {words} {places[-1]} of {name} ({_ROLES[letter]})"
        yield letter, label, rows


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


def _out_like(path):
    return bool(re.search(r"out|proj$|proj\.|w_?o\b|fc|mlp|ff|merge|mix", path.lower()))


def _by_order(s, name, names):
    """The letter by the order of three like weights, for layers named a, b, c."""
    like = [n for n in names if s.weights[n].shape == s.weights[name].shape and not _out_like(n)]
    if len(like) in (3, 4) and all(letter_of(n) is None for n in like) and name in like[:3]:
        return "qkv"[like.index(name)]
    return None


def _in_place(s, letter, weight, rows):
    """Whether a layer holds its place: in the scores for q and k, at the values for v."""
    if not s.cores:
        return False
    if rows is None:
        operands = [core.operands[2:] if letter == "v" else core.operands[:2] for core in s.cores]
        return any(id(weight) in s.flow.leaves(*o) for pair in operands for o in pair)
    for core in s.cores:
        ids = [_source_ids(s, operand) for operand in core.operands]
        fused = [core.queries, core.keys, core.values]
        if letter in "qk" and _same_numbers(fused[0], fused[1]):
            return False
        if any(_same_numbers(fused[a], fused[2]) for a in (0, 1)):
            return False
        given = [
            any(
                at is None and kept.tensor is s.flow.given
                for at, kept in s.flow.origin(*operand).sources
            )
            for operand in core.operands
        ]
        if any(given) or not all(ids):
            return False
    return True


def _place_taken(s, letter, weight):
    """Whether a layer is never called, and others of its letter hold its place in all cores."""
    if not letter or not s.cores or s.flow.used(weight):
        return False
    like = {id(w) for name, w in s.weights.items() if letter_of(name) == letter}
    return all(like & s.flow.leaves(*core.operands["qkv".index(letter)]) for core in s.cores)


def _same_numbers(first, second):
    if first.numel() != second.numel():
        return False
    a, b = first.flatten().sort().values, second.flatten().sort().values
    ratio = (a @ b) / (b @ b).clamp_min(1e-12)
    return torch.allclose(a, ratio * b, rtol=1e-3, atol=1e-5)


# --- parts without effect -------------------------------------------------------------------

WHOLE = "whole"


def attention_unused(s):
    """Queries, keys and values are computed, and none of them has an effect on the output."""
    if not _all_dead(s):
        return None
    lost = [n for n, w in s.weights.items() if _matrix(w) and _result_lost(s, n) and not s.moves(w)]
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
    dead = {name: part for name, part in s.dead.items() if not _reported(s, _layer(name))}
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
    found = []
    for name in names:
        steps = name.split(".")
        above = [".".join(steps[:n]) for n in range(1, len(steps))]
        found.append(next((o for o in above if _without_effect(s, o)), _layer(name)))
    return list(dict.fromkeys(found))


def _above(path):
    return path.rpartition(".")[0]


def _layer(name):
    return name.removesuffix(".weight")


def _have(names):
    return "has" if len(names) == 1 else "have"


def _all_dead(s):
    made = candidates(s) if s.dead else ()
    return bool(s.dead) and all(s.dead.get(name) is WHOLE for name in made)


def lifeless(s, path):
    """Whether the attention beside a part, such as a dropout, is without effect or never called."""
    if not s.dead and not _never_used(s):
        return False
    return _without_effect(s, _above(path))


def _without_effect(s, owner):
    """Whether all projections of a module, and at least one, are without effect."""
    start = f"{owner}." if owner else ""
    unused, made = _never_used(s), candidates(s)
    mine = [n for n in s.weights if n.startswith(start) and (n in made or n in unused)]
    return bool(mine) and all(n in unused or s.dead.get(n) is WHOLE for n in mine)


def _never_used(s):
    return [
        name
        for name, weight in s.weights.items()
        if _matrix(weight) and letter_of(name) and not s.flow.used(weight)
    ]


def candidates(s):
    """The trainable matrices that make the queries, keys and values, by name: "q", "k", "v"."""
    names = {id(weight): name for name, weight in s.weights.items() if _matrix(weight)}
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
    own = [n for n, w in s.weights.items() if _matrix(w) and w.requires_grad and "`" not in n]
    parts = {name: _zero_part(s.slopes.get(name)) for name in own}
    made = candidates(s) if any(parts.values()) else {}
    parts = {name: part for name, part in parts.items() if name in made}
    if not any(parts.values()):
        return {}
    for slopes in _other_slopes(s):
        if any(_zero_part(slopes.get(name)) != part for name, part in parts.items()):
            return {}
    dead = {n: part for n, part in parts.items() if part and not _by_mask(s, made[n])}
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
                    yield _all_slopes(s, s.draw(seed, tokens=length), train)
                except Exception:
                    continue  # a length, or a mode, that it does not take


def _all_slopes(s, x, train):
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


# --- all layers -----------------------------------------------------------------------------


def unused_layer(s):
    """A layer that forward never reaches, or whose result it throws away."""
    unused = []
    train = None
    made = dict(s.original.named_parameters())
    for name, weight in s.weights.items():
        owner = name.rpartition(".")[0] or name
        if "not-repeatable" in s.found and name not in made:
            continue  # forward made the layer
        if (name.endswith("bias") and f"{name[:-4]}weight" in s.weights) or owner in s.named:
            continue
        if s.flow.used(weight) and (not _result_lost(s, name) or "attention-unused" in s.found):
            continue
        if "heads-alike" in s.found and letter_of(owner):
            continue  # a head in whose place another stands
        if "no-effect" in s.found and s.flow.used(weight) and _without_effect(s, _above(owner)):
            continue  # told with all that stands beside it
        if s.moves(weight) or ((gradient := s.slopes.get(name)) is not None and gradient.any()):
            continue
        train = train or s.capture(s.x, train=True)
        if s.flow.used(weight) or not train.used(weight):
            unused.append(owner)
    unused = list(dict.fromkeys(name for name in unused if not _reported(s, name)))
    unused = [owner for owner in unused if not _elsewhere(s, owner)] if unused else []
    if not unused:
        return None
    unused = _joined(s, unused)
    verb, it = ("is", "it") if len(unused) == 1 else ("are", "them")
    return Finding(
        "unused-layer",
        f"{listed(unused)} {verb} never called, or the result is thrown away: the output does "
        f"not depend on {it}. Use {it} in forward, or remove {it}.",
    )


def _joined(s, unused):
    """The layers, with the module in place of all its layers where none of them is used."""
    owners = {_above(name) or name for name in s.weights}
    found = []
    for layer in unused:
        steps = layer.split(".")
        above = [".".join(steps[:n]) for n in range(1, len(steps))]
        all_idle = (
            o for o in above if all(i in unused for i in owners if f"{i}.".startswith(f"{o}."))
        )
        found.append(next(all_idle, layer))
    return list(dict.fromkeys(found))


def _elsewhere(s, owner):
    """Whether a layer has an effect on something else that forward returns or keeps."""
    for train in (False, True):
        with contextlib.suppress(RuntimeError, ValueError, AssertionError):
            slopes = _all_slopes(s, s.x, train)
            names = [n for n in slopes if n == owner or n.startswith(f"{owner}.")]
            if any(slopes[name] is not None and slopes[name].any() for name in names):
                return True
    return False


def _reported(s, owner):
    words = [word for _, label in s.idle for word in label.split()]
    return any(f"{word}.".startswith(f"{owner}.") for word in words)


def _result_lost(s, name):
    """Whether a weight's layer runs, and nothing reads what it gives."""
    weight = s.weights[name]
    users = [at for at, c in enumerate(s.flow.calls) if any(k.tensor is weight for k in c.inputs)]
    return bool(users) and all(
        not any(s.flow.users(k, at) for k in outputs(s.flow.calls[at])) for at in users
    )


def detached(s):
    """The output depends on a weight, and no gradient reaches it."""
    if s.backward_error is not None:
        s.tell("gradients not judged, because backward fails")
        return None
    cut = []
    for name, weight in s.weights.items():
        if not _matrix(weight) or not weight.requires_grad or is_mask(weight):
            continue
        gradient = s.slopes.get(name)
        if gradient is None or not gradient.any():
            if s.moves(weight):
                cut.append(name)
            continue
        for rows, label in _dead_rows(name, weight, gradient):
            if s.moves(weight, rows):
                cut.append(label)
    if not cut:
        return None
    if len(cut) == len([w for w in s.weights.values() if _matrix(w)]):
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
