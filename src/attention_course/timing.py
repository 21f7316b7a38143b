"""Honest comparisons: the same result first, then times taken in turns, with their spread.

Times come from `torch.utils.benchmark`, with torch's own number of threads; it waits for a
CUDA device before it reads the clock. Memory is measured in a fresh process.
"""

import functools
import inspect
import itertools
import logging
import os
import platform
import subprocess
import sys
from dataclasses import dataclass

import torch
from torch import nn

from .attention import LoopedMultiHeadAttention, MultiHeadAttention
from .bars import bar
from .tables import power_text, table, table_text

# Torch's timer loads what builds extensions, which warns where CUDA's compiler stands without a
# device. Nothing here builds one.
_builder = logging.getLogger("torch.utils.cpp_extension")
_builder.disabled = True
from torch.utils.benchmark import Timer  # noqa: E402

_builder.disabled = False

FEWEST_ROUNDS, MOST_ROUNDS = 5, 101
BLOCK_SECONDS = 0.005  # a fast function is called as often as fills this


def compare_times(functions, *inputs, gradients=False, seconds=2.0, tolerance=1e-5):
    """Show that all functions compute the same, then time them in turns: `Times`.

    functions: {name: function or module}, two or more, each called as function(*inputs). Of
    several results the first counts: the output of (output, weights). gradients=True times
    forward and backward together, with gradients for the inputs and all parameters; without
    it, none are recorded. seconds: about how long to measure in all, though never fewer than
    five rounds. tolerance: the largest difference allowed, as a share of the largest value.

    Before a clock starts, every result (and every gradient of an input) is compared with the
    first function's, and so is the number of parameters wherever modules are known: the
    module given, or those that the function's code names. In each round every function
    runs once, in a changing order, so that a slow moment of the machine meets all of them.
    Raises ValueError where there is nothing to compare, a function raises or changes its
    input, or results or parameter counts differ.
    """
    _check_functions(functions)
    parameters = _parameters(functions)
    if gradients:
        _check_gradients(parameters)
        inputs = [_leaf(value) for value in inputs]
        functions = {
            name: functools.partial(_forward_backward, function, parameters[name])
            for name, function in functions.items()
        }
    with torch.set_grad_enabled(gradients):
        _check_equal(functions, inputs, tolerance, gradients)
        seconds = take_turns(functions, inputs, seconds)
    return Times(seconds, machine(inputs), tolerance, gradients)


def take_turns(functions, inputs, seconds):
    """Return {name: [seconds per call, one a round]}; every round calls each function.

    `compare_times` without its proof of equality, for work that is not the same.
    """
    timers = {
        name: Timer(
            "function(*inputs)",
            globals={"function": function, "inputs": inputs},
            num_threads=torch.get_num_threads(),
        )
        for name, function in functions.items()
    }
    once = {name: timer.timeit(1).median for name, timer in timers.items()}
    calls = {name: max(1, round(BLOCK_SECONDS / one)) for name, one in once.items()}
    # each block comes after two calls that do not count, which torch makes to warm up
    round_seconds = sum((calls[name] + 2) * once[name] for name in timers)
    rounds = min(MOST_ROUNDS, max(FEWEST_ROUNDS, round(seconds / round_seconds)))
    taken = {name: [] for name in timers}
    order = list(timers)
    for _ in bar(range(rounds), "timing", delay=1, leave=False):
        for name in order:
            taken[name].append(timers[name].timeit(calls[name]).median)
        order = [*order[1:], order[0]]
    return taken


@dataclass(frozen=True, repr=False)
class Times:
    """Seconds per call, round by round: {name: [seconds, ...]}, all functions in each round.

    Shows itself as a picture in a notebook; `print` gives the table. `.machine` names device,
    threads and versions.
    """

    seconds: dict
    machine: str
    tolerance: float
    gradients: bool = False

    def median(self, name):
        """Return the median time of one call, in seconds."""
        return self.quartiles(name)[1]

    def quartiles(self, name):
        """Return the lower quartile, the median and the upper quartile, in seconds."""
        return _quartiles(self._of(name))

    def ratios(self, name, other):
        """Return the time of `name` divided by the time of `other`, one number a round."""
        return [a / b for a, b in zip(self._of(name), self._of(other), strict=True)]

    def ratio(self, name, other):
        """Return the median over the rounds of time of `name` / time of `other`."""
        return _quartiles(self.ratios(name, other))[1]

    def rows(self):
        """Return a dict for each function: name, median and quartiles, ratio to the first."""
        first = next(iter(self.seconds))
        rows = []
        for name in self.seconds:
            low, median, high = self.quartiles(name)
            ratio_low, ratio, ratio_high = _quartiles(self.ratios(name, first))
            rows.append(
                {
                    "name": name,
                    "median": median,
                    "quartiles": [low, high],
                    "ratio": ratio,
                    "ratio_quartiles": [ratio_low, ratio_high],
                }
            )
        return rows

    def table(self):
        """Show median, quartiles and ratio to the first function, and the machine."""
        table(*self._cells())
        print(self._note())

    def __str__(self):
        return f"{table_text(*self._cells())}\n{self._note()}"

    def _cells(self):
        """Return (cells, row names, column names)."""
        first = next(iter(self.seconds))
        cells = [
            [
                duration(row["median"]),
                "{} to {}".format(*map(duration, row["quartiles"])),
                f"{row['ratio']:.3g}",
                "{:.3g} to {:.3g}".format(*row["ratio_quartiles"]),
            ]
            for row in self.rows()
        ]
        return (
            cells,
            list(self.seconds),
            ["median", "quartiles", f"ratio to {first}", "ratio quartiles"],
        )

    def _note(self):
        rounds = len(next(iter(self.seconds.values())))
        what = "forward and backward" if self.gradients else "forward, no gradients"
        equal = f"results equal to {power_text(self.tolerance)} of the largest value"
        return f"{what}; {rounds} rounds in turns; {equal}\n{self.machine}"

    def _of(self, name):
        if name not in self.seconds:
            raise ValueError(f"{name!r} was not timed. Timed: {', '.join(self.seconds)}.")
        return self.seconds[name]

    def picture(self):
        """Return a `Picture`: the median of each function as a bar, its quartiles as a line."""
        from .figures import time_bars

        return time_bars(
            {name: self.quartiles(name) for name in self.seconds},
            "seconds per call (bar: median, line: quartiles)",
            "Forward and backward" if self.gradients else "Forward",
            duration,
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = self.picture()._repr_mimebundle_()
        return {**data, "text/plain": str(self)}, metadata


@dataclass(frozen=True)
class Line:
    """seconds = start + price * heads; both numbers in seconds."""

    start: float
    price: float

    def __call__(self, heads):
        return self.start + self.price * heads


def price_per_head(heads, seconds):
    """Return the straight `Line` through points (heads, seconds), fitted to relative error.

    Each point counts by its deviation in per cent: otherwise the slowest alone would decide.
    Raises ValueError for fewer than two different numbers of heads, or a time of 0 or less.
    """
    if len(heads) != len(seconds) or len(set(heads)) < 2:
        raise ValueError(
            f"A line needs one time for each number of heads and two different numbers of "
            f"heads, but heads = {list(heads)} and there are {len(seconds)} times."
        )
    if min(seconds) <= 0:
        raise ValueError(f"Every time must be above 0, but seconds = {list(seconds)}.")
    counts = torch.tensor(heads, dtype=torch.float64)
    times = torch.tensor(seconds, dtype=torch.float64)
    points = torch.stack([torch.ones_like(counts), counts], dim=1)  # (points, 2)
    target = torch.ones(len(times), 1, dtype=torch.float64)
    start, price = torch.linalg.lstsq(points / times[:, None], target).solution[:, 0].tolist()
    return Line(start, price)


@dataclass(frozen=True, repr=False)
class TimeMap:
    """The loop's time divided by the split's, for heads (down) and sizes (across).

    written_out, fused: tensors (heads, sizes), above 1 where the loop is slower. sizes:
    (batch, tokens) each, at one d_model.
    """

    heads: list
    sizes: list
    d_model: int
    written_out: torch.Tensor
    fused: torch.Tensor
    machine: str

    def loop_wins(self):
        """Return where the loop beat the split written out: Boolean (heads, sizes)."""
        return self.written_out < 1

    def __str__(self):
        from shape_tracing.terminal import printable

        columns = [f"{batch}×{tokens}" for batch, tokens in self.sizes]
        told = [
            f"loop / split written out, d_model {self.d_model}; columns: batch × tokens",
            table_text(self.written_out, self.heads, columns),
            "loop / split with the fused kernel",
            table_text(self.fused, self.heads, columns),
            self.machine,
        ]
        return printable("\n".join(told))

    def picture(self):
        """Return a `Picture`: two heat maps side by side, a frame where the loop won."""
        from .figures import ratio_maps

        return ratio_maps(
            {"loop / split written out": self.written_out, "loop / split fused": self.fused},
            [str(count) for count in self.heads],
            [f"{batch}×{tokens}" for batch, tokens in self.sizes],
            ("heads", f"batch × tokens, d_model {self.d_model}"),
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = self.picture()._repr_mimebundle_()
        return {**data, "text/plain": str(self)}, metadata


def map_times(heads, sizes, d_model, seconds=0.3):
    """Time loop, split written out and split fused for every count of heads and size: `TimeMap`.

    heads: numbers of heads, each a divisor of d_model. sizes: (batch, tokens) pairs. seconds:
    about how long one cell of the map takes. All three have the same weights and are causal;
    the written-out form is the one that also returns the weights.
    """
    written_out, fused = torch.zeros(2, len(heads), len(sizes))
    cells = list(itertools.product(range(len(heads)), range(len(sizes))))
    for i, j in bar(cells, "map", delay=1, leave=False):
        x = torch.randn(*sizes[j], d_model, generator=torch.Generator().manual_seed(0))
        times = compare_times(loop_and_split(d_model, heads[i]), x, seconds=seconds)
        written_out[i, j] = times.ratio("loop", "split written out")
        fused[i, j] = times.ratio("loop", "split fused")
    return TimeMap(list(heads), list(sizes), d_model, written_out, fused, times.machine)


def loop_and_split(d_model, num_heads, head_dim=None):
    """Return {"loop", "split written out", "split fused"}: the same weights."""
    loop = LoopedMultiHeadAttention(d_model, num_heads, head_dim)
    split = MultiHeadAttention.from_heads(loop)
    return {
        "loop": loop,
        "split written out": functools.partial(split, need_weights=True),
        "split fused": split,
    }


_MEMORY_PROGRAM = """
import resource, sys, torch
from attention_course import MultiHeadAttention
batch, tokens, d_model, num_heads, need_weights = {arguments}

def peak():
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux hands ru_maxrss down from the process that started this one; VmHWM is our own.
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))

split = MultiHeadAttention(d_model, num_heads)
x = torch.randn(batch, tokens, d_model)
with torch.no_grad():
    split(x[:, :16], need_weights=need_weights)  # loads the code and starts the threads
    idle = peak()
    split(x, need_weights=need_weights)
print(peak() - idle)
"""


def peak_memory(batch, tokens, d_model, num_heads, need_weights):
    """Return the bytes that one forward pass of `MultiHeadAttention` needs at its peak.

    Runs in a fresh process and counts what comes on top of the idle process with its weights
    and its input. need_weights=False is the fused kernel, True the written-out form.
    Raises ValueError on Windows, which does not tell the peak.
    """
    if sys.platform == "win32":
        raise ValueError("The peak memory of a process can be read on Linux and macOS only.")
    arguments = (batch, tokens, d_model, num_heads, need_weights)
    program = _MEMORY_PROGRAM.format(arguments=arguments)
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
    }  # the package need not be installed
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    if run.returncode:
        raise ValueError(f"The run with {arguments} failed: {run.stderr.strip()}")
    return int(run.stdout)


def machine(inputs=()):
    """Return one line that names the device of the inputs, the threads and the versions."""
    devices = {value.device for value in inputs if isinstance(value, torch.Tensor)}
    if any(device.type == "cuda" for device in devices):
        device = torch.cuda.get_device_name()
    else:
        capability = torch.backends.cpu.get_cpu_capability()
        device = f"{platform.system()} CPU, {platform.machine()}, {capability}"
    return (
        f"{device}; {torch.get_num_threads()} thread(s); torch {torch.__version__}; "
        f"Python {platform.python_version()}"
    )


def duration(seconds):
    """Return a time as text with three digits: 55 µs, 3.1 ms, 1.2 s."""
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def _quartiles(values):
    points = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)
    return torch.tensor(values, dtype=torch.float64).quantile(points).tolist()


def _check_functions(functions):
    if not isinstance(functions, dict) or len(functions) < 2:
        raise ValueError(
            "A comparison needs two functions or more, with their names: "
            "compare_times({'loop': loop, 'split': split}, x)."
        )
    for name, function in functions.items():
        if not callable(function):
            raise ValueError(f"{name!r} must be a function, but is a {type(function).__name__}.")


def _parameters(functions):
    """Return {name: the parameters of its modules}, checked to be equally many where known."""
    parameters = {
        name: list(nn.ModuleList(_modules(function)).parameters())
        for name, function in functions.items()
    }
    counts = {name: sum(p.numel() for p in known) for name, known in parameters.items() if known}
    if len(set(counts.values())) > 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ValueError(
            f"Modules with different numbers of parameters do different work: {listed}. "
            f"Is there a bias or a W_out in one of them only?"
        )
    return parameters


def _modules(function):
    """Return the modules of a function: itself, the one it is bound to, or those its code names."""
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


def _check_gradients(parameters):
    unknown = [name for name, known in parameters.items() if not known]
    if unknown and len(unknown) < len(parameters):
        raise ValueError(
            f"No parameters are known of {', '.join(unknown)}, so its backward pass would do "
            f"less work than the others'. Give the module, or a function that names it."
        )


def _leaf(value):
    if isinstance(value, torch.Tensor) and value.is_floating_point():
        return value.detach().clone().requires_grad_()
    return value


def _forward_backward(function, parameters, *inputs):
    """Return the output and the gradients of the inputs; leaves every .grad as it was.

    The gradient that arrives at the output is the output itself, as for half its square.
    """
    output = _first(function(*inputs))
    leaves = [value for value in inputs if isinstance(value, torch.Tensor) and value.requires_grad]
    trained = [parameter for parameter in parameters if parameter.requires_grad]
    gradients = torch.autograd.grad(
        output, [*leaves, *trained], output.detach(), materialize_grads=True
    )
    return (output, *gradients[: len(leaves)])


def _check_equal(functions, inputs, tolerance, gradients):
    """Call every function once and compare what it returns with the first one's."""
    results = {}
    for name, function in functions.items():
        before = [value.clone() if isinstance(value, torch.Tensor) else value for value in inputs]
        try:
            result = function(*inputs)
        except Exception as error:
            raise ValueError(f"{name!r} raised {type(error).__name__}: {error}") from error
        _check_unchanged(name, before, inputs)
        results[name] = result if gradients else (_first(result),)
        if not isinstance(results[name][0], torch.Tensor):
            kind = type(results[name][0]).__name__
            raise ValueError(f"{name!r} must return a tensor to be compared, but returned {kind}.")
    (first, wanted), *others = results.items()
    for name, found in others:
        _check_same(f"The results of {name!r} and {first!r}", wanted[0], found[0], tolerance)
        for a, b in zip(wanted[1:], found[1:], strict=True):
            _check_same(f"The input's gradients by {name!r} and {first!r}", a, b, tolerance)


def _check_unchanged(name, before, after):
    for old, new in zip(before, after, strict=True):
        if isinstance(old, torch.Tensor) and not torch.equal(old, new):
            raise ValueError(f"{name!r} changed its input, so the next one would get another.")


def _check_same(what, wanted, found, tolerance):
    if wanted.shape != found.shape:
        shapes = f"{tuple(found.shape)} and {tuple(wanted.shape)}"
        raise ValueError(f"{what} have different shapes, {shapes}: there is nothing to compare.")
    largest = wanted.abs().max().item()
    difference = (found - wanted).abs().max().item()
    if not difference <= tolerance * largest:  # so written, a NaN does not pass
        raise ValueError(
            f"{what} differ by up to {difference:.2g}, with values up to {largest:.2g}: more "
            f"than {power_text(tolerance)} of it. The times of different results compare nothing. "
            f"(A module in training mode draws its dropout anew: .eval() stops that.)"
        )


def _first(result):
    return result[0] if isinstance(result, tuple | list) and result else result
