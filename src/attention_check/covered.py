"""What a clean bill covers: the lines of the module's own code that ran, and what it was given."""

import ast
import contextlib
import inspect
import linecache
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from .words import listed

LONGEST = 50  # a condition of more letters is left out
HERE = Path(__file__).parent
OURS = (HERE, HERE.with_name("attention_course"), HERE.with_name("shape_tracing"))
LIBRARIES = tuple(str(folder) for folder in (Path(torch.__file__).parent, *OURS))


@dataclass(frozen=True)
class Lines:
    """Lines that never ran. condition: what they wait for, as far as that is one `if`, or ""."""

    file: str
    first: int
    last: int
    condition: str

    def __str__(self):
        many = f"lines {self.first} to {self.last}"
        where = f"line {self.first}" if self.first == self.last else many
        return f"{where} ({self.condition})" if self.condition else where


@dataclass(frozen=True)
class Covered:
    """What was judged, and what was not.

    lines: the Lines of the module's own code that never ran, save those that only raise an error.
    arguments: those of forward that were never given. not_judged: sentences, with the reasons.
    """

    lines: tuple = ()
    arguments: tuple = ()
    not_judged: tuple = ()

    @property
    def whole(self):
        return not (self.lines or self.arguments or self.not_judged)

    @property
    def missing(self):
        """What did not run, in words; "" where all did."""
        lines = f"never run: {listed(self.lines)}" if self.lines else ""
        given = f"never given: {listed(self.arguments)}" if self.arguments else ""
        return "; ".join(filter(None, (lines, given)))


class Watch:
    """Sees which lines run in the files of a module's own classes, and what forward is given.

    It stands aside where another trace function is set, a debugger's or that of coverage.
    """

    def __init__(self, module):
        kinds = {type(part) for part in module.modules()}
        files = {_file(kind) for kind in kinds if "site-packages" not in (_file(kind) or "")}
        self._files = {file for file in (*files, _file(type(module))) if _own(file)}
        self._ran, self._left = {}, {}  # code -> lines that ran, and those that did not
        self._done = False
        forward = inspect.unwrap(type(module).forward)
        self._forward, self._given = getattr(forward, "__code__", None), set()
        try:
            parameters = list(inspect.signature(forward).parameters.values())[1:]
        except (TypeError, ValueError):
            parameters = []
        named = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        self._defaults = {p.name: p.default for p in named if p.default is not p.empty}

    @contextlib.contextmanager
    def __call__(self):
        if self._done or sys.gettrace() is not None or not self._files:
            yield
            return
        sys.settrace(self._entered)
        try:
            yield
        finally:
            sys.settrace(None)
            left = any(self._left.values()) or not self._given.issuperset(self._defaults)
            self._done = not left

    def _entered(self, frame, event, _):
        code = frame.f_code
        if code.co_filename not in self._files:
            return None
        if code is self._forward:
            for name in self._defaults.keys() - self._given:
                if frame.f_locals.get(name) is not self._defaults[name]:
                    self._given.add(name)
        if code not in self._left:
            self._ran[code] = {code.co_firstlineno}
            lines = {line for *_, line in code.co_lines() if line}
            self._left[code] = lines - self._ran[code]
        return self._line if self._left[code] else None

    def _line(self, frame, event, _):
        if event == "line":
            self._ran[frame.f_code].add(frame.f_lineno)
            self._left[frame.f_code].discard(frame.f_lineno)
        return self._line

    def covered(self, not_judged=()):
        """The Covered of all that ran so far."""
        lines = []
        for file in sorted({code.co_filename for code in self._ran}):
            codes = [code for code in self._ran if code.co_filename == file]
            ran = set().union(*(self._ran[code] for code in codes))
            lines += _never_run(file, {code.co_firstlineno for code in codes}, ran)
        arguments = tuple(name for name in self._defaults if name not in self._given)
        watched = arguments if self._ran else ()
        return Covered(tuple(lines), watched, tuple(not_judged))


def _file(kind):
    return getattr(getattr(inspect.unwrap(kind.forward), "__code__", None), "co_filename", None)


def _own(file):
    return file is not None and not file.startswith(LIBRARIES)


def _never_run(file, entered, ran):
    """Yield the Lines of the functions that were entered, in order."""
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name != "__init__":
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first in entered:
                yield from _left_out(file, node.body, ran, "")


def _left_out(file, body, ran, condition):
    """Yield the Lines of a block that never ran; condition: what leads to it."""
    idle = [statement for statement in body if not _ran(statement, ran)]
    for statement in body:
        if statement in idle:
            continue
        for name, block in ast.iter_fields(statement):
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                inner = ast.unparse(statement.test) if isinstance(statement, ast.If) else ""
                inner = f"not {inner}" if inner and name == "orelse" else inner
                yield from _left_out(file, block, ran, inner)
            for handler in block if name in ("handlers", "cases") else ():
                yield from _left_out(file, handler.body, ran, "")
    idle = [statement for statement in idle if not _only_raises(statement)]
    if idle and not _only_raises(body[-1]):  # else the block prepares what it raises
        condition = condition if len(condition) <= LONGEST else ""
        yield Lines(file, idle[0].lineno, idle[-1].end_lineno, condition)


def _ran(statement, ran):
    """Whether a statement began; of one with blocks its own lines count."""
    blocks = [block for _, block in ast.iter_fields(statement) if isinstance(block, list)]
    inner = [s.lineno for block in blocks for s in block if isinstance(s, ast.stmt)]
    last = min(inner) - 1 if inner else statement.end_lineno
    lines = range(statement.lineno, max(last, statement.lineno) + 1)
    return any(line in ran for line in lines) or _no_code(statement)


def _no_code(statement):
    """Whether a statement leaves no trace: a docstring, pass, a declaration."""
    text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return text or isinstance(statement, ast.Pass | ast.Global | ast.Nonlocal | ast.FunctionDef)


def _only_raises(statement):
    if isinstance(statement, ast.If):
        return all(
            block == [] or _only_raises(block[-1]) for block in (statement.body, statement.orelse)
        )
    return isinstance(statement, ast.Raise | ast.Assert) or _no_code(statement)
