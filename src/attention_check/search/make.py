"""How to make the module: as it is, from its class, or by a function of two sizes."""

import inspect

from torch import nn

from ..guard import read_settings, write_settings
from ..words import described, told
from .names import CONTEXTS, DROPOUTS, HEAD_WIDTHS, HEADS, OUT_WIDTHS, WIDTHS
from .sizes import CONTEXT, D_MODEL, NUM_HEADS


class CannotCheck(ValueError):
    """The module cannot be called in any way that the check knows."""


def build(thing, d_model, num_heads):
    """Return (module, d_model, num_heads) for a module, a class or a factory."""
    if isinstance(thing, nn.Module):
        return getattr(thing, "_orig_mod", thing), d_model, num_heads
    if not callable(thing):
        raise ValueError(
            f"check_attention takes a module such as MyAttention(24, 4), or a function "
            f"f(d_model, num_heads) that makes one, but got {described(thing)}."
        )
    if d_model and num_heads and d_model % num_heads:
        raise ValueError(
            f"{num_heads} heads cannot share d_model = {d_model}: choose a multiple, such as "
            f"d_model = {6 * num_heads}."
        )
    width, heads = _choose(d_model, num_heads)
    if isinstance(thing, type):
        module = build_class(thing, width, heads)
    else:
        module = _made(lambda: thing(width, heads), _name(thing))
    return getattr(module, "_orig_mod", module), width, heads


def _choose(d_model, num_heads):
    if d_model is None:
        heads = num_heads or NUM_HEADS
        d_model = D_MODEL if D_MODEL % heads == 0 and heads in (1, 2, 4) else heads * 6
    heads = num_heads
    if heads is None:
        heads = next((n for n in (4, 3, 2, 5, 7) if d_model % n == 0 and n * n != d_model), 1)
    return d_model, heads


def build_class(kind, d_model, num_heads, d_in=None):
    """Make a module of a class whose arguments go by the usual names."""
    try:
        parameters = list(inspect.signature(kind).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    given, unknown = {}, []
    split = any(p.name in OUT_WIDTHS for p in parameters)
    for parameter in parameters:
        value = _argument(parameter.name.lower(), d_model, num_heads, (d_in or d_model), split)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if value is not None and (parameter.default is parameter.empty or _wanted(parameter)):
            given[parameter.name] = value
        elif parameter.default is parameter.empty:
            unknown.append(parameter.name)
    if unknown or not given:
        names = ", ".join(p.name for p in parameters)
        raise ValueError(
            f"{kind.__name__}({names}): the check does not know what to give for "
            f"{', '.join(unknown) or 'these'}. Write a function of three lines instead:\n\n"
            f"def make(d_model, num_heads):\n"
            f"    # every size from d_model and num_heads, so that the check can choose them\n"
            f"    return {kind.__name__}(...)\n\n"
            f"and check_attention(make)."
        )
    return _made(lambda: kind(**given), kind.__name__)


def _argument(name, d_model, num_heads, d_in, split):
    if name in HEADS:
        return num_heads
    if name in OUT_WIDTHS or (name in WIDTHS and not split):
        return d_model
    if name in WIDTHS or name in ("embed", "d", "c", "e"):
        return d_in
    if name in HEAD_WIDTHS:
        return max(d_model // num_heads, 1)
    if name in [context.lower() for context in CONTEXTS]:
        return CONTEXT
    if name in DROPOUTS:
        return 0.1
    return None


def _wanted(parameter):
    """Whole numbers are given even where they have a default; all else keeps its own."""
    return parameter.default is None or type(parameter.default) is int


def _made(make, name):
    before = read_settings()
    try:
        module = make()
    except Exception as error:
        raise CannotCheck(f"{name} could not be made: {told(error)}") from error
    finally:
        write_settings(before)
    if not isinstance(module, nn.Module):
        raise CannotCheck(
            f"{name} should return an nn.Module, but returned {described(module)}. "
            f"A plain function can be wrapped in a module whose forward calls it."
        )
    return module


def _name(thing):
    return getattr(thing, "__name__", type(thing).__name__)
