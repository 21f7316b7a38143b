"""What makes a comparison of times fair: equal work, equal results, on one device."""

import contextlib
import functools
import inspect

import torch
from torch import nn

from .tables import power_text


def modules_of(functions):
    """Return {name: the modules of the function}, each an nn.ModuleList; they do equal work.

    A function's modules are itself, the one it is bound to, those that `partial` binds to it,
    or those that its code names. Raises ValueError for fewer than two functions, for what is
    no function, and for modules with different numbers of parameters.
    """
    if not isinstance(functions, dict) or len(functions) < 2:
        raise ValueError(
            "A comparison needs two functions or more, with their names: "
            "compare_times({'loop': loop, 'split': split}, x)."
        )
    for name, function in functions.items():
        if not callable(function):
            raise ValueError(f"{name!r} must be a function, but is a {type(function).__name__}.")
    modules = {name: nn.ModuleList(_modules(function)) for name, function in functions.items()}
    counts = {name: sum(p.numel() for p in known.parameters()) for name, known in modules.items()}
    if len({count for count in counts.values() if count}) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
        raise ValueError(
            f"Modules with different numbers of parameters do different work: {listed}. "
            f"Is there a bias or a W_out in one of them only?"
        )
    return modules


def _modules(function):
    if isinstance(function, functools.partial):
        given = [*function.args, *function.keywords.values()]
        return _modules(function.func) + [m for m in given if isinstance(m, nn.Module)]
    owner = getattr(function, "__self__", function)
    if isinstance(owner, nn.Module):
        return [owner]
    if not inspect.isfunction(function):
        return []
    names = inspect.getclosurevars(function)
    named = [*names.nonlocals.values(), *names.globals.values()]
    return [value for value in named if isinstance(value, nn.Module)]


@contextlib.contextmanager
def standing_on(device, modules, inputs):
    """Move modules to the device, give the inputs there, and move the modules back at the end.

    modules: {name: nn.ModuleList}; each goes back to where its first weight stood. device:
    None moves nothing. Raises ValueError where the device is not there.
    """
    if device is None:
        yield inputs
        return
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError):  # torch raises either, at length
        raise ValueError(f"There is no device {device!r} here; 'cpu' is always there.") from None
    homes = {m: first.device for m in modules.values() for first in [*m.parameters()][:1]}
    try:
        for module in homes:
            module.to(device)
        yield [x.to(device) if isinstance(x, torch.Tensor) else x for x in inputs]
    finally:
        for module, home in homes.items():
            module.to(home)


def check_equal(functions, inputs, tolerance):
    """Call every function once and compare what it returns with the first one's.

    tolerance: the largest difference, as a share of the largest value. Raises ValueError where
    a function raises, changes its input, returns no tensor, or returns another result.
    """
    results = {name: _result(name, function, inputs) for name, function in functions.items()}
    (first, wanted), *others = results.items()
    for name, found in others:
        what = f"The results of {name!r} and {first!r}"
        if wanted.shape != found.shape:
            shapes = f"{tuple(found.shape)} and {tuple(wanted.shape)}"
            raise ValueError(
                f"{what} have different shapes, {shapes}: there is nothing to compare."
            )
        largest = wanted.abs().max().item()
        difference = (found - wanted).abs().max().item()
        if not difference <= tolerance * largest:  # so written, a NaN does not pass
            raise ValueError(
                f"{what} differ by up to {difference:.2g}, with values up to {largest:.2g}: more "
                f"than {power_text(tolerance)} of it. The times of different results compare "
                f"nothing. (A module in training mode draws its dropout anew: .eval() stops that.)"
            )


def _result(name, function, inputs):
    """Return the result, of several the first: the output of (output, weights)."""
    before = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
    try:
        result = function(*inputs)
    except Exception as error:
        raise ValueError(f"{name!r} raised {type(error).__name__}: {error}") from error
    for old, new in zip(before, inputs, strict=True):
        if isinstance(old, torch.Tensor) and not torch.equal(old, new):
            raise ValueError(f"{name!r} changed its input, so the next one would get another.")
    result = result[0] if isinstance(result, tuple | list) and result else result
    if not isinstance(result, torch.Tensor):
        kind = type(result).__name__
        raise ValueError(f"{name!r} must return a tensor to be compared, but returned {kind}.")
    return result
