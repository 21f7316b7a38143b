"""How an answer is judged, how mistakes are told, and how a notebook's exercises are counted."""

import dis
import inspect
import linecache
import sys
import traceback
from dataclasses import dataclass

import torch

from ..tables import table

EXERCISES = {}  # the name that a learner binds -> its Exercise, in the order of the notebooks

_IDLE = {"RESUME", "NOP", "LOAD_CONST", "RETURN_CONST", "RETURN_VALUE"}


class Wrong(Exception):
    """An answer is not right; the message says what was seen and what to do, for a learner.

    error: where the answer stopped with an error, that error in its own words.
    """

    def __init__(self, message, error=""):
        super().__init__(message)
        self.error = error


@dataclass(frozen=True)
class Verdict:
    """What a check says: tried, passed, and one sentence or two."""

    tried: bool
    passed: bool
    sentence: str

    def __str__(self):
        return self.sentence


@dataclass(frozen=True)
class Exercise:
    """One exercise. Called with an answer, it prints the verdict.

    name: what the learner binds. notebook: its number, or its name where it stands in further/.
    title: as in the heading.
    judge: takes an answer, returns what a right one shows, raises Wrong for any other.
    """

    name: str
    notebook: int | str
    title: str
    judge: callable

    def __call__(self, answer):
        print(self.verdict(answer))

    def verdict(self, answer):
        """Return the Verdict on an answer; no learner's slip raises an error."""
        if _untried(answer):
            return Verdict(
                False, False, f"Not tried yet: fill in {self.name}, run its cell, then this one."
            )
        try:
            return Verdict(True, True, f"Passed. {self.judge(answer)}")
        except Wrong as mistake:
            return Verdict(True, False, f"Not yet. {mistake}")


def exercise(name, notebook, title):
    """Make an Exercise of the function below, and enter it under `name`."""

    def enter(judge):
        EXERCISES[name] = Exercise(name, notebook, title, judge)
        return EXERCISES[name]

    return enter


def progress(namespace=None):
    """Print which exercises of this notebook are tried and passed; each is checked again.

    namespace: name -> value; the notebook's own unless it is given. The notebook is the
    last whose exercises stand in it.
    """
    if namespace is None:
        namespace = sys._getframe(1).f_globals
    here = [each.notebook for name, each in EXERCISES.items() if name in namespace]
    # what was pasted from an earlier notebook stands here too
    notebook = max(here, key=lambda n: (int(str(n)[:2]), str(n)), default=None)
    rows = []
    for name, each in EXERCISES.items():
        if each.notebook == notebook:
            verdict = each.verdict(namespace.get(name))
            rows.append([each.title, name, _mark(verdict.tried), _mark(verdict.passed)])
    if not rows:
        print("No exercise of the course is here yet: run the cells of the exercises first.")
        return
    passed = sum(row[3] == "yes" for row in rows)
    table(rows, columns=["exercise", "name", "tried", "passed"])
    print(f"{passed} of {len(rows)} passed. Self-reported: this notebook judged its own answers.")


def _mark(yes):
    return "yes" if yes else "no"


def _untried(answer):
    """Whether an answer is still the stub: None, `...`, nothing else inside, an empty body."""
    if isinstance(answer, dict):
        answer = list(answer.values())
    if isinstance(answer, list | tuple):
        return all(_untried(part) for part in answer)
    function = answer.__dict__.get("forward") if isinstance(answer, type) else answer
    if inspect.isfunction(function):
        return all(_is_idle(step) for step in dis.get_instructions(function))
    return answer is None or answer is ...


def _is_idle(step):
    """Whether a bytecode instruction belongs to an empty body: it returns None, and no more."""
    return step.opname in _IDLE and ("CONST" not in step.opname or step.argval is None)


# --- what checks are made of ------------------------------------------------------------------


def run(function, *inputs):
    """Return what a learner's function makes of the inputs (copies of them).

    Raises Wrong where it is no function, stops with an error, or returns nothing.
    """
    if not callable(function):
        raise Wrong(f"A function is wanted here, but this is a {type(function).__name__}.")
    inputs = [part.clone() if isinstance(part, torch.Tensor) else part for part in inputs]
    try:
        result = function(*inputs)
    except Exception as error:
        raise Wrong(_told(error, function, inputs), str(error)) from None
    if result is None:
        raise Wrong("It returns nothing: its last line should be `return` and the result.")
    return result


def _told(error, function, inputs):
    """An error of the learner's own code in one sentence, with its line."""
    code = getattr(getattr(function, "forward", function), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if code is not None and f.filename == code.co_filename]
    what = _of_shapes(error, function, inputs) or (
        f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
    )
    if "'tuple' object has no attribute" in what:
        what = f"{what}. Something here is a pair: context, weights = attention(…) takes it apart"
    if not own:
        return f"It stops with {what}."
    number = own[-1].lineno
    line = linecache.getline(own[-1].filename, number).strip()
    return f"It stops in line {number}{f', `{line}`,' if line else ''} with {what}."


def _of_shapes(error, function, inputs):
    """What a trace of the run says of an operation of torch that refused its shapes, or ""."""
    if not isinstance(error, RuntimeError):
        return ""
    from shape_tracing import trace_shapes  # only who made an error needs it

    try:
        rows = trace_shapes(function, *inputs).rows
    except Exception:  # whatever the second run meets, the first error is to be told
        return ""
    if not (rows and rows[-1].fits):
        return ""
    given = " and ".join(str(tuple(each.sizes)) for each in rows[-1].inputs)
    return f"{rows[-1].operation} of {given}: {rows[-1].fits.rstrip('.')}"


def numbers(result, shape, meaning):
    """Return a result as a float32 tensor of the shape that is wanted.

    result: a tensor, a number, or a list of them. meaning: the shape in words, such as
    "batch, tokens, head_dim". Raises Wrong for another kind, another shape, or NaN.
    """
    try:
        tensor = _tensor(result)
    except (TypeError, ValueError, RuntimeError):
        raise Wrong(
            f"A tensor or a list of numbers is wanted here, but this is {_short(result)}."
        ) from None
    if tensor.shape != torch.Size(shape):
        raise Wrong(
            f"The shape is {tuple(tensor.shape)}, but {tuple(shape)} is wanted: ({meaning})."
        )
    if tensor.isnan().any():
        raise Wrong("Some of the numbers are NaN: somewhere 0 is divided by 0, or ∞ by ∞.")
    return tensor


def _tensor(result):
    if isinstance(result, list | tuple):
        return torch.stack([_tensor(part) for part in result])
    if isinstance(result, str):
        raise TypeError
    return torch.as_tensor(result).detach().float().cpu()


def _short(result):
    text = repr(result)
    return text if len(text) <= 60 else f"a {type(result).__name__}"


def entries(answer, names):
    """Return the values of a dictionary that has to hold an answer for each of the names."""
    if not isinstance(answer, dict):
        raise Wrong(f"A dictionary is wanted here, but this is {_short(answer)}.")
    empty = [name for name in names if _untried(answer.get(name))]
    if empty:
        raise Wrong(f"There is no answer yet for {', '.join(empty)}.")
    return [answer[name] for name in names]


def same(first, second):
    """Whether two tensors are equal to rounding."""
    return torch.allclose(first, second, atol=1e-4, rtol=1e-4)


def draw(*shapes, seed=0):
    """Return a random tensor for each shape, always the same ones."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator) for shape in shapes]


def untrained(module, *sizes):
    """Return a module with random weights, always the same ones; the random state stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return module(*sizes)


def blame(module_or_factory, **options):
    """Raise Wrong with the first finding of `check_attention`; return its Report if there is none.

    Use it where a learner wrote a module; options are those of `check_attention`.
    """
    from attention_check import check_attention  # only who wrote a module needs it

    try:
        report = check_attention(module_or_factory, **options)
    except ValueError as error:
        raise Wrong(str(error)) from None
    if report.findings:
        raise Wrong(f"check_attention finds {report.findings[0]}")
    return report
