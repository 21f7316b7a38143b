"""`trace_shapes`: the operations of one run as rows of shapes, with names for the axes."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import torch
from torch import nn

from . import show, stages
from .capture import Capture, tensors_in
from .fits import what_would_fit

MOST_ARGUMENTS = 48  # characters of an operation's arguments; longer ones are cut
PAIRED = "tokens"  # the name that may stand twice in a shape: scores and masks pair tokens
UNTOLD = ("_stacklevel", "device", "layout", "memory_format", "generator", "out")


class Shape(NamedTuple):
    """One tensor: its sizes, its type, and its name if the module owns it."""

    sizes: tuple
    dtype: torch.dtype
    parameter: str = ""


class _Kept:
    """What the capture keeps of a tensor: as little as can be, for watching costs time."""

    __slots__ = ("dtype", "key", "learns", "sizes")

    def __init__(self, tensor):
        self.sizes, self.dtype, self.learns = tensor.shape, tensor.dtype, tensor.requires_grad
        self.key = id(tensor)  # the tensor's identity, while it lives


@dataclass(slots=True)
class Row:
    """One operation of a trace.

    number: 1, 2, … in the order of the run; inside an opened row "5.1", "5.2", …
    operation: the name; arguments: what was given beside tensors, as text, "(1, 2)".
    inputs, outputs: lists of `Shape`. sources: for each input the number of the row that it
    came from, "input" for what the run was given, "" for a parameter or what was not seen.
    result: "new" (memory of its own), "view" (the input's
    memory), "in place" or "same object". visits: the modules that were running; module: the
    path of the innermost. line: the source line. note: what else is to be said.
    error: torch's message where the operation failed, "" otherwise; fits: what would fit.
    inner: the rows inside a call that torch shows as one.
    """

    number: str
    operation: str
    arguments: str
    inputs: list
    sources: list
    outputs: list
    result: str
    visits: tuple
    line: str
    note: str = ""
    error: str = ""
    fits: str = ""
    inner: list = field(default_factory=list)

    @property
    def module(self):
        return self.visits[-1].path if self.visits else ""


class ShapeTrace:
    """The shapes of one run: `.rows` as data, `.text()`, a table in a notebook, `.picture()`.

    rows: a list of `Row`. output: what the module returned, None where it raised.
    error: the exception that ended the run, or None. notes: sentences that head the trace.
    names: {axis name: size}, as given.
    """

    def __init__(self, title, calls, known, names, output, error, notes):
        self.title, self.names = title, dict(names or {})
        self.output, self.error, self.notes = output, error, notes
        self._calls, self._known = calls, known

    @cached_property
    def rows(self):
        """The rows, written when they are first asked for: the run itself stays quick."""
        return _rows(self._calls, self._known)

    def axes(self, sizes):
        """Return the names of the axes: (2, 5, 12) -> "batch, tokens, d_model".

        A size that has no name stays a number; one that has several reads "batch or num_heads".
        A name is one axis of a shape: an axis of 4 beside a second reads "batch or 4". Only
        tokens may be the last two, as in the scores.
        """
        return [self._axis(size, tuple(sizes)) for size in sizes]

    def _axis(self, size, sizes):
        names = [name for name, known in self.names.items() if known == size]
        squared = PAIRED in names and sizes[-2:] == (size, size)
        told = sizes.count(size) <= len(names) + squared
        return " or ".join(names if names and told else [*names, str(size)])

    @cached_property
    def dtype(self):
        """The type of the first decimal tensor in the run, which the rows do not repeat."""
        shapes = [shape for row in self.rows for shape in (*row.inputs, *row.outputs)]
        decimal = [shape.dtype for shape in shapes if shape.dtype.is_floating_point]
        return decimal[0] if decimal else torch.get_default_dtype()

    def data(self, opened=False):
        """Return the rows as plain dictionaries, for a data frame; opened: inner rows too."""
        return [
            {
                "number": row.number,
                "operation": row.operation,
                "arguments": row.arguments,
                "inputs": [shape.sizes for shape in row.inputs],
                "outputs": [shape.sizes for shape in row.outputs],
                "axes": [tuple(self.axes(shape.sizes)) for shape in row.outputs],
                "result": row.result,
                "module": row.module,
                "line": row.line,
                "note": row.note,
                "error": row.error,
            }
            for row in (unfolded(self.rows) if opened else self.rows)
        ]

    def text(self, opened=False, lines=False):
        """Return the trace as plain text. opened: with inner rows; lines: with source lines."""
        return show.text(self, opened, lines)

    def picture(self, module=None):
        """Draw the stages as blocks; module: only those inside this module path."""
        return stages.picture(self, module)

    def __repr__(self):
        return self.text()

    def _repr_html_(self):
        return show.html(self)


def trace_shapes(module_or_function, /, *inputs, names=None, **keywords):
    """Run a module or function once and return a `ShapeTrace` of every operation in it.

    inputs and keywords go to the module, except names: {"batch": 2, "tokens": 5, …}, which
    writes (batch, tokens, …) beside (2, 5, …). Names go by size, so give sizes that all differ.

    The module is not changed and gives the output, the gradients and the random draws that it
    gives unwatched (`.output` holds what it returned); where torch would have taken its fused
    path, the notes say so. A run that raises does not raise here: its trace ends with the row
    that broke, and `.error` holds the exception. Calls that give no tensor (sizes, numbers,
    numpy arrays), operations inside compiled code and the backward pass are not seen.

    Raises ValueError for what cannot be run, compiled or scripted modules, and names that are
    not a dictionary of whole numbers.
    """
    _check_names(names)
    module = module_or_function if isinstance(module_or_function, nn.Module) else None
    capture = Capture(module, keep=_Kept)
    _check_target(module_or_function, capture.paths)
    known = _known(capture.paths, tensors_in((inputs, keywords)))
    gradients = torch.is_grad_enabled()
    output = error = None
    try:
        with capture:
            output = module_or_function(*inputs, **keywords)
    except Exception as raised:
        error = raised
    title = _title(module_or_function)
    notes = _notes(capture.calls, gradients, names)
    return ShapeTrace(title, capture.calls, known, names, output, error, notes)


def unfolded(rows):
    """Return the rows with each row's inner rows after it."""
    return [one for row in rows for one in (row, *unfolded(row.inner))]


class _Known(NamedTuple):
    """Where tensors come from, by their identity."""

    owned: dict  # parameters and buffers: identity -> name
    made: dict  # all others: identity -> "input" or the number of the row that made it
    rows: dict  # the rows so far: number -> row


def _known(paths, inputs):
    owned = {}
    for module, (path, *_) in paths.items():
        around = f"{path}." if path else ""
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                owned.setdefault(id(tensor), around + name)
    return _Known(owned, {id(tensor): "input" for tensor in inputs}, {})


def _rows(calls, known, outer=""):
    """Turn calls into rows, in order, and note in `known` which row made which tensor."""
    return [_row(call, f"{outer}{number}", known) for number, call in enumerate(calls, start=1)]


def _shape(kept, known):
    return Shape(tuple(kept.sizes), kept.dtype, known.owned.get(kept.key, ""))


def _row(call, number, known):
    sources = [known.made.get(kept.key, "") for kept in call.inputs]
    inner = _rows(call.inner, known, f"{number}.")
    outputs = _kept(call.output)
    known.made.update((kept.key, number) for kept in outputs)
    row = Row(
        number,
        call.name,
        _arguments(call),
        [_shape(kept, known) for kept in call.inputs],
        sources,
        [_shape(kept, known) for kept in outputs],
        call.relation,
        call.visits,
        call.line,
        inner=inner,
    )
    if call.name == "scaled_dot_product_attention" and call.error is None:
        row.note = _scores_note(inner)
    if call.error is not None:
        row.error = str(call.error).strip().partition("\n")[0]
        broken = any(part.error for part in inner)
        before = known.rows.get(sources[0]) if sources else None
        row.fits = "" if broken else what_would_fit(row, call, before)
    known.rows[number] = row
    return row


def _kept(value):
    """Return what was kept in a value: one tensor, a nest of them, or none."""
    if isinstance(value, _Kept):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [kept for part in value for kept in _kept(part)] if _is_nest(value) else []


def _is_nest(value):
    return isinstance(value, tuple | list) and not isinstance(value, torch.Size)


def _arguments(call):
    """Write down what an operation was given beside tensors: (1, 2), (dim=-1), [:, 0]."""
    if call.name == "multi_head_attention_forward":
        return ""  # thirty of them, each an attribute of its module
    if call.name in ("index", "assign"):
        where = call.args[1]
        where = where if type(where) is tuple else (where,)
        return _cut("[" + ", ".join(map(_index, where)) + "]")
    values = [_plain(value) for value in call.args if value is not None and not _kept(value)]
    values += [
        f"{key}={_plain(value)}"
        for key, value in call.kwargs.items()
        if not (key in UNTOLD or value is None or value is False or _kept(value))
    ]
    return _cut("(" + ", ".join(values) + ")") if values else ""


def _index(value):
    if isinstance(value, slice):
        ends = ["" if end is None else _index(end) for end in (value.start, value.stop)]
        step = [] if value.step is None else [_index(value.step)]
        return ":".join(ends + step)
    if value is Ellipsis:
        return "..."
    return str(tuple(value.sizes)) if isinstance(value, _Kept) else _plain(value)


def _plain(value):
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, torch.Size | tuple):
        return str(tuple(value))
    if callable(value):  # as repr has an address
        return getattr(value, "__name__", type(value).__name__)
    if isinstance(value, torch.dtype | torch.device):
        return str(value).removeprefix("torch.")
    return repr(value)


def _cut(text):
    return text if len(text) <= MOST_ARGUMENTS else text[: MOST_ARGUMENTS - 2] + "…" + text[-1]


def _scores_note(inner):
    """Say whether the scores of a scaled_dot_product_attention call ever stood in memory."""
    if any("softmax" in row.operation for row in inner):
        return "opened: torch wrote the scores out"
    return "one fused kernel: no (tokens, tokens) matrix exists"


def _title(target):
    if isinstance(target, nn.Module):
        return type(target).__name__
    name = getattr(target, "__name__", type(target).__name__)
    return "function" if name == "<lambda>" else name


def _notes(calls, gradients, names):
    notes = []
    if any(_could_be_fused(call, gradients) for call in calls):
        notes.append(
            "Unwatched, torch may run this attention as one fused call (evaluation mode, no "
            "gradients). Watched, it takes the written-out path: equal up to rounding."
        )
    sizes = {}
    for name, size in (names or {}).items():
        sizes.setdefault(size, []).append(name)
    for size, same in sizes.items():
        if len(same) > 1:
            known, either = " and ".join(same), " or ".join(same)
            notes.append(f'{known} are {size}: an axis of {size} reads "{either}".')
    return notes


def _could_be_fused(call, gradients):
    """Whether nn.MultiheadAttention might have skipped this call, had nobody watched."""
    if call.name != "multi_head_attention_forward" or call.kwargs.get("training", True):
        return False
    learns = gradients and any(kept.learns for kept in call.inputs)
    return torch.backends.mha.get_fastpath_enabled() and not learns


def _check_target(target, parts):
    if not callable(target):
        raise ValueError(
            f"The first argument must be a module or a function to run, but is a "
            f"{type(target).__name__}. With a module: trace_shapes(module, x)."
        )
    scripted = torch.jit.ScriptModule, torch.jit.ScriptFunction
    if any(isinstance(part, scripted) for part in parts or [target]):
        raise ValueError(
            "Operations inside a scripted or jit-traced module cannot be seen. Trace the plain "
            "module that it was made from."
        )
    compiled = not parts and hasattr(target, "_torchdynamo_orig_callable")
    if compiled or any("_orig_mod" in part._modules for part in parts):
        raise ValueError(
            "Operations inside a compiled module or function cannot be seen. Trace the plain one "
            "that was given to torch.compile."
        )


def _check_names(names):
    if names is None:
        return
    whole = isinstance(names, dict) and all(
        isinstance(name, str) and isinstance(size, int) and not isinstance(size, bool)
        for name, size in names.items()
    )
    if not whole:
        raise ValueError(
            f"names must map each axis name to its size, such as "
            f'{{"batch": 2, "tokens": 5}}, but is {names!r}.'
        )
