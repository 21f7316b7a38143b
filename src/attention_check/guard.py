"""Run somebody else's module without leaving a trace: a copy, a clock, and the global state."""

import contextlib
import copy
import io
import random
import signal
import time
import warnings
from collections import OrderedDict
from threading import current_thread, main_thread

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
        self._alarm = hasattr(signal, "setitimer") and current_thread() is main_thread()

    def look(self, *_):
        if not self._over and time.monotonic() - self.start >= self.seconds:
            raise TimeUp

    def __enter__(self):
        if self._alarm:
            self._handler = signal.signal(signal.SIGALRM, self.look)
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


@contextlib.contextmanager
def untouched():
    """Put back torch's settings and the random states at the end, and keep the module quiet."""
    python, arrays, quiet = random.getstate(), numpy.random.get_state(), io.StringIO()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    try:
        with (
            settings_kept(),
            torch.random.fork_rng(gpus),
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
        random.setstate(python)
        numpy.random.set_state(arrays)


# What a forward pass may change by mistake: how it is read, and how it is set.
_SETTINGS = {
    "default dtype": (torch.get_default_dtype, torch.set_default_dtype),
    "gradient mode": (torch.is_grad_enabled, torch.set_grad_enabled),
    "default device": (torch.get_default_device, torch.set_default_device),
    "deterministic mode": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "number of threads": (torch.get_num_threads, torch.set_num_threads),
}


def read_settings():
    """torch's settings, by name."""
    return {name: read() for name, (read, _) in _SETTINGS.items()}


@contextlib.contextmanager
def settings_kept():
    """Yield torch's settings by name, and put them back at the end."""
    before = read_settings()
    try:
        yield before
    finally:
        for name, (read, write) in _SETTINGS.items():
            if read() != before[name]:
                write(before[name])


def copy_module(module, share=False, instead=()):
    """Return a deep copy without the caller's hooks; with share, of all but the weights.

    instead: (weight, values), a weight that has other values in the copy.
    """
    memo = {id(weight): weight for weight in weights_of(module).values()} if share else {}
    for part in module.modules():  # deepcopy takes most of its time for empty lists of hooks
        empty = (vars(part)[name] for name in _HOOKS if not vars(part).get(name, True))
        memo |= {id(hooks): OrderedDict() for hooks in empty}
    if instead:
        weight, values = instead
        other = nn.Parameter(values) if isinstance(weight, nn.Parameter) else values
        memo[id(weight)] = other.requires_grad_(weight.requires_grad)
    try:
        copied = copy.deepcopy(module, dict(memo))
    except Exception:
        copied = _copy_with_help(module, memo)
    for part in copied.modules():
        for name in _HOOKS:
            hooks = vars(part).get(name, {})
            for key, hook in list(hooks.items()):
                # torch itself computes some weights by a hook (weight_norm)
                if not str(getattr(hook, "__module__", "")).startswith("torch."):
                    del hooks[key]
    return copied


def _copy_with_help(module, memo):
    for part in module.modules():
        _help_copy(vars(part), memo)
    try:
        return copy.deepcopy(module, memo)
    except Exception:  # a __deepcopy__ of its own that raises
        copied = memo[id(module)] = type(module).__new__(type(module))
        copied.__dict__.update(copy.deepcopy(vars(module), memo))
        return copied


def _help_copy(value, memo):
    """A tensor with a history is detached, a generator cloned; what cannot be copied is shared."""
    if isinstance(value, torch.Tensor) and not value.is_leaf:
        memo[id(value)] = value.detach().clone()
    elif isinstance(value, torch.Generator):
        memo[id(value)] = torch.Generator(value.device).set_state(value.get_state())
    elif isinstance(value, dict | list | tuple | set):
        for item in list(value.values() if isinstance(value, dict) else value):
            _help_copy(item, memo)
    elif not isinstance(value, nn.Module):
        try:
            copy.deepcopy(value, dict(memo))
        except Exception:
            memo[id(value)] = value


_OWN = vars(nn.Module())  # what torch itself keeps in each module
_HOOKS = [name for name, value in _OWN.items() if isinstance(value, OrderedDict)]


def weights_of(module):
    """All trainable tensors by path: the registered ones, then those in plain attributes."""
    found = dict(module.named_parameters())
    known = {id(parameter) for parameter in found.values()}
    for path, thing in reachable(module):
        trainable = isinstance(thing, torch.Tensor) and thing.requires_grad and thing.is_leaf
        if trainable and id(thing) not in known:
            known.add(id(thing))
            found[path] = thing
    return found


def reachable(module):
    """Yield (path, tensor or module) for what stands in plain attributes, lists or dicts.

    Those are the ones that `parameters()`, `buffers()` and `modules()` do not find.
    """
    return _attributes("", module, {id(part) for part in module.modules()}, 0)


def _attributes(path, module, seen, depth):
    for name, part in module.named_modules(prefix=path):
        for inner, value in vars(part).items():
            if inner not in _OWN:
                yield from _inside(f"{name}.{inner}".lstrip("."), value, seen, depth)


def _inside(path, value, seen, depth):
    if isinstance(value, torch.Tensor):
        yield path, value
    elif depth > 4 or id(value) in seen:
        return
    elif isinstance(value, nn.Module):
        seen.add(id(value))
        yield path, value
        yield from [*value.named_parameters(path), *value.named_buffers(path)]
        yield from _attributes(path, value, seen, depth + 1)
    elif isinstance(value, dict | list | tuple):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _inside(f"{path}[{key!r}]", item, seen, depth + 1)
    elif hasattr(value, "__dict__") and not callable(value) and depth < 2:
        seen.add(id(value))
        for name, item in vars(value).items():
            yield from _inside(f"{path}.{name}", item, seen, depth + 1)
