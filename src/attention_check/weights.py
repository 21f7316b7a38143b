"""The weights of every head of any module, read from one run.

They are what meets the values: what a softmax gave, or what a fused kernel must have used, made
again from its queries and keys; and where no line of the code makes them (chunks, an online
softmax, windows, no softmax at all), the derivative of the context by the values, in which an
attention is linear. Weights are told only where they, times the values, give the context.
"""

import contextlib
import re
from dataclasses import dataclass, replace

import torch

from shape_tracing import Capture

from .derivative import all_behind, near, slopes
from .facts import Facts
from .graph import EXP, FILLS, SOFTMAX, TIMES, WRITTEN, Graph
from .guard import Clock, TimeUp, copy_module, untouched
from .rules.trials import trials
from .runs import Kept, NoDropout, Record
from .search.find import Never, find_subject
from .search.make import build
from .search.masks import conventions
from .search.prepare import prepare
from .settle import settled
from .stages import cores
from .words import told

FILLED = -1e3  # a score below this was put there by a mask
SECONDS = 10


class NotRead(ValueError):
    """The weights of this module cannot be read; the message says why."""


@dataclass
class Layer:
    """One attention of a run.

    weights: (batch, num_heads, queries, keys). scores: what went into the softmax, laid out the
    same, or None. hidden: Boolean, True where a mask hides. lines: {"scores", "scale", "mask",
    "softmax", "context" or "kernel": (file, line number, text)}. path: the part of the module.
    how: "softmax", "kernel" or "derivative".
    """

    weights: torch.Tensor
    scores: torch.Tensor | None
    hidden: torch.Tensor
    lines: dict
    path: str
    how: str


class Reader:
    """A module that is ready to be run on any input: how it is called, and with which masks.

    module_or_factory, num_heads, d_model: as for `check_attention`. `.name`: its class.
    `.d_model`: the width of its tokens. `.mask`: the argument that can hide the future, or None.
    The module itself is not changed; it keeps its own weights.
    Raises `NotRead` where it cannot be called.
    """

    def __init__(self, module_or_factory, num_heads=None, d_model=None):
        try:
            with untouched(), Clock(SECONDS) as clock:
                module, d_model, num_heads = build(module_or_factory, d_model, num_heads)
                subject = find_subject(module, d_model, num_heads, None, clock)
                if isinstance(subject, Never):
                    raise NotRead(f"{type(module).__name__} cannot be called: {subject.error}")
                subject = settled(subject)
                taken = [t for t in trials(Facts(subject)) if t.accepted]
                taken = [t for t in taken if not t.accepted.pattern.padding]
                self._module = prepare(module, subject.dtype)
        except TimeUp:
            raise NotRead(f"It was not done within {SECONDS} seconds.") from None
        self.name, self._subject = type(module).__name__, subject
        self.d_model, self._way = subject.sizes.d_model, subject.way
        self.mask = taken[0].name if taken else None
        self._convention = taken[0].accepted.convention if taken else None

    def output(self, x, masked=False, training=False):
        """Return the output (batch, tokens, width) for x (batch, tokens, d_model)."""
        return self._run(x, masked, training)[1]

    def layers(self, x, masked=False, training=False):
        """Return a `Layer` for each attention of a run on x (batch, tokens, d_model), in order.

        masked: whether the argument `.mask` hides the future. training: the mode of the module.
        Raises `NotRead` where the weights are nowhere in sight.
        """
        return _layers(self, x, masked, training)

    def tokens_first(self):
        """Return a reader of the same module that gives it (tokens, batch, d_model)."""
        other = object.__new__(Reader)
        vars(other).update(vars(self), _way=replace(self._way, layout="tokens first"))
        return other

    @property
    def batch_first(self):
        return self._way.layout == "batch"

    def _run(self, x, masked, training, keep=None, grad=False):
        """Return (the calls of one run, its output, the input that it was given)."""
        module = copy_module(self._module, share=True)  # it keeps nothing from an earlier run
        given = x.to(self._subject.dtype).clone().requires_grad_(grad)
        found = self._masks(x, masked)
        quiet = contextlib.nullcontext() if training else NoDropout()
        seen = Capture(module, keep=keep) if keep else contextlib.nullcontext()
        try:
            with untouched(), torch.set_grad_enabled(grad), quiet, seen:
                torch.manual_seed(0)
                output = self._way(module.train(training), given, found)
        except Exception as error:
            what = f"{self.name} fails on {x.shape[1]} tokens of width {x.shape[2]}"
            raise NotRead(f"{what}: {told(error)}") from error
        return getattr(seen, "calls", None), output, given, module

    def graph(self, x, masked, training, grad=False):
        """Return (the `Graph` of one run, its output)."""
        calls, output, given, module = self._run(x, masked, training, Kept, grad)
        return Graph(Record(calls, given, module), self._on(x).sizes), output

    def _on(self, x):
        """Return the subject with the sizes of x."""
        batch, tokens, d_model = x.shape
        sizes = replace(self._subject.sizes, batch=batch, tokens=tokens, d_model=d_model)
        return replace(self._subject, sizes=sizes)

    def _masks(self, x, masked):
        """Return {argument: mask}: those each call needs, and the one that hides the future."""
        batch, tokens, _ = x.shape
        sizes = {self._subject.sizes.batch: batch, self._subject.sizes.tokens: tokens}
        found = {
            name: mask.flatten()[0].expand([sizes.get(n, n) for n in mask.shape]).clone()
            for name, mask in self._subject.masks.items()
        }
        if masked and self.mask:
            future = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
            wanted = self._convention.shape, self._convention.words
            every = conventions(self._on(x), future)
            found[self.mask] = next(c.mask for c in every if (c.shape, c.words) == wanted)
        return found


def _layers(reader, x, masked, training):
    graph, _ = reader.graph(x, masked, training)
    tokens = x.shape[1]
    found = [core for core in cores(graph) if _explains(core)]
    found = [core for core in found if core.softmaxes or core.fused is not None] or found
    layers = []
    if found:
        owners = _owners(reader, x, masked, training, found)
        for group in _groups(graph, found):
            members = [found[n] for n in group]
            layer = _layer(graph, members, [owners[n] for n in group], x.shape[0])
            layers += [layer] if layer is not None else []
    square = [layer for layer in layers if layer.weights.shape[-2:] == (tokens, tokens)]
    if layers and len(square) == len(layers):
        return layers
    rows = {core.weights.shape[-2] for core in found}
    if rows == {x.shape[0]} and tokens not in rows and reader.batch_first:
        return _layers(reader.tokens_first(), x, masked, training)
    layer = by_derivative(reader, x, masked, training)
    if layer is not None:
        return [layer]
    if len(layers) == 1 and layers[0].weights.shape[-2] == tokens:
        return layers  # keys of their own: a context, or a memory
    if layers:
        shapes = ", ".join(str(tuple(each.weights.shape[-2:])) for each in layers)
        raise NotRead(f"The weights are made in parts, {shapes}, not for all {tokens} tokens.")
    if graph.attends:
        raise NotRead("Something of attention is seen, but no weights that explain the context.")
    raise NotRead("No softmax, no fused kernel and no product of queries and keys was seen.")


def _explains(core):
    """Whether the weights, times the values, are the context."""
    made, context = core.weights @ core.values, core.context[1]
    if made.shape != context.shape:  # the same numbers, laid out in another order
        made, context = made.flatten().sort()[0], context.flatten().sort()[0]
    return made.shape == context.shape and near(made, context)


# --- whose weights are these ----------------------------------------------------------------


def _owners(reader, x, masked, training, found):
    """Return for each core the sentence that each of its leading entries belongs to, measured.

    One more run for each sentence: what moves with it is its own. A head whose weights nothing
    can move is told by its place among the others.
    """
    batch, owners = len(x), [torch.full((len(_lead(core.weights)),), -1) for core in found]
    for sentence in range(batch if batch > 1 else 0):
        other = x.clone()
        generator = torch.Generator().manual_seed(sentence)
        other[sentence] = torch.randn(x[sentence].shape, generator=generator).to(x)
        places = {core.at for core in found}
        again = [c for c in cores(reader.graph(other, masked, training)[0]) if c.at in places]
        if len(again) != len(found):
            raise NotRead("The run takes another way on other numbers.")
        for core, changed, owner in zip(found, again, owners, strict=True):
            before, after = _scores(core), _scores(changed)
            moved = (before - after).abs().flatten(1).amax(1)
            owner[moved > 1e-4 * before.abs().max()] = sentence
    return [_in_order(owner, batch) for owner in owners]


def _in_order(owner, batch):
    """Return an order that agrees with what was measured, all sentences alike; or what was."""
    known, share = owner >= 0, len(owner) // batch
    for order in (torch.arange(batch).repeat_interleave(share), torch.arange(batch).repeat(share)):
        if len(order) == len(owner) and order[known].equal(owner[known]):
            return order
    return owner.clamp_min(0)


def _lead(tensor):
    """Return a tensor as (leading entries, queries, keys)."""
    return tensor.reshape(-1, *tensor.shape[-2:])


def _scores(core):
    """Return the scores of what is seen, each row from its largest: a shift tells nothing."""
    if core.scores is None:
        return _lead(core.weights)
    seen = core.scores > FILLED
    largest = core.scores.masked_fill(~seen, -torch.inf).amax(-1, keepdim=True)
    return _lead(torch.where(seen, core.scores - largest, 0.0)).nan_to_num(0.0, 0.0, 0.0)


# --- which of them are the heads of one layer -----------------------------------------------


def _groups(graph, found):
    """Return lists of numbers of cores, one for each layer: heads in a loop stand together."""
    depth, groups = [], {}
    for n, core in enumerate(found):
        behind = all_behind(graph, core.operands)
        made = [{other.at, graph.maker(other.context[0], 10**9)} for other in found[:n]]
        depth.append(
            1 + max((d for d, m in zip(depth, made, strict=True) if m & behind), default=-1)
        )
        place = re.sub(r"\d+", "#", graph.calls[core.at].path)  # heads.0 and heads.1: one layer
        groups.setdefault((depth[n], place, tuple(core.weights.shape), core.width), []).append(n)
    return list(groups.values())


def _layer(graph, group, owners, batch):
    """Return the heads of several cores side by side as one `Layer`, or None."""
    weights, scores = [], []
    for core, owner in zip(group, owners, strict=True):
        counts = torch.bincount(owner, minlength=batch)
        if (counts != counts[0]).any():
            return None
        order = torch.argsort(owner, stable=True)
        shape = (batch, -1, *core.weights.shape[-2:])
        weights.append(_lead(core.weights)[order].reshape(shape))
        if core.scores is not None:
            scores.append(_lead(core.scores)[order].reshape(shape))
    weights = torch.cat(weights, 1)
    scores = torch.cat(scores, 1) if len(scores) == len(group) else None
    hidden = weights == 0 if scores is None else (weights == 0) & (scores < FILLED)
    core = group[0]
    how = "softmax" if core.fused is None else "kernel"
    return Layer(weights, scores, hidden, _lines(graph, core), graph.calls[core.at].path, how)


_STEPS = {
    "scale": (*TIMES, "div"),
    "mask": (*FILLS, "add", "sub", WRITTEN),
    "softmax": (*SOFTMAX, EXP),
}
_STEPS = {name: step for step, names in _STEPS.items() for name in names}


def _lines(graph, core):
    """Return {step: (file, line number, text)} of the code that made these weights."""
    if core.fused is not None:
        return {"kernel": _line(core.fused)}
    lines = {"scores": _line(graph.calls[core.operands[0][1]])}
    for at in core.path:
        step = _STEPS.get(graph.calls[at].name)
        if step:
            lines.setdefault(step, _line(graph.calls[at]))
    return lines | {"context": _line(graph.calls[core.at])}


def _line(call):
    return (*call.where, call.line)


# --- where no line makes them ---------------------------------------------------------------


def by_derivative(reader, x, masked=False, training=False):
    """Return the `Layer` whose weights are the derivative of a context by the values, or None.

    Each sentence is run alone; the first context of the run that explains itself counts.
    """

    def run(given):
        return reader.graph(given, masked, training, grad=True)

    found = [slopes(run, x[n : n + 1]) for n in range(len(x))]
    if any(one is None for one in found) or len({len(weights) for weights, _ in found}) > 1:
        return None
    weights, call = torch.stack([weights for weights, _ in found]), found[0][1]
    return Layer(
        weights,
        None,
        weights == 0,
        {"context": _line(call)},
        call.path.rpartition(".")[0],
        "derivative",
    )
