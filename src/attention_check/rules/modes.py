"""The same question twice, and the two modes: random numbers, dropout, what is kept."""

from ..acting import lifeless
from ..facts import fact
from ..findings import Finding, Note, Unjudged
from ..graph import outputs
from ..runs import dropouts, set_dropout
from ..search.make import arguments
from ..search.names import CACHE
from ..stages import kernel_drops
from ..trust import never_given
from ..words import listed
from .registry import rule


@rule("cache", whole=True)
def cache(s):
    """A note: something is kept between calls.

    self.keys = torch.cat([self.keys, keys], dim=1)
    """
    note = "It keeps something between calls (a cache?): the same input gives another answer the "
    note += "second time. Each test ran on a fresh copy."
    return Note(note) if s.fresh else None


@rule("not-repeatable", unless={"global-state", "input-changed"})
def not_repeatable(s):
    """Two calls with the same input give two answers, in evaluation mode.

    out = nn.Linear(d_model, d_model)(context)      # a new layer at each call
    """
    if s.fresh and (asked := _asks_to_go_on(s)):
        return Finding(
            f"Two calls with the same input, two answers, though {asked} is False: what the first "
            f"call left is read by the next. Read it, and keep it, only where {asked} is True."
        )
    if name := _of_an_earlier_call(s):
        return Finding(
            f"What a call makes of {name} is kept and used in the next call, though another {name} "
            f"is given: that answer is not the one of a fresh module. Make it anew in each call, "
            f"or let the caller keep it."
        )
    if s.random != "layer":
        return None
    calls = [s.capture(s.x, module=s.unused(), seed=seed).calls for seed in (1, 2)]
    new = (one.line for one, other in zip(*calls, strict=False) if not _same(one, other))
    line = next(new, "")
    return Finding(
        f"Two calls with the same input, two answers, in evaluation mode: a layer is created "
        f"(or numbers are drawn) inside forward, so its weights are new at each call and are "
        f"never trained. Create layers in __init__.{line and f' Look at `{line}`.'}"
    )


def _of_an_earlier_call(s):
    """The name of an input of which an earlier call's is used where another is given, or ""."""
    for number, name in enumerate(s.way.names if not (s.fresh or s.random or s.masks) else ()):
        used, other = s.unused(), (number, s.draw(2))
        s.look(s.x, module=used)
        answers = (s.look(s.x, module=module, other=other) for module in (used, s.unused()))
        if s.differs(*answers)[1].any():
            return name
    return ""


def _asks_to_go_on(s):
    """The flag of forward that asks for what an earlier call left, or ""."""
    flags = [p.name for p in arguments(s.original.forward) if p.default is False]
    return next(filter(CACHE.search, flags), "")


def _same(one, other):
    """Whether two calls gave the same."""
    pairs = zip(outputs(one), outputs(other), strict=False)
    return all(a.value.shape == b.value.shape and a.value.equal(b.value) for a, b in pairs)


@rule("dropout-in-eval")
def dropout_in_eval(s):
    """Dropout drops in evaluation mode too.

    weights = F.dropout(weights, 0.1)   # training=True unless it is told otherwise
    """
    said = "Dropout still drops in evaluation mode: the same input gives two answers. F.dropout "
    said += "and F.scaled_dot_product_attention do not know the mode: pass training=self.training, "
    said += "or dropout_p=self.dropout if self.training else 0.0."
    return Finding(said) if s.drops else None


@rule("dropout-unused", unless={"crash", "dropout-in-eval"}, whole=True)
def dropout_unused(s):
    """A dropout layer is made and never used.

    self.dropout = nn.Dropout(0.1)      # in __init__; forward never calls it
    """
    if s.training_error is not None:
        return Unjudged("forward refuses training mode")
    unused = [path for path in _idle(s) if all(path in _idle(way) for way in s.elsewhere)]
    unused = [path for path in unused if not lifeless(s, path)]  # its head is the fault
    if not unused:
        return None
    if without := never_given(s):
        return without
    module = set_dropout(s.loud.unused(), 0.5).train()
    kernels = sum(map(kernel_drops, s.loud.capture(s.x, module=module).calls))
    one = len(unused) == 1
    these = f"The dropout {'layer' if one else 'layers'} {listed(unused)}"
    if len(unused) <= kernels:
        return Note(
            f"{these} {'is' if one else 'are'} never used here: "
            f"F.scaled_dot_product_attention drops instead, by its own dropout_p."
        )
    return Finding(
        f"{these} never {'drops' if one else 'drop'} anything: at p = 0.5 in training mode the "
        f"output is the same as at p = 0. Apply it to the weights: weights = self.dropout(weights)."
    )


@fact
def _idle(s):
    """The paths of the dropout layers that change nothing where they alone drop."""
    loud = s.loud
    unused, still = [], loud.look(loud.x, module=loud.training)
    for number, (path, _) in enumerate(dropouts(s.pristine)):
        module = set_dropout(loud.unused(), 0.0).train()
        layer = dropouts(module)[number][1].train()  # which may stand in a plain list
        layer.p = 0.5
        if not loud.differs(loud.look(loud.x, module=module), still)[1].any():
            unused.append(path)
    return unused
