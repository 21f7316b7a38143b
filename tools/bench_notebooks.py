"""Measure what the notebooks cost (`make bench-notebooks`): seconds, memory, and explorers.

The table is printed, and written to bench-notebooks.json.
"""

import json
import time
from pathlib import Path

import nbformat
from bench_explorers import latencies

from attention_course.tables import table
from attention_course.timing import machine
from notebooks import NOTEBOOKS, execute

RESULT = Path(__file__).parents[1] / "bench-notebooks.json"
PEAK = """
import resource, sys
def peak():
    if sys.platform == "darwin":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open("/proc/self/status", encoding="utf-8") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
print(peak())
"""


def execution():
    """Yield for each notebook: seconds from starting the kernel to the last cell, peak bytes."""
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        book = nbformat.read(path, as_version=4)
        book.cells.append(nbformat.v4.new_code_cell(PEAK))
        start = time.perf_counter()
        execute(book, path.parent)
        seconds = time.perf_counter() - start
        peak = int(book.cells[-1].outputs[0].text)
        yield {"notebook": path.name, "seconds": round(seconds, 1), "MiB": round(peak / 2**20)}


TABLES = {
    "Execution of a notebook in a fresh kernel": execution,
    "An explorer in the browser, from a key to the new picture": latencies,
}


def main():
    results = {}
    print(machine())
    for title, measure in TABLES.items():
        results[title] = list(measure())
        print(f"\n{title}")
        if rows := results[title]:
            table([list(row.values()) for row in rows], columns=list(rows[0]), decimals=1)
    RESULT.write_text(
        json.dumps({"machine": machine(), "tables": results}, indent=2) + "\n", encoding="utf-8"
    )
    print(f"\nwritten to {RESULT.name}")


if __name__ == "__main__":
    main()
