"""The same question twice, and the two modes: random numbers, dropout, what is kept."""

from dataclasses import replace

import torch

from ..acting import lifeless
from ..facts import Facts
from ..findings import Finding, Note, Unjudged
from ..graph import outputs
from ..guard import reachable
from ..runs import dropouts, set_dropout
from ..stages import kernel_drops
from ..trust import absent
from ..words import listed
from .registry import rule


@rule("cache")
def cache(s):
    """A note: something is kept between calls.

    self.keys = torch.cat([self.keys, keys], dim=1)
    """
    if not s.fresh:
        return None
    return Note(
        "It keeps something between calls (a cache?): the same input gives another answer "
        "the second time. Each test ran on a fresh copy.",
    )


@rule("not-repeatable")
def not_repeatable(s):
    """Two calls with the same input give two answers, in evaluation mode.

    out = nn.Linear(d_model, d_model)(context)      # a new layer at each call
    """
    if s.random != "layer":
        return None
    line = _random_line(s)
    where = f" Look at `{line}`." if line else ""
    return Finding(
        f"Two calls with the same input, two answers, in evaluation mode: a layer is created "
        f"(or numbers are drawn) inside forward, so its weights are new at each call and are "
        f"never trained. Create layers in __init__.{where}",
    )


def _random_line(s):
    """The line of the first call that gives something else for the same inputs, or ""."""
    first, second = (s.capture(s.x, module=s.unused(), seed=seed) for seed in (1, 2))
    for one, other in zip(first.calls, second.calls, strict=False):
        if _same(one.inputs, other.inputs) and not _same(outputs(one), outputs(other)):
            return one.line
    return ""


def _same(some, others):
    pairs = zip(some, others, strict=False)
    return all(a.value.shape == b.value.shape and a.value.equal(b.value) for a, b in pairs)


@rule("dropout-in-eval")
def dropout_in_eval(s):
    """Dropout drops in evaluation mode too.

    weights = F.dropout(weights, 0.1)   # training=True unless it is told otherwise
    """
    if not s.drops:
        return None
    return Finding(
        "Dropout still drops in evaluation mode: the same input gives two answers. F.dropout "
        "and F.scaled_dot_product_attention do not know the mode: pass training=self.training, "
        "or dropout_p=self.dropout if self.training else 0.0.",
    )


@rule("dropout-unused", unless={"crash", "dropout-in-eval"})
def dropout_unused(s):
    """A dropout layer is made and never used.

    self.dropout = nn.Dropout(0.1)      # in __init__; forward never calls it
    """
    if s.training_error is not None:
        return Unjudged("forward refuses training mode")
    loud = Facts(replace(s.subject, quiet=False))
    unused = [path for n, (path, _) in enumerate(dropouts(s.pristine)) if _never_drops(loud, n)]
    unused = [path for path in unused if not lifeless(s, path)]  # its head is the fault
    if not unused:
        return None
    if name := absent(s):
        return Unjudged(f"forward was called without {name}")
    one = len(unused) == 1
    these = f"The dropout {'layer' if one else 'layers'} {listed(unused)}"
    training = _training(set_dropout(loud.unused(), 0.5))
    if len(unused) <= sum(map(kernel_drops, loud.capture(s.x, module=training).calls)):
        return Note(
            f"{these} {'is' if one else 'are'} never used here: "
            f"F.scaled_dot_product_attention drops instead, by its own dropout_p.",
        )
    return Finding(
        f"{these} {'never drops' if one else 'never drop'} anything: at p = 0.5 in training mode "
        f"the output is the same as at p = 0. Apply it to the weights: "
        f"weights = self.dropout(weights).",
    )


def _never_drops(loud, number):
    """Whether the output is the same in training mode with that dropout layer at 0 and at 0.5."""
    answers = []
    for p in (0.0, 0.5):
        module = set_dropout(loud.unused(), 0.0)
        dropouts(module)[number][1].p = p
        answers.append(loud.look(loud.x, module=_training(module)))
    return not loud.differs(*answers)[1].any()


def _training(module):
    """The module in training mode, with the parts that stand in plain lists."""
    for _, part in reachable(module):
        if isinstance(part, torch.nn.Module):
            part.train()
    return module.train()
