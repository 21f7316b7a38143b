"""The layers: which of them act, learn, and belong to the module."""

import re

import torch
from torch import nn

from .calling import ENCODER, context_number, is_mask
from .cores import cores
from .flow import JOINING, outputs
from .guard import reachable
from .report import Finding, listed
from .visible import DISTURBED

# --- queries, keys, values ------------------------------------------------------------------


def wrong_pair(s):
    """W_query or W_key has no effect: the scores are made of something else."""
    for letter, name in s.idle:
        if letter in "qk":
            return _idle(s, "wrong-pair", letter, name)
    _note_one_projection(s)
    return _arguments_confused(s, "kq") or _context_confused(s, "kq")


def wrong_values(s):
    """W_value has no effect: the weights meet something else."""
    for letter, name in s.idle:
        if letter == "v":
            return _idle(s, "wrong-values", letter, name)
    return _arguments_confused(s, "v") or _context_confused(s, "v")


def _note_one_projection(s):
    for core in s.cores:
        one = _same_numbers(core.queries, core.keys) and _same_numbers(core.keys, core.values)
        if one and s.weights:
            s.note(
                "one-projection",
                "Queries, keys and values are the numbers of one projection: each score is the "
                "same in both directions. Give each a layer of its own, unless that is meant.",
            )


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
    for call in s.flow.calls if len(contexts) > 1 else ():
        if call.name not in JOINING:
            continue
        parts = [kept.value for kept in call.inputs]
        same = [n for n in range(1, len(parts)) if _equal(parts[0], parts[n])]
        if same and any(_equal(parts[0], context) for context in contexts):
            return Finding(
                "heads-alike",
                f"{len(same) + 1} heads of {len(parts)} give the same numbers: they are one and "
                f"the same module, as in [Head(...)] * num_heads, and share their weights. Make "
                f"each anew: nn.ModuleList([Head(...) for _ in range(num_heads)]).",
            )
    return None


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


def _same_numbers(first, second):
    if first.numel() != second.numel():
        return False
    a, b = first.flatten().sort().values, second.flatten().sort().values
    ratio = (a @ b) / (b @ b).clamp_min(1e-12)
    return torch.allclose(a, ratio * b, rtol=1e-3, atol=1e-5)


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
        if s.flow.used(weight) and not _result_lost(s, name):
            continue
        if s.moves(weight) or ((gradient := s.slopes.get(name)) is not None and gradient.any()):
            continue
        train = train or s.capture(s.x, train=True)
        if s.flow.used(weight) or not train.used(weight):
            unused.append(owner)
    unused = list(dict.fromkeys(name for name in unused if not _reported(s, name)))
    if not unused:
        return None
    verb = "is" if len(unused) == 1 else "are"
    return Finding(
        "unused-layer",
        f"{listed(unused)} {verb} never called, or the result is thrown away: the output does "
        f"not depend on it. Use it in forward, or remove it.",
    )


def _reported(s, owner):
    return any(owner in label for _, label in s.idle)


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
        if not _matrix(weight) or not weight.requires_grad:
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
        text = "No gradient reaches any weight"
    else:
        text = f"The output depends on {listed(cut)}, but no gradient reaches it"
    return Finding(
        "detached",
        f"{text}: .detach(), .data, torch.no_grad() or .item() cuts the graph in forward, so "
        f"the weight is never trained. Remove it there.",
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


def not_a_buffer(s):
    """The mask is a plain attribute that forward uses."""
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
