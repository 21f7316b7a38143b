"""The other ways to call a module: with what may be left out, with a flag switched."""

from dataclasses import replace

import torch

from ..guard import copy_module
from .make import arguments
from .names import PLACES, SWITCH
from .ways import of_two_widths

MOST_FLAGS = 4  # that are tried, each by itself


def other_ways(subject):
    """The subject called in each other way that runs: an optional context, a flag switched."""
    names = () if _takes_no_context(subject.original) else subject.way.optional
    contexts = [_with_context(subject, name) for name in names]
    parameters = arguments(subject.original.forward)
    flags = [p for p in parameters if type(p.default) is bool]
    places = [p for p in parameters if p.default is None and PLACES.search(p.name)]
    tried = [*contexts, *([_with_flag(subject, p)] for p in flags[:MOST_FLAGS])]
    tried += [[_with_places(subject, p)] for p in places]
    found = (next(filter(_runs, ways), None) for ways in tried)
    return tuple(one for one in found if one is not None)


def _takes_no_context(module):
    """Whether it says so, as transformers' blocks do, which all have such an argument."""
    holders = (h for part in module.modules() for h in (part, getattr(part, "config", None)))
    return any(getattr(holder, "add_cross_attention", None) is False for holder in holders)


def _with_context(subject, name):
    """The ways to give an optional context: as wide as x, or else as another layer takes."""
    way = subject.way
    given = replace(
        way,
        names=(*way.names, name),
        keywords=(*way.keywords, name),
        optional=tuple(other for other in way.optional if other != name),
        masks=way.masks + way.passed_over,
        passed_over=(),
    )
    narrow = of_two_widths(given, subject.original, subject.sizes.d_model)
    return [replace(subject, way=each, given=f"{name} given") for each in (given, *narrow)]


def _with_flag(subject, p):
    """A flag switched. Where it asks for a mask, the future is meant to be hidden."""
    value, causal = not p.default, subject.causal
    if SWITCH.search(p.name):
        causal = True if value and causal is None and "caus" in p.name else causal
    way = replace(subject.way, flags=(*subject.way.flags, (p.name, value)))
    return replace(subject, way=way, causal=causal, given=f"{p.name}={value}")


def _with_places(subject, p):
    way = replace(subject.way, places=(*subject.way.places, p.name))
    return replace(subject, way=way, given=f"{p.name} given")


def _runs(subject):
    """Whether a call gives an output of the right shape, as the usual way does."""
    try:
        with torch.no_grad():
            module = copy_module(subject.pristine, share=True)
            output = subject.call(module, subject.draw(0))
    except Exception:
        return False
    return output.shape[:2] == (subject.sizes.batch, subject.sizes.tokens)
