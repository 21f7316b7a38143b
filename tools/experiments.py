"""Train the one-head experiments for several seeds and print what came out (`make experiments`).

Keeps src/attention_course/data/experiments.json: each measured value by seed, with the versions
it was measured with. Numbers that agree with those stored, as far as they are printed, leave the
file as it is. Two processes with one thread each, so about the same numbers come from any machine.
"""

import datetime
import json
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from tqdm.auto import tqdm

from attention_course.experiments import CONTROLS, ROWS, STEPS, train_blend, train_words
from shape_tracing.terminal import printable

OUT = Path(__file__).parents[1] / "src" / "attention_course" / "data" / "experiments.json"
SEEDS = range(5)
WORD_SEEDS = range(12)
DECIMALS = 2  # another processor may move the third


def measure(job):
    """Train one model; return what is stored of it."""
    kind, seed, arguments, changes = job
    if kind == "words":
        return {"seed": seed, "right": round(train_words(*arguments, seed=seed), 4)}
    blend = train_blend(*arguments, seed=seed, **changes)
    return {"seed": seed, "r2": round(blend.r2, 4), "parameters": blend.parameters}


def watched(jobs, results):
    """Yield each result as it comes: beside a bar in a terminal, and with a line in a file."""
    if sys.stderr.isatty():
        yield from tqdm(results, total=len(jobs))
        return
    for number, (job, result) in enumerate(zip(jobs, results, strict=True), start=1):
        kind, seed, arguments, _ = job
        value = result.get("r2", result.get("right"))
        print(
            f"{number}/{len(jobs)} {kind} {arguments}, seed {seed}: {value:.{DECIMALS}f}",
            flush=True,
        )
        yield result


def trained():
    """Train everything; return what is to be stored."""
    jobs = [("rows", seed, row, {}) for row in ROWS for seed in SEEDS]
    jobs += [(name, seed, (2, 1), CONTROLS[name]) for name in CONTROLS for seed in SEEDS]
    jobs += [("words", seed, (heads,), {}) for heads in (1, 2) for seed in WORD_SEEDS]
    with ProcessPoolExecutor(2, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        results = list(watched(jobs, pool.map(measure, jobs)))

    def summary(kind, arguments, value):
        pairs = zip(jobs, results, strict=True)
        found = [result for job, result in pairs if job[0] == kind and job[2] == arguments]
        out = {} if kind == "words" else {"parameters": found[0]["parameters"]}
        return out | {value: [run[value] for run in found]}

    return {
        "made_by": "tools/experiments.py",
        "date": datetime.date.today().isoformat(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        "steps": STEPS,
        "seeds": list(SEEDS),
        "word_seeds": list(WORD_SEEDS),
        "rows": [
            {"questions": row[0], "heads": row[1]} | summary("rows", row, "r2") for row in ROWS
        ],
        "controls": {name: summary(name, (2, 1), "r2") for name in CONTROLS},
        "words": [{"heads": heads} | summary("words", (heads,), "right") for heads in (1, 2)],
    }


def printed(stored):
    """Return the table: for each experiment its parameters, and its value for each seed."""
    told = [("questions, heads", "parameters", "R² or share of right answers, by seed")]
    for row in stored["rows"]:
        told.append((f"{row['questions']}, {row['heads']}", row["parameters"], row["r2"]))
    told += [(name, kept["parameters"], kept["r2"]) for name, kept in stored["controls"].items()]
    told += [(f"words, {row['heads']}", "", row["right"]) for row in stored["words"]]
    lines = []
    for name, count, values in told:
        if not isinstance(values, str):
            values = " ".join(f"{value:.{DECIMALS}f}" for value in values)
        lines.append(f"{name:22} {count:>10}  {values}")
    return printable("\n".join(lines))


def keep(new, file=OUT):
    """Print the table; write the file unless what it holds is printed alike."""
    print(printed(new))
    if file.exists() and printed(json.loads(file.read_text(encoding="utf-8"))) == printed(new):
        print(f"{file.name} holds the same numbers and stays as it is")
        return
    file.write_text(json.dumps(new, indent=1) + "\n", encoding="utf-8")
    print(f"stored {file.name}")


if __name__ == "__main__":
    keep(trained())
