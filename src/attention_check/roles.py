"""Queries, keys and values: each is made by a layer of its own, and holds its place."""

import re

import torch

from .cores import ROLES
from .inputs import arguments_confused, context_confused
from .layout import one_row, token_axes
from .report import Finding, listed


def wrong_pair(s):
    """W_query or W_key has no effect: the scores are made of something else."""
    for letter, name in s.idle:
        if letter in "qk":
            return _idle(s, "wrong-pair", letter, name)
    _note_one_projection(s)
    return _one_for_all(s, "qk") or arguments_confused(s, "kq") or context_confused(s, "kq")


def wrong_values(s):
    """W_value has no effect: the weights meet something else."""
    for letter, name in s.idle:
        if letter == "v":
            return _idle(s, "wrong-values", letter, name)
    return _one_for_all(s, "v") or arguments_confused(s, "v") or context_confused(s, "v")


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
                role = ROLES[letter]
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


def _idle(s, code, letter, name):
    taken = _taken(s)
    if code == "wrong-values":
        advice = f"the weights meet {taken or 'something else'} in place of the values"
        fix = "context = weights @ values"
    else:
        advice = f"the scores use {taken or 'something else'} in place of the {ROLES[letter]}"
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
    names = [name for name, weight in s.weights.items() if is_matrix(weight)]
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


def is_matrix(weight):
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
        label = f"rows {places[0]} {words} {places[-1]} of {name} ({ROLES[letter]})"
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
