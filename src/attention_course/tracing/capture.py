"""See each torch operation as it happens. Nothing of torch or of the module is changed."""

import linecache
import os
import re
import sys
import threading
import types
from dataclasses import dataclass, field
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend
from torch.nn.modules import module as torch_modules
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Visit(NamedTuple):
    """One run of a module.

    path: where the module stands, "" for the outermost. run: 1 for its first run, 2 for its
    second, … others: the further paths of a module that stands in several places; which of
    them was meant, torch does not tell.
    """

    path: str
    run: int
    others: tuple = ()


@dataclass(slots=True)
class Call:
    """One torch operation: what went in, what came out, and where it stands in the code.

    name: the plain name, such as "view", "matmul", "mT", "index" for x[...], "assign" for
    x[...] = v. function: torch's own function object.
    args, kwargs: the arguments as they were before the call, each tensor replaced by what
    `Capture` keeps of it; inputs: those kept tensors alone, in order.
    output: what was kept of the result (a tuple for several); None where the call raised.
    relation: "new", "view", "in place" or "same object", decided by storage, not by name.
    visits: the modules that were running, the outermost first; path: the path of the last,
    such as "layers.0.W_query", "" for the module that was called.
    where: (file, line number) of the learner's code; line: its text.
    error: the exception where the call raised.
    inner: the operations inside, for the composites that torch shows as one call.
    """

    name: str
    function: object
    visits: tuple
    where: tuple
    args: tuple = ()
    kwargs: dict = field(default_factory=dict)
    inputs: list = field(default_factory=list)
    output: object = None
    relation: str = ""
    error: Exception | None = None
    inner: list = field(default_factory=list)

    @property
    def path(self):
        return self.visits[-1].path if self.visits else ""

    @property
    def line(self):
        """The source line, without its indentation; "" where there is no source."""
        return linecache.getline(*self.where).strip()


def copy(tensor):
    """Return the tensor's values as they are now, outside autograd."""
    return tensor.detach().clone()


class _Recorder:
    """Runs an operation and lists it in `calls`, with what `keep` keeps of its tensors."""

    def _run(self, call, args, kwargs):
        return call.function(*args, **kwargs)

    def _record(self, call, args, kwargs):
        keep, before = self.keep, []

        def see(tensor):
            before.append((tensor, _version(tensor)))
            kept = keep(tensor)
            call.inputs.append(kept)
            return kept

        call.args, call.kwargs = _map(args, see), kwargs and _map(kwargs, see)
        try:
            output = self._run(call, args, kwargs)
        except Exception as error:
            call.error = error
            self.calls.append(call)
            raise
        relations = {}

        def see_result(tensor):
            relations[_relation(tensor, before, call)] = None
            return keep(tensor)

        result = args[0] if call.name == "assign" else output  # x[...] = v gives None
        call.output = _map(result, see_result)
        if relations:  # else it gave no tensor
            call.relation = ", ".join(relations)
            self.calls.append(call)
        return output


class Capture(_Recorder, TorchFunctionMode):
    """See every torch operation that runs in a `with` block, in order.

        with Capture(model) as seen:
            model(x)
        [call.name for call in seen.calls]

    module: gives the calls their module paths; without it a module goes by its class name.
    keep: what to keep of each tensor, a function of the tensor; `copy` (its values) unless it
    is given. It is called with the inputs *before* the operation runs.
    calls: a list of `Call`. An operation that raises is in the list, with its error.
    paths: {module: its paths}, for the parts of `module`.

    Calls that give no tensor (sizes, numbers, numpy arrays) are not listed, nor is the
    backward pass. Values, gradients and the random state are what they would be without it;
    only torch's fused path of `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` in
    evaluation mode is left for the written-out one, which differs by rounding.
    """

    def __init__(self, module=None, keep=copy):
        super().__init__()
        self.keep, self.calls = keep, []
        self.paths = _module_paths(module)
        self._running, self._runs = (), {}
        self._hooks = ()

    def __enter__(self):
        # Hooks for all modules at once: those that stand in no nn.Module attribute, too.
        thread = threading.get_ident()

        def enter(module, inputs):
            if threading.get_ident() == thread:
                self._running += (self._visit(module),)

        def leave(module, inputs, output):
            if threading.get_ident() == thread:
                self._running = self._running[:-1]

        self._hooks = (
            torch_modules.register_module_forward_pre_hook(enter),
            torch_modules.register_module_forward_hook(leave, always_call=True),
        )
        return super().__enter__()

    def __exit__(self, *error):
        for hook in self._hooks:
            hook.remove()
        return super().__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = plain_name(function)
        if name is None:
            return function(*args, **kwargs)
        call = Call(name, function, self._running, _where(sys._getframe(1)))
        return self._record(call, args, kwargs)

    def _run(self, call, args, kwargs):
        """Run the operation, and open those two that torch shows as one call.

        Where one kernel does scaled_dot_product_attention, there is nothing to open.
        """
        function = call.function
        if function is F.multi_head_attention_forward:
            # Its first lines ask whether somebody watches, and if so hand the call over whole.
            # This copy of it is told no, so it runs on and its parts are seen.
            function = _unwatched(function)
            inside = _Inside(self.keep, call)
        elif function is F.scaled_dot_product_attention and not _is_fused(args, kwargs):
            inside = _Kernels(self.keep, call)
        else:
            return function(*args, **kwargs)
        with inside:
            return function(*args, **kwargs)

    def _visit(self, module):
        run = self._runs[module] = self._runs.get(module, 0) + 1
        paths = self.paths.get(module)
        if paths and len(paths) == 1:
            return Visit(paths[0], run)
        around = self._running[-1].path if self._running else ""
        if not paths:
            name = type(module).__name__
            return Visit(f"{around}.{name}" if around else name, run)
        fitting = [path for path in paths if path.rpartition(".")[0] == around] or paths
        return Visit(fitting[0], run, tuple(fitting[1:]))


class _Inside(Capture):
    """A capture inside one call, listed there, without hooks of its own."""

    def __init__(self, keep, call):
        TorchFunctionMode.__init__(self)
        self.keep, self.calls, self._running = keep, call.inner, call.visits

    __enter__ = TorchFunctionMode.__enter__
    __exit__ = TorchFunctionMode.__exit__


class _Kernels(_Recorder, TorchDispatchMode):
    """The kernels inside one call, below autograd: torch shows nothing finer there."""

    def __init__(self, keep, call):
        super().__init__()
        self.keep, self.calls, self.outer = keep, call.inner, call

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        if name == "detach":
            return function(*args, **kwargs)
        call = Call(name, function, self.outer.visits, self.outer.where)
        return self._record(call, args, kwargs)


_PLAIN = {
    "__getitem__": "index",
    "__setitem__": "assign",
    "__invert__": "bitwise_not",
    "__floordiv__": "floor_divide",
    "__rfloordiv__": "floor_divide",
    "__truediv__": "div",
    "__rdiv__": "div",
    "__mod__": "remainder",
}
_SILENT = {"dim", "size", "numel", "stride", "item", "is_floating_point", "is_contiguous"}
_PROPERTIES = {"T", "H", "mT", "mH", "real", "imag"}  # those that give a tensor to go on with
_REFLECTED = re.compile(r"__r(add|sub|mul|div|pow|matmul|and|or|xor|lshift|rshift|mod)__")
_AUGMENTED = re.compile(r"__i(add|sub|mul|div|pow|and|or|xor|lshift|rshift|mod)__")


@cache
def plain_name(function):
    """Return the name that a learner writes for a torch function; None for what is no step."""
    name = getattr(function, "__name__", type(function).__name__)
    if name == "__get__":  # a property: x.mT, but also x.shape and x.grad
        name = getattr(function.__self__, "__name__", "")
        return name if name in _PROPERTIES else None
    if not name.startswith("__"):
        return None if name in _SILENT else name
    if name in _PLAIN:
        return _PLAIN[name]
    if match := _AUGMENTED.fullmatch(name):
        return match[1] + "_"
    match = _REFLECTED.fullmatch(name)
    return match[1] if match else name.strip("_")


_NESTS = (list, tuple)
_LEAVES = {int, float, bool, str, slice, type(None), type(...), torch.Size, torch.dtype}


def _map(value, keep):
    """Return the same nest of lists, tuples and dicts with each tensor t replaced by keep(t)."""
    kind = type(value)
    if kind in _LEAVES:  # most arguments: told first, as this runs for each of them
        return value
    if isinstance(value, _NESTS):
        items = [_map(item, keep) for item in value]
        return items if kind is list else tuple(items)
    if isinstance(value, torch.Tensor):
        return keep(value)
    if isinstance(value, dict):
        return {key: _map(item, keep) for key, item in value.items()}
    return value


def tensors_in(value):
    """Return the tensors in a nest of lists, tuples and dicts."""
    found = []
    _map(value, found.append)
    return found


def _version(tensor):
    """How often the tensor's values were written to; None for an inference tensor."""
    try:
        return tensor._version
    except RuntimeError:
        return None


def _storage(tensor):
    """The identity of the memory a tensor looks at; None where it has none, as if sparse."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return None


def _relation(output, before, call):
    """Compare a result with the inputs, each given with its version beforehand."""
    storage = _storage(output)
    relation = "new"
    for tensor, version in before:
        if output is tensor:
            return "in place" if _written(tensor, version, call) else "same object"
        if storage is not None and storage == _storage(tensor):
            relation = "view"
    return relation


def _written(tensor, version, call):
    if isinstance(call.function, torch._ops.OpOverload):  # a kernel: it counts no versions
        return call.function._schema.is_mutable
    if version is None:
        return call.name.endswith("_") or call.name == "assign"
    return tensor._version != version


def _is_fused(args, kwargs):
    """Whether torch does this scaled_dot_product_attention in one kernel; False if unknown."""
    try:
        return torch._fused_sdp_choice(*args, **kwargs) != SDPBackend.MATH.value
    except (AttributeError, RuntimeError, NotImplementedError, TypeError):
        return False


_HERE = os.path.dirname(__file__) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HAND_OVER = torch.overrides.__file__


def _where(frame):
    """(file, line number) of the nearest code that is not torch's own, or torch's nearest."""
    nearest = None
    while frame and not (file := frame.f_code.co_filename).startswith(_HERE):
        if not file.startswith(_TORCH):
            return file, frame.f_lineno
        if file == _HAND_OVER:  # called by a torch function that passes itself on: skip both
            frame = frame.f_back
        elif nearest is None:
            nearest = file, frame.f_lineno
        frame = frame.f_back
    return nearest or ("", 0)


def _module_paths(module):
    """Map each module to all its paths: a module used in two places has two."""
    paths = {}
    if module is not None:
        for path, part in module.named_modules(remove_duplicate=False):
            paths.setdefault(part, []).append(path)
    return paths


def _unwatched(function):
    """Return a copy of a torch function that does not ask whether a mode watches it."""
    names = {**function.__globals__, "has_torch_function": lambda tensors: False}
    copied = types.FunctionType(
        function.__code__, names, function.__name__, function.__defaults__, function.__closure__
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied
