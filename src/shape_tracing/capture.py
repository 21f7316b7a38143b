"""See each torch operation as it happens. Nothing of torch or of the module is changed."""

import linecache
import os
import re
import sys
import types
from dataclasses import dataclass
from functools import cache, partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode


class Visit(NamedTuple):
    """One run of a module.

    path: where the module stands, "" for the outermost. run: 1 for its first run, 2 for its
    second, … (a run without an operation does not count). others: the further paths of a
    module that stands in several places; which of them was meant, torch does not tell.
    """

    path: str
    run: int
    others: tuple = ()


@dataclass(slots=True)
class Call:
    """One torch operation: what went in, what came out, and where it stands in the code.

    name: the plain name, such as "view", "matmul", "mT", "index" for x[...], "assign" for
    x[...] = v. function: torch's own function object.
    visits: the modules that were running, the outermost first; path: the path of the last,
    such as "layers.0.W_query", "" for the module that was called.
    where: (file, line number) of the learner's code; line: its text.
    args, kwargs: the arguments as they were before the call, each tensor replaced by what
    `Capture` keeps of it; inputs: those kept tensors alone, in order.
    inner: the operations inside, for the composites that torch shows as one call.
    output: what was kept of the result (a tuple for several); None where the call raised.
    relation: "new", "view", "in place" or "same object", decided by storage, not by name.
    error: the exception where the call raised.
    """

    name: str
    function: object
    visits: tuple
    where: tuple
    args: tuple
    kwargs: dict
    inputs: list
    inner: list
    output: object = None
    relation: str = ""
    error: Exception | None = None

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

    def _record(self, name, function, place, run, args, kwargs, inner=()):
        """place: the visits and the (file, line number); run: does the operation."""
        tensors, inputs = [], []
        kept = tuple(_map_each(args, self.keep, tensors, inputs))
        named = _map(kwargs, self.keep, tensors, inputs) if kwargs else {}
        versions = _versions(tensors)
        visits, where = place
        call = Call(name, function, visits, where, kept, named, inputs, inner)
        try:
            output = run(*args, **kwargs)
        except Exception as error:
            call.error = error
            self.calls.append(call)
            del call  # which the error's traceback would hold
            raise
        result = args[0] if name == "assign" else output  # x[...] = v gives None
        if isinstance(result, Tensor):  # nearly always
            call.relation = _relation(result, tensors, versions, name, function)
            call.output = self.keep(result)
            self.calls.append(call)
        elif isinstance(result, _NESTS):
            several = []
            call.output = _map(result, self.keep, several, [])
            relations = [_relation(one, tensors, versions, name, function) for one in several]
            call.relation = ", ".join(dict.fromkeys(relations))
            if several:  # else it gave no tensor
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
    evaluation mode is left for the written-out one, which differs by rounding. What a module
    was given is kept alive until the operation after it.
    """

    def __init__(self, module=None, keep=copy):
        super().__init__()
        self.keep, self.calls = keep, []
        self.paths = _module_paths(module)
        self._around = ()  # the visits outside of this capture
        self._running = {}  # the frame of each running module: its visits, the outermost first
        self._runs = {}  # how often each module ran
        self._start = None  # the frame that holds the `with` block, as a rule
        self._outside = None  # the frame of the module that runs around it

    def __enter__(self):
        self._start = self._outside = sys._getframe(1)
        while self._outside and self._outside.f_code is not _MODULE_RUNS:
            self._outside = self._outside.f_back
        return super().__enter__()

    def __exit__(self, *error):
        self._running.clear()  # first, as what is let go of may run operations
        self._start = self._outside = None
        return super().__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = plain_name(function)
        if name is None:
            return function(*args, **kwargs)
        place = self._place(sys._getframe(1))
        if name not in _COMPOSITE:
            return self._record(name, function, place, function, args, kwargs)
        inner = []
        run = partial(self._opened, function, place, inner)
        return self._record(name, function, place, run, args, kwargs, inner)

    def _opened(self, function, place, inner, *args, **kwargs):
        """Run one of the two operations that torch shows as one call, and list what is inside.

        Where one kernel does scaled_dot_product_attention, there is nothing to open.
        """
        if function is F.multi_head_attention_forward:
            # Its first lines ask whether somebody watches, and if so hand the call over whole.
            # This copy of it is told no, so it runs on and its parts are seen.
            function = _unwatched(function)
            inside = _Inside(self.keep, inner, place)
        elif function is F.scaled_dot_product_attention and not _is_fused(args, kwargs):
            inside = _Kernels(self.keep, inner, place)
        else:
            return function(*args, **kwargs)
        with inside:
            return function(*args, **kwargs)

    def _place(self, frame):
        """Return the visits and (file, line number) of a frame, by a walk out to the `with`.

        The line is the nearest that is neither torch's own nor ours, or torch's nearest. A
        module that runs has a frame of nn.Module._call_impl; it is kept until the next
        operation, so that a second run is told from the first.
        """
        running, start, outside = self._running, self._start, self._outside
        line = nearest = known = None
        entered = []
        while frame and frame is not outside and not (known and line):
            code = frame.f_code
            if code is _MODULE_RUNS:
                if frame in running:
                    known = known or frame
                else:
                    entered.append(frame)
            elif line is None:
                file = code.co_filename
                if not file.startswith(_TORCH):
                    if not file.startswith(_HERE):
                        line = frame
                elif code is _HANDS_OVER:  # called by a torch function that passes itself on
                    frame = frame.f_back
                elif nearest is None:
                    nearest = frame
            frame = None if frame is start else frame.f_back
        while running and next(reversed(running)) is not known:
            running.popitem()  # it has ended
        visits = running[known] if known else self._around
        for inner in reversed(entered):
            visits = running[inner] = (*visits, self._visit(inner.f_locals["self"], visits))
        line = line or nearest
        return visits, (line.f_code.co_filename, line.f_lineno) if line else ("", 0)

    def _visit(self, module, visits):
        run = self._runs[module] = self._runs.get(module, 0) + 1
        paths = self.paths.get(module)
        if paths and len(paths) == 1:
            return Visit(paths[0], run)
        around = visits[-1].path if visits else ""
        if not paths:
            name = type(module).__name__
            return Visit(f"{around}.{name}" if around else name, run)
        fitting = [path for path in paths if path.rpartition(".")[0] == around]
        fitting = fitting or [path for path in paths if path.startswith(f"{around}.")] or paths
        return Visit(fitting[0], run, tuple(fitting[1:]))


class _Inside(Capture):
    """A capture inside one call, listed there."""

    def __init__(self, keep, calls, place):
        super().__init__(keep=keep)
        visits, _ = place
        self.calls, self._around = calls, visits


class _KernelRecorder(_Recorder):
    """What `_Kernels` does. Torch loads its compiler for a mode whose own class has the method."""

    def __init__(self, keep, calls, place):
        super().__init__()
        self.keep, self.calls, self.place = keep, calls, place

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = function.overloadpacket.__name__
        if name == "detach":
            return function(*args, **kwargs)
        return self._record(name, function, self.place, function, args, kwargs)


class _Kernels(_KernelRecorder, TorchDispatchMode):
    """The kernels inside one call, below autograd: torch shows nothing finer there."""


_COMPOSITE = {"multi_head_attention_forward", "scaled_dot_product_attention"}
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
_SILENT |= {"__set__"}  # x.grad = ... gives no tensor
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
    if name in _SILENT:
        return None
    if not name.startswith("__"):
        return name
    if name in _PLAIN:
        return _PLAIN[name]
    if match := _AUGMENTED.fullmatch(name):
        return match[1] + "_"
    match = _REFLECTED.fullmatch(name)
    return match[1] if match else name.strip("_")


_NESTS = (list, tuple, dict)
_LEAVES = {int, float, bool, str, slice, type(None), type(...), torch.Size, torch.dtype}


def _map(nest, keep, tensors, kept):
    """Return the same nest of lists, tuples and dicts with each tensor t replaced by keep(t).

    Adds each t to `tensors` and each keep(t) to `kept`.
    """
    if isinstance(nest, dict):
        return dict(zip(nest, _map_each(nest.values(), keep, tensors, kept), strict=True))
    items = _map_each(nest, keep, tensors, kept)
    return items if isinstance(nest, list) else tuple(items)


def _map_each(items, keep, tensors, kept):
    mapped = []
    for item in items:
        if type(item) in _LEAVES:  # most arguments: told first, as this runs for each of them
            pass
        elif isinstance(item, Tensor):
            tensors.append(item)
            item = keep(item)
            kept.append(item)
        elif isinstance(item, _NESTS):
            item = _map(item, keep, tensors, kept)
        mapped.append(item)
    return mapped


def tensors_in(nest):
    """Return the tensors in a nest of lists, tuples and dicts."""
    found = []
    _map(nest, id, found, [])
    return found


def _versions(tensors):
    """How often each tensor's values were written to; None where one is an inference tensor."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:
        return [None if tensor.is_inference() else tensor._version for tensor in tensors]


def _relation(result, inputs, versions, name, function):
    """Compare a result with the inputs, whose versions were read before the call."""
    for at, tensor in enumerate(inputs):
        if result is tensor:
            return "in place" if _written(tensor, versions[at], name, function) else "same object"
    return "view" if _shares_storage(result, inputs) else "new"


def _shares_storage(result, inputs):
    try:
        address = torch._C._storage_address
        return address(result) in map(address, inputs)
    except NotImplementedError:  # a sparse tensor has several, one inside torch.vmap none
        return any(torch._C._is_alias_of(result, tensor) for tensor in inputs)


def _written(tensor, version, name, function):
    if isinstance(function, torch._ops.OpOverload):  # a kernel: it counts no versions
        return function._schema.is_mutable
    if version is None:
        return name.endswith("_") or name == "assign"
    return tensor._version != version


def _is_fused(args, kwargs):
    """Whether torch does this scaled_dot_product_attention in one kernel; False if unknown."""
    try:
        return torch._fused_sdp_choice(*args, **kwargs) != SDPBackend.MATH.value
    except (AttributeError, RuntimeError, NotImplementedError, TypeError):
        return False


_HERE = os.path.dirname(__file__) + os.sep
_TORCH = os.path.dirname(torch.__file__) + os.sep
_HANDS_OVER = torch.overrides.handle_torch_function.__code__
_MODULE_RUNS = nn.Module._call_impl.__code__


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
