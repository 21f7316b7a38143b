"""Honest comparisons: the same result first, then times taken in turns, with their spread.

Times come from `torch.utils.benchmark`, with torch's own number of threads; it waits for a
GPU before it reads the clock. Memory is measured in a fresh process.
"""

import functools
import itertools
import logging
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from typing import NamedTuple

import numpy
import torch

from .attention import LoopedMultiHeadAttention, MultiHeadAttention
from .bars import bar
from .fair import check_equal, modules_of, standing_on
from .tables import power_text, table, table_text

# Torch's timer loads what builds extensions, which warns where CUDA's compiler stands without a
# device. Nothing here builds one.
_builder = logging.getLogger("torch.utils.cpp_extension")
_builder.disabled = True
from torch.utils.benchmark import Timer  # noqa: E402

_builder.disabled = False

FEWEST_ROUNDS, MOST_ROUNDS = 5, 101
BLOCK_SECONDS = 0.005  # a fast function is called as often as fills this


def compare_times(functions, *inputs, seconds=2.0, tolerance=1e-5, device=None):
    """Show that all functions compute the same, then time them in turns: `Times`.

    functions: {name: function or module}, two or more, each called as function(*inputs),
    without gradients. Of several results the first counts: the output of (output, weights).
    seconds: about how long to measure in all, though never fewer than five rounds. tolerance:
    the largest difference allowed, as a share of the largest value. device: where to measure,
    such as "cuda": inputs and modules are moved there, and the modules back at the end.

    Before a clock starts, every result is compared with the first function's, and so is the
    number of parameters wherever modules are known: the module given, or those that the
    function's code names. In each round every function runs once, in a changing order, so
    that a slow moment of the machine meets all of them.
    Raises ValueError where there is nothing to compare, a function raises or changes its
    input, results or parameter counts differ, or the device is not there.
    """
    modules = modules_of(functions)
    with torch.no_grad(), standing_on(device, modules, inputs) as inputs:
        check_equal(functions, inputs, tolerance)
        return Times(take_turns(functions, inputs, seconds), machine(inputs), tolerance)


def compare_on_gpu(functions, *inputs, tolerance=1e-4, **options):
    """Show the table of `compare_times` on a CUDA GPU, or say in one line that none is here.

    Arguments as for `compare_times`. tolerance: wider, as a GPU adds in another order.
    """
    if not torch.cuda.is_available():
        print("No CUDA GPU here, so there are the times of the CPU alone.")
        return
    compare_times(functions, *inputs, tolerance=tolerance, device="cuda", **options).table()


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

    def median(self, name):
        """Return the median time of one call, in seconds."""
        return self.quartiles(name)[1]

    def quartiles(self, name):
        """Return the lower quartile, the median and the upper quartile, in seconds."""
        return quartiles(self._of(name))

    def ratios(self, name, other):
        """Return the time of `name` divided by the time of `other`, one number a round."""
        return [a / b for a, b in zip(self._of(name), self._of(other), strict=True)]

    def ratio(self, name, other):
        """Return the median over the rounds of time of `name` / time of `other`."""
        return quartiles(self.ratios(name, other))[1]

    def table(self):
        """Show median, quartiles and ratio to the first function, and the machine."""
        table(*self._table())
        print(self._note())

    def __str__(self):
        return f"{table_text(*self._table())}\n{self._note()}"

    def picture(self):
        """Return a `Picture`: the median of each function as a bar, its quartiles as a line."""
        from .figures import time_bars

        return time_bars(
            {name: self.quartiles(name) for name in self.seconds},
            "seconds per call (bar: median, line: quartiles)",
            "Forward",
            duration,
        )

    def _repr_mimebundle_(self, include=None, exclude=None):
        data, metadata = self.picture()._repr_mimebundle_()
        return {**data, "text/plain": str(self)}, metadata

    def _table(self):
        """Return (cells, row names, column names)."""
        first, cells = next(iter(self.seconds)), []
        for name in self.seconds:
            low, median, high = map(duration, self.quartiles(name))
            ratio_low, ratio, ratio_high = quartiles(self.ratios(name, first))
            spread = f"{ratio_low:.3g} to {ratio_high:.3g}"
            cells.append([median, f"{low} to {high}", f"{ratio:.3g}", spread])
        columns = ["median", "quartiles", f"ratio to {first}", "ratio quartiles"]
        return cells, list(self.seconds), columns

    def _note(self):
        rounds = len(next(iter(self.seconds.values())))
        equal = f"results equal to {power_text(self.tolerance)} of the largest value"
        return f"forward, no gradients; {rounds} rounds in turns; {equal}\n{self.machine}"

    def _of(self, name):
        if name not in self.seconds:
            raise ValueError(f"{name!r} was not timed. Timed: {', '.join(self.seconds)}.")
        return self.seconds[name]


class Line(NamedTuple):
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
    price, start = numpy.polyfit(heads, seconds, 1, w=1 / numpy.array(seconds)).tolist()
    return Line(start, price)


class TimeMap(NamedTuple):
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

    def picture(self):
        """Return a `Picture`: two heat maps side by side, a frame where the loop won."""
        from .figures import ratio_maps

        return ratio_maps(
            {"loop / split written out": self.written_out, "loop / split fused": self.fused},
            [str(count) for count in self.heads],
            [f"{batch}×{tokens}" for batch, tokens in self.sizes],
            ("heads", f"batch × tokens, d_model {self.d_model}"),
        )


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


def peak_memory(batch, tokens, d_model, num_heads, need_weights):
    """Return the bytes that one forward pass of `MultiHeadAttention` needs at its peak.

    Runs in a fresh process and counts what comes on top of the idle process with its weights
    and its input. need_weights=False is the fused kernel, True the written-out form.
    Raises ValueError on Windows, which does not tell the peak.
    """
    if sys.platform == "win32":
        raise ValueError("The peak memory of a process can be read on Linux and macOS only.")
    sizes = (batch, tokens, d_model, num_heads, need_weights)
    program = f"from {__name__} import _peak_of_a_pass; print(_peak_of_a_pass{sizes})"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}  # it need not be installed
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True)
    if run.returncode:
        raise ValueError(f"The run with {sizes} failed: {run.stderr.strip().splitlines()[-1]}")
    return int(run.stdout)


def _peak_of_a_pass(batch, tokens, d_model, num_heads, need_weights):
    split = MultiHeadAttention(d_model, num_heads)
    x = torch.randn(batch, tokens, d_model)
    with torch.no_grad():
        split(x[:, :16], need_weights=need_weights)  # loads the code and starts the threads
        idle = _peak_of_this_process()
        split(x, need_weights=need_weights)
    return _peak_of_this_process() - idle


def _peak_of_this_process():
    if sys.platform == "darwin":
        import resource  # Windows has none

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # Linux hands ru_maxrss down from the process that started this one; VmHWM is our own.
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))


def machine(inputs=()):
    """Return one line that names the device of the inputs, the threads and the versions."""
    if any(isinstance(value, torch.Tensor) and value.is_cuda for value in inputs):
        device = torch.cuda.get_device_name()
    else:
        capability = torch.backends.cpu.get_cpu_capability()
        device = f"{platform.system()} CPU, {platform.machine()}, {capability}"
    versions = f"torch {torch.__version__}; Python {platform.python_version()}"
    return f"{device}; {torch.get_num_threads()} thread(s); {versions}"


def duration(seconds):
    """Return a time as text with three digits: 55 µs, 3.1 ms, 1.2 s."""
    for size, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"


def quartiles(values):
    """Return the lower quartile, the median and the upper quartile."""
    return numpy.quantile(values, [0.25, 0.5, 0.75]).tolist()
