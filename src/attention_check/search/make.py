"""How to make the module: as it is, from its class, or by a function of two sizes."""

import inspect
import re

from torch import nn

from ..guard import settings_kept
from ..words import told
from .names import CONTEXTS, DROPOUTS, HEAD_WIDTHS, HEADS, OUT_WIDTHS, WIDTHS, WINDOWS
from .sizes import CONTEXT, D_MODEL, WINDOW


class CannotCheck(ValueError):
    """The module cannot be called in any way that the check knows."""


def build(thing, d_model, num_heads):
    """Return (module, d_model, num_heads) for a module, a class or a factory."""
    if isinstance(thing, nn.Module):
        return getattr(thing, "_orig_mod", thing), d_model, num_heads
    if not callable(thing):
        raise ValueError(
            f"check_attention takes a module such as MyAttention(24, 4), or a function "
            f"f(d_model, num_heads) that makes one, but got a {type(thing).__name__}."
        )
    if d_model and num_heads and d_model % num_heads:
        raise ValueError(
            f"{num_heads} heads cannot share d_model = {d_model}: choose a multiple, such as "
            f"d_model = {6 * num_heads}."
        )
    width = d_model or (D_MODEL if num_heads in (None, 1, 2, 4) else 6 * num_heads)
    fitting = (n for n in (4, 3, 2, 5, 7) if width % n == 0 and n * n != width)
    heads = num_heads or next(fitting, 1)
    if isinstance(thing, type):
        module = build_class(thing, width, heads)
    else:
        name = getattr(thing, "__name__", type(thing).__name__)
        module = _made(lambda: thing(width, heads), name)
    return getattr(module, "_orig_mod", module), width, heads


def of_heads(thing, d_model):
    """A function of the number of heads that makes the module anew; None where it is made."""
    if isinstance(thing, nn.Module):
        return None
    return lambda heads: build(thing, d_model, heads)[0]


def build_class(kind, d_model, num_heads, d_in=None):
    """Make a module of a class whose arguments go by the usual names.

    Whole numbers are given even where they have a default; all else keeps its own.
    """
    sizes = [
        (HEADS, num_heads),
        (OUT_WIDTHS, d_model),
        ([*WIDTHS, "embed", "d", "c", "e"], d_in or d_model),
        (HEAD_WIDTHS, max(d_model // num_heads, 1)),
        (CONTEXTS, CONTEXT),
        (WINDOWS, WINDOW),
        (DROPOUTS, 0.1),
    ]
    known = {name.lower(): size for names, size in sizes for name in names}
    parameters, given, unknown = arguments(kind), {}, []
    for p in parameters:
        needed, name = p.default is p.empty, p.name.lower()
        if name in known and (needed or type(p.default) in (int, type(None))):
            if needed or name not in WINDOWS:
                given[p.name] = known[name]
        elif needed and (size := _by_part_of_a_name(name, d_in or d_model, num_heads)):
            given[p.name] = size
        elif needed:
            unknown.append(p.name)
    needed = [p.name for p in parameters if p.default is p.empty]
    if unknown and len(needed) == 2:  # a width and a number of heads, as usual
        given, unknown = given | dict(zip(needed, (d_in or d_model, num_heads), strict=True)), []
    if unknown or not given:
        raise ValueError(
            f"{kind.__name__}({', '.join(p.name for p in parameters)}): the check does not know "
            f"what to give for {', '.join(unknown) or 'these'}. Write a function of three lines "
            f"instead:\n\n"
            f"def make(d_model, num_heads):\n"
            f"    # every size from d_model and num_heads, so that the check can choose them\n"
            f"    return {kind.__name__}(...)\n\n"
            f"and check_attention(make)."
        )
    return _made(lambda: kind(**given), kind.__name__)


def _by_part_of_a_name(name, width, heads):
    """The size that an argument of an unusual name may stand for; or None."""
    of_heads, of_width = re.search("head", name), re.search(_OF_WIDTH, name)
    return None if bool(of_heads) == bool(of_width) else heads if of_heads else width


_OF_WIDTH = "dim|emb|hid|model|width|feat|chan|size$"


def arguments(function):
    """The parameters of a function or class, without *args and **kwargs; [] where unknown."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def _made(make, name):
    try:
        with settings_kept():
            module = make()
    except Exception as error:
        raise CannotCheck(f"{name} could not be made: {told(error)}") from error
    if not isinstance(module, nn.Module):
        raise CannotCheck(
            f"{name} should return an nn.Module, but returned a {type(module).__name__}. "
            f"A plain function can be wrapped in a module whose forward calls it."
        )
    return module
