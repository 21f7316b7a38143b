"""Measure the check, for bench.py: beside the check as it was, and first thing in a process.

Started with a folder of sources, this file is a process that checks with them: for each number
of a planted module that it reads it writes the seconds that the check of it took.
"""

import importlib
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIRST = """
import time
start = time.perf_counter()
import torch
loaded = time.perf_counter()
from attention_check import check_attention
from attention_course import MultiHeadAttention
check_attention(MultiHeadAttention(12, 3, dropout=0.1))
print(loaded - start, time.perf_counter() - loaded)
"""


def planted_seconds(sources, rounds=3):
    """Return {name: [median seconds over the rounds, one for each planted module of the tests]}.

    sources: {name: a folder of packages}. Each has a process of its own, and they take turns.
    """
    checks = {
        name: subprocess.Popen(
            [sys.executable, __file__, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name, folder in sources.items()
    }
    try:
        (count,) = {int(check.stdout.readline()) for check in checks.values()}
        for check in checks.values():
            _seconds(check, 0)  # loads what a first check loads
        taken = {name: [[] for _ in range(count)] for name in checks}
        order = list(checks)
        for _ in range(rounds):
            for number in range(count):
                for name in order:
                    taken[name][number].append(_seconds(checks[name], number))
                order.reverse()
    finally:
        for check in checks.values():
            check.communicate()  # the end of its input ends it
    return {name: [statistics.median(each) for each in taken[name]] for name in taken}


def first_check_seconds(rounds=9):
    """Return ([seconds of `import torch`], [seconds from there to the end of a first check])."""
    runs = []
    for _ in range(rounds + 1):
        run = subprocess.run([sys.executable, "-c", FIRST], capture_output=True, check=True)
        runs.append([float(seconds) for seconds in run.stdout.split()])
    return tuple(zip(*runs[1:], strict=True))  # the first only brings the files into memory


def _seconds(check, number):
    print(number, file=check.stdin, flush=True)
    return float(check.stdout.readline())


def _serve(folder):
    sys.path[:0] = [folder, str(ROOT / "tests"), str(ROOT / "tests" / "check")]
    if not (Path(folder) / "attention_check").is_dir():  # as it was when the course held the check
        sys.modules["attention_check"] = importlib.import_module("attention_course")
    from attention_check import check_attention

    file = sys.modules[check_attention.__module__].__file__
    assert Path(file).is_relative_to(folder), f"{file} is not of {folder}"
    importlib.import_module("faults")  # they register themselves
    factories = [fault.module.make for fault in importlib.import_module("registry").PLANTED]
    print(len(factories), flush=True)
    for line in sys.stdin:
        start = time.perf_counter()
        check_attention(factories[int(line)])
        print(time.perf_counter() - start, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1])
