"""The ways to call forward, by the names of its arguments."""

import inspect
from collections import defaultdict
from dataclasses import dataclass, fields, is_dataclass, replace

import torch
from torch import nn

from .make import CannotCheck, arguments
from .names import (
    BATCH_FIRST,
    CACHE,
    CONTEXT,
    CONTEXT_MASK,
    HEAD_WIDTHS,
    KEYS,
    MASK,
    NOT_TOKENS,
    OPTIONAL,
    OTHER_MASK,
    PLACES,
    QUERIES,
    ROLE,
    TOKENS_FIRST,
    ZEROS,
)
from .sizes import attribute, widths


@dataclass(frozen=True)
class Way:
    """A way to call forward: which of its arguments, by name, gets what."""

    inputs: int = 1  # how many times x is given by position
    keywords: tuple = ()  # those that get x as well
    names: tuple = ()  # all that get x, in order, where they have names
    zeros: tuple = ()  # those that get 0
    places: tuple = ()  # those that get 0, 1, 2, …
    empty: tuple = ()  # caches, which get None
    turns: tuple = ()  # rotary tables, which get a turn by nothing
    masks: tuple = ()  # those that can take a mask
    required: tuple = ()  # the masks that must be given
    passed_over: tuple = ()  # a context's masks, of which the check gives none of its own
    optional: tuple = ()  # a context that is not given
    layout: str = "batch"  # or "tokens first", or "one sentence", (tokens, d_model)
    others: tuple = ()  # (number, tensor), …: those of `names` that get another tensor
    narrow: tuple = ()  # (number, width): the one of them that has a width of its own
    flags: tuple = ()  # (name, value), …: those that get another value than by default

    def __call__(self, module, x, masks=None):
        """Return the output (batch, tokens, width) for x (batch, tokens, d_model)."""
        output = context_of(self.answer(module, x, masks), self._laid_out(x).shape[:-1])
        if self.layout == "one sentence":
            return output.unsqueeze(0)
        return output.transpose(0, 1) if self.layout == "tokens first" else output

    def answer(self, module, x, masks=None):
        """Return all that forward returns. masks: what it gets by name beside its inputs."""
        given = self._laid_out(x)
        inputs = [given] * (self.inputs + len(self.keywords))
        for number, tensor in self.others:
            inputs[number] = self._laid_out(tensor)
        if self.narrow:
            number, width = self.narrow
            times = -(-width // x.shape[-1])
            inputs[number] = inputs[number].repeat(1, 1, times)[..., :width]
        keywords = dict(zip(self.keywords, inputs[self.inputs :], strict=True))
        keywords |= {name: 0 for name in self.zeros}
        keywords |= {name: torch.arange(x.shape[1], device=x.device) for name in self.places}
        keywords |= {name: _no_turn(module, x) for name in self.turns}
        keywords |= {name: None for name in self.required}
        keywords |= dict(self.flags)
        keywords |= dict.fromkeys(self.empty) | (masks or {})
        return module(*inputs[: self.inputs], **keywords)

    def _laid_out(self, x):
        if self.layout == "one sentence":
            return x[0]
        return x.transpose(0, 1) if self.layout == "tokens first" else x

    @property
    def guessed(self):
        """The arguments for which the check has but a guess."""
        known = self.roles or (len(self.names) == 2 and context_number(self.names) is not None)
        return self.empty + self.turns + (() if known else self.names[1:])

    @property
    def of_the_keys(self):
        """The numbers of the inputs that give keys and values, where queries come from another."""
        if self.roles:
            return [self.roles["k"], self.roles["v"]]
        at = context_number(self.names) if len(self.names) == 2 else None
        return [] if at is None else [at]

    @property
    def roles(self):
        """Role -> number of the input that plays it, where forward names queries, keys, values."""
        found = [ROLE.fullmatch(name.lower()) for name in self.names]
        roles = {match[1]: number for number, match in enumerate(found) if match}
        whole = len(roles) == 3 and len(self.names) == self.inputs + len(self.keywords)
        return roles if whole else {}


def context_number(names):
    """Which of two arguments is a context by its name, or None."""
    found = [number for number, name in enumerate(names) if CONTEXT.fullmatch(name.lower())]
    return found[0] if len(found) == 1 else None


def ways_of_two_widths(module, d_model):
    """The ways to call forward(x, context) with a context as wide as another layer takes."""
    return [narrow for way in ways(module) for narrow in of_two_widths(way, module, d_model)]


def of_two_widths(way, module, d_model):
    """The same way with a context of each other width that a layer takes.

    A width that is a part or a multiple of d_model is more likely a mistake than meant.
    """
    at = context_number(way.names) if len(way.names) == 2 else None
    others = widths(module, None) if at is not None else ()
    return [replace(way, narrow=(at, n)) for n in others if d_model % n and n % d_model]


def _no_turn(module, x):
    """(cos, sin) of no rotation, (1, tokens, head_dim) each, as the transformers package has it."""
    size = attribute(module, HEAD_WIDTHS) or x.shape[-1]
    return x.new_ones(1, x.shape[1], size), x.new_zeros(1, x.shape[1], size)


class NoTensor(Exception):
    """forward returned something without a tensor in it."""


def context_of(output, leading):
    """The first tensor that is shaped like an output, or the first of all."""
    found = list(flat(output))
    if not found:
        raise NoTensor(f"forward returned a {type(output).__name__}")
    return next((t for t in found if t.shape[:-1] == leading), found[0])


def flat(output):
    """Yield all tensors in what forward returned."""
    if isinstance(output, torch.Tensor):
        yield output
    elif isinstance(output, dict):
        yield from flat(list(output.values()))
    elif is_dataclass(output):
        yield from flat([getattr(output, part.name) for part in fields(output)])
    elif isinstance(output, list | tuple):
        for item in output:
            yield from flat(item)


def ways(module):
    """The ways to call the module's forward, by the names of its arguments, likeliest first."""
    parameters, given, inputs, positional = arguments(module.forward), defaultdict(tuple), 0, True
    for p in parameters:
        kinds = _kinds(module, p, given["names"])
        positional = positional and kinds == ["names"] and p.kind is not p.KEYWORD_ONLY
        if positional:
            inputs += 1
        elif kinds == ["names"]:
            kinds = ["names", "keywords"]
        for kind in kinds:
            given[kind] += (p.name,)
    if len(given["names"]) == 2 and context_number(given["names"]) is not None:
        given["masks"] += given.pop("passed_over", ())  # the context's
    way = Way(inputs=inputs if given["keywords"] else max(inputs, 1), **given)
    others = [] if parameters else [replace(way, inputs=n) for n in (3, 2)]  # forward(*inputs)
    layouts = ["batch", "one sentence"]
    first = getattr(module, "batch_first", None) is False or _tokens_first_inside(module)
    if first or _says_tokens_first(module):
        layouts.insert(0, "tokens first")
    return [replace(w, layout=layout) for w in (way, *others) for layout in layouts]


def _kinds(module, p, names):
    """The fields of a Way that an argument of forward belongs to, after those in `names`."""
    name, needed = p.name.lower(), p.default is p.empty
    if needed and not names:
        return ["names"]
    if MASK.search(name):
        kinds = ["required"] if needed else []
        if not OTHER_MASK.search(name) and not isinstance(p.default, bool | int | str):
            return ["masks", *kinds]
        passed_over = CONTEXT_MASK.search(name) and (needed or p.default is None)
        return ["passed_over", *kinds] if passed_over else kinds
    asked = [
        ("zeros", needed and ZEROS.search(name)),
        ("places", needed and PLACES.search(name)),
        ("empty", needed and CACHE.search(name)),
        ("turns", name == "position_embeddings"),
        ("names", needed or (names and QUERIES.search(names[0].lower()) and KEYS.search(name))),
        ("optional", p.default is None and OPTIONAL.fullmatch(name)),
    ]
    kinds = [kind for kind, fits in asked if fits][:1]
    if kinds == ["names"] and needed and names and NOT_TOKENS.search(name):
        raise CannotCheck(
            f"{type(module).__name__}.forward needs {p.name}, and the check does not know "
            f"what to give for it. Wrap it in a module whose forward(x) gives it."
        )
    return kinds


def _says_tokens_first(module):
    """Whether docstrings, or comments in forward, say that it takes (tokens, batch, d_model)."""
    kind = type(module)
    try:
        lines = inspect.getsource(kind.forward).splitlines()
    except (OSError, TypeError):
        lines = []
    said = [
        kind.__doc__ or "",
        kind.forward.__doc__ or "",
        *(line.partition("#")[2] for line in lines),
    ]
    said = "\n".join(said)
    return bool(TOKENS_FIRST.search(said)) and not BATCH_FIRST.search(said)


def _tokens_first_inside(module):
    """Whether this is one of torch's own blocks, and takes (tokens, batch, d_model)."""
    inside = [part for part in module.modules() if isinstance(part, nn.MultiheadAttention)]
    own = type(module).__module__.startswith("torch.nn.")
    return own and any(not part.batch_first for part in inside)
