"""Modules with several inputs: which of them makes queries, keys and values."""

import re

import torch

from .calling import ENCODER, context_number
from .cores import ROLES, cores
from .report import DISTURBED, Finding, listed


def arguments_confused(s, letters):
    """forward(queries, keys, values), where one has no effect or stands in another's place."""
    roles = s.way.roles
    if not roles or s.sizes.tokens < 2 or DISTURBED & set(s.found):
        return None
    token = s.sizes.tokens // 2
    changed = s.with_token(token, seed=2)
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
                f"Changing {name} alone changes nothing: the {ROLES[letter]} are made of "
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


def context_attends(s):
    """Whether the context goes through an attention of its own, as in an encoder."""
    at = context_number(s.way.names)
    with_context, with_x = _read(s, at) or [], _read(s, 1 - at) or []
    return any(
        moved == set("qkv") and not other
        for moved, other in zip(with_context, with_x, strict=False)
    )


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


def context_confused(s, letters):
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
        f"The {ROLES[letter]} are made of {x}, and the {ROLES[other]} of {context}: changing "
        f"{context} alone leaves the {ROLES[letter]} as they are. A weight then belongs to a "
        f"token of one and meets a value of the other. Make both of {context}.",
    )
