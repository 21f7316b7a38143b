"""Train the one-head experiments for several seeds and store what came out (`make experiments`).

Writes src/attention_course/data/experiments.json: each measured value by seed, with the
versions it was measured with. Two processes with one thread each, so about the same numbers
come from any machine.
"""

import datetime
import json
import platform
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from tqdm.auto import tqdm

from attention_course.experiments import CONTROLS, ROWS, STEPS, train_blend, train_words

OUT = Path(__file__).parents[1] / "src" / "attention_course" / "data" / "experiments.json"
SEEDS = range(5)
WORD_SEEDS = range(12)


def measure(job):
    """Train one model; return what is stored of it."""
    kind, seed, arguments, changes = job
    if kind == "words":
        return {"seed": seed, "right": round(train_words(*arguments, seed=seed), 4)}
    blend = train_blend(*arguments, seed=seed, **changes)
    return {"seed": seed, "r2": round(blend.r2, 4), "parameters": blend.parameters}


def main():
    jobs = [("rows", seed, row, {}) for row in ROWS for seed in SEEDS]
    jobs += [(name, seed, (2, 1), CONTROLS[name]) for name in CONTROLS for seed in SEEDS]
    jobs += [("words", seed, (heads,), {}) for heads in (1, 2) for seed in WORD_SEEDS]
    with ProcessPoolExecutor(2, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        results = list(tqdm(pool.map(measure, jobs), total=len(jobs)))

    def runs(kind, arguments):
        pairs = zip(jobs, results, strict=True)
        return [result for job, result in pairs if job[0] == kind and job[2] == arguments]

    def summary(kind, arguments, value):
        found = runs(kind, arguments)
        out = {} if kind == "words" else {"parameters": found[0]["parameters"]}
        return out | {value: [run[value] for run in found]}

    stored = {
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
    OUT.write_text(json.dumps(stored, indent=1) + "\n", encoding="utf-8")
    print(f"stored {OUT.name}")


if __name__ == "__main__":
    main()
