"""Run somebody else's module without leaving a trace: a copy, a clock, and the global state."""

import contextlib
import copy
import io
import random
import signal
import threading
import time
import warnings

import numpy
import torch
from torch import nn


class TimeUp(BaseException):
    """The check has run for too long. No `Exception`, so that a module's own except lets it by."""


class Clock:
    """Raises TimeUp `seconds` after it was started; inside a call too, in the main thread.

    In another thread, and on Windows, it is looked at between two calls only.
    """

    def __init__(self, seconds):
        self.seconds, self.start, self._over = seconds, time.monotonic(), False
        self._alarm = hasattr(signal, "setitimer") and (
            threading.current_thread() is threading.main_thread()
        )

    def look(self):
        if time.monotonic() - self.start > self.seconds:
            raise TimeUp

    def __enter__(self):
        if self._alarm:
            self._handler = signal.signal(signal.SIGALRM, self._ring)
            # Again each half second: a bare `except:` in the module may swallow one.
            self._timer = signal.setitimer(signal.ITIMER_REAL, self.seconds, 0.5)
        return self

    def __exit__(self, *error):
        self._over = True
        if self._alarm:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._handler or signal.SIG_DFL)
            if self._timer[0]:  # the caller's own alarm goes on
                left = self._timer[0] - (time.monotonic() - self.start)
                signal.setitimer(signal.ITIMER_REAL, max(left, 0.001), self._timer[1])

    def _ring(self, *_):
        if not self._over:
            raise TimeUp


@contextlib.contextmanager
def untouched():
    """Put back torch's settings and the random states at the end, and keep the module quiet."""
    settings, randomness = read_settings(), _random_states()
    quiet = io.StringIO()
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(quiet),
            contextlib.redirect_stderr(quiet),
            torch.inference_mode(False),
            torch.autocast("cpu", enabled=False),
        ):
            warnings.simplefilter("ignore")
            torch.set_grad_enabled(True)
            torch.set_default_dtype(torch.float32)
            torch.set_num_threads(1)  # small sizes: threads cost more than they bring
            yield
    finally:
        write_settings(settings)
        _set_random_states(randomness)


def read_settings():
    """torch's settings that a forward pass may change by mistake, by name."""
    return {
        "default dtype": torch.get_default_dtype(),
        "gradient mode": torch.is_grad_enabled(),
        "default device": torch.get_default_device(),
        "deterministic mode": torch.are_deterministic_algorithms_enabled(),
        "number of threads": torch.get_num_threads(),
    }


def write_settings(settings):
    torch.set_default_dtype(settings["default dtype"])
    torch.set_grad_enabled(settings["gradient mode"])
    torch.use_deterministic_algorithms(settings["deterministic mode"])
    if settings["number of threads"] != torch.get_num_threads():
        torch.set_num_threads(settings["number of threads"])
    if settings["default device"] != torch.get_default_device():
        torch.set_default_device(settings["default device"])


def _random_states():
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    return torch.get_rng_state(), cuda, random.getstate(), numpy.random.get_state()


def _set_random_states(states):
    cpu, cuda, python, arrays = states
    torch.set_rng_state(cpu)
    if cuda is not None:
        torch.cuda.set_rng_state_all(cuda)
    random.setstate(python)
    numpy.random.set_state(arrays)


def copy_module(module, share=False, instead=()):
    """Return a deep copy without the caller's hooks; with share, of all but the weights.

    instead: (weight, values), a weight that has other values in the copy.

    What deepcopy refuses is helped along: a tensor with a gradient history is detached, a
    generator cloned, and any other object that cannot be copied is shared.
    """
    shared = [*module.parameters(), *_plain_weights(module)] if share else []
    memo = {id(weight): weight for weight in shared}
    if instead:
        weight, values = instead
        other = nn.Parameter(values) if isinstance(weight, nn.Parameter) else values
        memo[id(weight)] = other.requires_grad_(weight.requires_grad)
    try:
        copied = copy.deepcopy(module, dict(memo))
    except Exception:
        copied = _copy_with_help(module, memo)
    for part in copied.modules():
        _drop_hooks(part)
    return copied


def _plain_weights(module):
    return [
        thing
        for _, thing in reachable(module)
        if isinstance(thing, torch.Tensor) and thing.is_leaf and thing.requires_grad
    ]


def _copy_with_help(module, memo):
    for part in module.modules():
        for value in vars(part).values():
            _help_copy(value, memo)
    try:
        return copy.deepcopy(module, memo)
    except Exception:  # a __deepcopy__ of its own that raises
        copied = type(module).__new__(type(module))
        memo[id(module)] = copied
        copied.__dict__.update(copy.deepcopy(vars(module), memo))
        return copied


def _help_copy(value, memo):
    if isinstance(value, torch.Tensor):
        if not value.is_leaf:
            memo[id(value)] = value.detach().clone()
    elif isinstance(value, torch.Generator):
        memo[id(value)] = torch.Generator(value.device).set_state(value.get_state())
    elif isinstance(value, nn.Module):
        return
    elif isinstance(value, dict):
        for item in list(value.values()):
            _help_copy(item, memo)
    elif isinstance(value, list | tuple | set):
        for item in list(value):
            _help_copy(item, memo)
    else:
        try:
            copy.deepcopy(value, dict(memo))
        except Exception:
            memo[id(value)] = value


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
)


def _drop_hooks(part):
    """Remove the hooks, save those by which torch itself computes a weight (weight_norm)."""
    for name in _HOOKS:
        hooks = getattr(part, name, None)
        for key, hook in list((hooks or {}).items()):
            if not str(getattr(hook, "__module__", "")).startswith("torch."):
                del hooks[key]


def reachable(module):
    """Yield (path, tensor or module) for what stands in plain attributes.

    Those are the tensors and modules that `parameters()`, `buffers()` and `modules()` do not
    find: in a list, a dict, or a plain attribute.
    """
    seen = {id(part) for part in module.modules()}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in ("_parameters", "_buffers", "_modules", *_HOOKS):
                yield from _inside(f"{path}.{name}".lstrip("."), value, seen, 0)


def _inside(path, value, seen, depth):
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth > 4 or id(value) in seen:
        return
    elif isinstance(value, nn.Module):
        seen.add(id(value))
        yield path, value
        for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
            yield f"{path}.{name}", tensor
        for name, part in value.named_modules():
            for inner, thing in vars(part).items():
                if name not in _HOOKS and inner not in ("_parameters", "_buffers", "_modules"):
                    yield from _inside(f"{path}.{name}.{inner}", thing, seen, depth + 1)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from _inside(f"{path}[{key!r}]", item, seen, depth + 1)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _inside(f"{path}[{index}]", item, seen, depth + 1)
    elif hasattr(value, "__dict__") and not callable(value) and depth < 2:
        seen.add(id(value))
        for name, item in vars(value).items():
            yield from _inside(f"{path}.{name}", item, seen, depth + 1)
