"""Measure what the course says about speed and memory (`make bench`), in under seven minutes.

Every ratio is the median over rounds in which both sides ran in turns, so compare ratios
rather than times. The tables are printed, and written to bench.json with their quartiles.
With BEFORE=folder in the environment, a checkout of an older state, its check is compared too.
"""

import contextlib
import ctypes
import itertools
import json
import math
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import torch
from bench_check import ROOT, first_check_seconds, planted_seconds

from attention_course import MultiHeadAttention, causal_mask, compare_times
from attention_course.lectures import HEAD_DIM
from attention_course.tables import table
from attention_course.timing import (
    Times,
    duration,
    loop_and_split,
    machine,
    peak_memory,
    quartiles,
    take_turns,
)
from shape_tracing import trace_shapes

RESULT = ROOT / "bench.json"
LOOP_AT_LEAST = {2: 1.2, 20: 7, 200: 22, 400: 26, 4000: 30}  # heads -> loop / split written out
LARGE = (8, 1024, 768, 12)  # batch, tokens, d_model, heads
SIZES = {LARGE: 12, (2, 256, 768, 12): 6, (1, 16, 96, 96): 4}  # -> seconds for a comparison
MEMORY_TOKENS = (1024, 2048, 4096)


def loop_against_split():
    """Yield a row for each number of heads: batch 2, 6 tokens, head width 3, with W_out."""
    for heads, least in LOOP_AT_LEAST.items():
        x = _input(2, 6, 6)
        times = compare_times(loop_and_split(6, heads, HEAD_DIM), x, seconds=3)
        yield _row(f"{heads} heads", times, "loop", "split written out", at_least=least)


def against_torch():
    """Yield rows for `MultiHeadAttention` / `nn.MultiheadAttention`, whichever mode is faster."""
    for (batch, tokens, d_model, heads), seconds in SIZES.items():
        torch.manual_seed(0)
        split, x = MultiHeadAttention(d_model, heads), _input(batch, tokens, d_model)
        mask = causal_mask(tokens)
        fastest = {"need_weights": False, "is_causal": True}
        weights = {"average_attn_weights": False}
        for what, ours, keywords, backward, most in (
            ("forward", split, fastest, False, 1.00),
            ("forward and backward", split, fastest, True, 1.00),
            ("forward with weights", partial(split, need_weights=True), weights, False, 1.20),
        ):
            modes = ("train",) if backward else ("train", "eval")  # eval differs without only
            ways = {"ours": (ours, split)}
            for mode in modes:
                theirs = split.to_torch().train(mode == "train")
                ways[mode] = partial(_call, theirs, attn_mask=mask, **keywords), theirs
            ways = {
                name: with_backward(way, module) if backward else way
                for name, (way, module) in ways.items()
            }
            times = compare_times(ways, x, seconds=seconds)
            better = min(modes, key=times.median)
            name = f"{(batch, tokens, d_model, heads)} {what}, {better}"
            yield _row(name, times, "ours", better, at_most=most)


def with_backward(function, module):
    """Return x -> the gradient at x, worked out with the gradients of the module's parameters.

    The gradient that arrives at the output is the output itself, as for half its square.
    """

    def run(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            output = function(x)
            output = output[0] if isinstance(output, tuple) else output
            leaves = [x, *module.parameters()]
            return torch.autograd.grad(output, leaves, output.detach())[0]

    return run


def against_the_limit():
    """Yield the row that divides our time by that of its arithmetic alone, at full speed."""
    batch, tokens, d_model, heads = LARGE
    side = 3072
    square = torch.randn(side, side)
    projections = 4 * 2 * batch * tokens * d_model**2
    scores_and_context = 2 * 2 * batch * tokens**2 * d_model / 2  # half of it lies in the future
    share = (projections + scores_and_context) / (2 * side**3)
    with torch.no_grad():
        split, x = MultiHeadAttention(d_model, heads), _input(batch, tokens, d_model)
        ways = {"ours": lambda: split(x), "product": lambda: square @ square}
        taken = take_turns(ways, [], seconds=12)
    taken["limit"] = [share * seconds for seconds in taken["product"]]
    times = Times(taken, machine(), math.nan)
    speed = 2 * side**3 / times.median("product") / 1e9
    yield _row(f"{LARGE} forward; product: {speed:.0f} Gflop/s", times, "ours", "limit")


def memory():
    """Yield the peak above the idle process, fused / written out, (1, tokens, 256, 8)."""
    for tokens in MEMORY_TOKENS:
        fused, written_out = (peak_memory(1, tokens, 256, 8, flag) for flag in (False, True))
        name = f"{tokens} tokens: {fused / 2**20:.0f} / {written_out / 2**20:.0f} MiB"
        most = 0.10 if tokens == max(MEMORY_TOKENS) else None
        yield {"measured": name, "value": fused / written_out, "at most": most}


def imports():
    """Yield the row for the time to import the course / the time to import torch."""
    taken = {"attention_course": [], "torch": []}
    for round_number in range(10):
        for name in taken:
            seconds = _import_seconds(name)
            if round_number:  # the first round only brings the files into memory
                taken[name].append(seconds)
    times = Times(taken, machine(), math.nan)
    yield _row("import", times, "attention_course", "torch", at_most=1.10)


def check():
    """Yield rows for the check: planted modules now / before, and a first check in seconds."""
    sources = {"now": ROOT / "src"}
    if "BEFORE" in os.environ:
        sources["before"] = Path(os.environ["BEFORE"]).resolve() / "src"
    times = Times(planted_seconds(sources), machine(), math.nan)
    medians = " / ".join(duration(times.median(name)) for name in sources)
    planted = f"{len(times.seconds['now'])} planted modules, {medians}"
    if "before" in sources:  # 2 %: what the same check twice may differ by
        yield _row(planted, times, "now", "before", at_most=1.02)
    else:
        yield {"measured": f"{planted} (BEFORE=folder compares)", "value": times.median("now")}
    imported, beyond = first_check_seconds()
    low, median, high = quartiles(beyond)
    ratio = 1 + median / quartiles(imported)[1]
    name = f"first check, seconds beyond `import torch` (in all {ratio:.2f} times that import)"
    yield {"measured": name, "value": median, "quartiles": [low, high], "at most": 0.5}


class ByHand(torch.nn.Module):
    """Causal attention as a learner writes it: every step from the scores to the context."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, d_model // num_heads
        self.W_query = torch.nn.Linear(d_model, d_model, bias=False)
        self.W_key = torch.nn.Linear(d_model, d_model, bias=False)
        self.W_value = torch.nn.Linear(d_model, d_model, bias=False)
        self.W_out = torch.nn.Linear(d_model, d_model)

    def forward(self, x):
        batch, tokens, d_model = x.shape
        per_head = (batch, tokens, self.num_heads, self.head_dim)
        queries = self.W_query(x).view(per_head).transpose(1, 2)
        keys = self.W_key(x).view(per_head).transpose(1, 2)
        values = self.W_value(x).view(per_head).transpose(1, 2)
        scores = queries @ keys.transpose(2, 3) / math.sqrt(self.head_dim)
        hidden = torch.triu(torch.ones(tokens, tokens, dtype=torch.bool), diagonal=1)
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), dim=-1)
        context = (weights @ values).transpose(1, 2).contiguous()
        return self.W_out(context.view(batch, tokens, d_model))


def tracing():
    """Yield the rows for a traced forward pass / the plain one, with one thread and with all.

    Watching runs in one thread: more of them make the plain pass faster, and not the rest.
    """
    kinds = {"fused": MultiHeadAttention, "by hand": ByHand}
    _keep_freed_memory()
    threads = torch.get_num_threads()
    try:
        for count in sorted({1, threads}):
            torch.set_num_threads(count)
            sizes = ((1, 6, 32), 4, 6), ((4, 256, 256), 8, 1.10)  # (…, d_model), heads, bound
            for (kind, layer), (shape, heads, most) in itertools.product(kinds.items(), sizes):
                attention, x = layer(shape[-1], heads), _input(*shape)
                ways = {
                    "traced": partial(trace_shapes, attention, x),
                    "plain": partial(attention, x),
                }
                with torch.no_grad():
                    times = Times(take_turns(ways, [], seconds=15), machine(), math.nan)
                name = f"{kind} {shape}, {count} thread(s)"
                yield _row(name, times, "traced", "plain", at_most=most)
    finally:
        torch.set_num_threads(threads)


TABLES = {
    "Loop / split written out, both with W_out": loop_against_split,
    "MultiHeadAttention / nn.MultiheadAttention": against_torch,
    "MultiHeadAttention / the limit": against_the_limit,
    "Peak memory, fused / written out": memory,
    "Import, attention_course / torch": imports,
    "The check": check,
    "Traced / plain": tracing,
}


def _input(*sizes):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(0))


def _call(theirs, x, **keywords):
    return theirs(x, x, x, **keywords)


def _import_seconds(name):
    program = f"import time; start = time.perf_counter(); import {name}; "
    program += "print(time.perf_counter() - start)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    return float(run.stdout)


def _keep_freed_memory():
    """Have the C library keep what is freed, from here on (glibc; elsewhere nothing happens).

    Large results else go back to the system and come again as page faults, on the one side or
    on the other as the layout of the memory happens to be, and cost more than what is measured.
    """
    with contextlib.suppress(OSError, AttributeError):
        library = ctypes.CDLL("libc.so.6")
        library.mallopt(-1, 2**31 - 1)  # M_TRIM_THRESHOLD, in bytes
        library.mallopt(-3, 2**25)  # M_MMAP_THRESHOLD, in bytes: the most that it takes


def _row(name, times, one, other, at_least=None, at_most=None):
    low, ratio, high = quartiles(times.ratios(one, other))
    return {
        "measured": name,
        "value": ratio,
        "quartiles": [low, high],
        "rounds": len(times.ratios(one, other)),
        "seconds": {one: times.median(one), other: times.median(other)},
        "at least": at_least,
        "at most": at_most,
    }


def _reached(row):
    least, most = row.get("at least"), row.get("at most")
    if least is None and most is None:
        return "", "reported"
    bound = f"at least {least:g}" if most is None else f"at most {most:.2f}"
    reached = row["value"] >= least if most is None else row["value"] <= most
    return bound, "yes" if reached else "NO"


def _print(title, rows):
    print(f"\n{title}")
    cells = []
    for row in rows:
        spread = "{:.3g} to {:.3g}".format(*row["quartiles"]) if "quartiles" in row else ""
        cells.append([row["measured"], f"{row['value']:.3g}", spread, *_reached(row)])
    table(cells, columns=["measured", "value", "quartiles", "wanted", "reached"])
    sys.stdout.flush()


def main(chosen):
    """Print and store the tables of the chosen functions, or all: `bench.py memory imports`."""
    start, results = time.perf_counter(), {}
    print(machine(), flush=True)
    for title, measure in TABLES.items():
        if not chosen or measure.__name__ in chosen:
            results[title] = list(measure())
            _print(title, results[title])
    minutes = (time.perf_counter() - start) / 60
    result = {"machine": machine(), "minutes": minutes, "tables": results}
    RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    print(f"\n{minutes:.1f} minutes; written to {RESULT.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
