"""What the runs show, each found out once and remembered, for all rules that ask."""

import functools
from functools import cached_property
from typing import NamedTuple

import torch
from torch import nn

from .graph import Graph
from .runs import Runs
from .search.prepare import fan_in, weights_of
from .stages import cores


class Facts(Runs):
    """The runs of a subject with what follows from them. Rules read it; nobody sets it."""

    def __init__(self, subject):
        super().__init__(subject)
        self.__dict__["answers"] = {}

    # --- who moves whom -----------------------------------------------------------------------

    @cached_property
    def influence(self):
        """(tokens, tokens): how far output row i moves, of its size, when token j changes."""
        return self.together if self.looking is None else self.influence_of(self.looking)

    @cached_property
    def together(self):
        """`influence` where all inputs change together."""
        return self.influence_of(None)

    def influence_of(self, number):
        """`influence` where the input of that number changes alone; None: all inputs."""
        return self.rows_moved(self.base, number).amax(dim=0)

    @cached_property
    def looking(self):
        """The number of the input that a mask hides from itself; None: judge all inputs together.

        In a decoder block that is the first: the other, its memory, is seen whole by design.
        """
        if not self.several or not self.together.triu(1).any():
            return None
        ahead = (self.together > 0).triu(1)
        for number in range(len(self.way.names)):
            try:
                changed = [self.with_token(token, seed=2) for token in (0, -1)]
                first, last = (self.moved_by_input(number, one) for one in changed)
            except Exception:
                return None  # it takes the same tensor for all only
            if first[1:].any() and not last[0]:
                seen = self.influence_of(number) > 0
                if (seen.triu(1) < ahead).any():
                    return number
        return None

    @property
    def several(self):
        """Whether forward takes several inputs that are no queries, keys and values."""
        count = self.way.inputs + len(self.way.keywords)
        return count > 1 and len(self.way.names) == count and not self.way.roles

    @cached_property
    def constant(self):
        """How much the rows differ, of their size, when all tokens of a sentence are equal."""
        output = self.look(self.x[:, :1].expand_as(self.x))
        return ((output - output[:, :1]).abs().max() / self.size).item()

    # --- the run from inside ------------------------------------------------------------------

    def capture(self, x, **question):
        """The Graph of one run: what was made of what."""
        return Graph(self.record(x, **question), self.sizes)

    @cached_property
    def graphs(self):
        """The graphs of two runs, on two inputs."""
        return self.capture(self.x), self.capture(self.draw(2))

    @property
    def graph(self):
        return self.graphs[0]

    @cached_property
    def both_cores(self):
        return tuple(cores(graph) for graph in self.graphs)

    @property
    def cores(self):
        return self.both_cores[0]

    # --- the weights --------------------------------------------------------------------------

    @cached_property
    def weights(self):
        """Each weight by its path."""
        return weights_of(self.module)

    @cached_property
    def slopes(self):
        """The gradient of each weight by path, for the input `x`; None where there is none."""
        return self.gradients(self.x).found

    @property
    def backward_error(self):
        """The exception that backward ends in, or None."""
        return self.gradients(self.x).error

    def gradients(self, x):
        """The Gradients of a random sum of the output."""
        names, weights = zip(*self.weights.items(), strict=True) if self.weights else ((), ())
        output = self.run(x)
        if not weights or not output.requires_grad:
            return Gradients(dict.fromkeys(names))
        generator = torch.Generator().manual_seed(5)
        mix = torch.randn(output.shape, generator=generator).to(output)
        wanted = [weight for weight in weights if weight.requires_grad]
        try:
            found = torch.autograd.grad((output * mix).sum(), wanted, allow_unused=True)
        except RuntimeError as error:
            return Gradients(dict.fromkeys(names), error)
        by_id = {id(weight): g for weight, g in zip(wanted, found, strict=True)}
        return Gradients({n: by_id.get(id(w)) for n, w in zip(names, weights, strict=True)})

    def redrawn(self, weight, rows=None):
        """A weight drawn anew, or those of its rows that are True."""
        generator = torch.Generator().manual_seed(7)
        noise = torch.randn(weight.shape, generator=generator).to(weight)
        fresh = noise / fan_in(weight, self.sizes.d_model) ** 0.5
        return fresh if rows is None else torch.where(rows, fresh, weight.detach())

    def acts(self, weight, rows=None):
        """Whether drawing a weight anew, or its rows, changes the output."""
        return self.moves(weight, self.redrawn(weight, rows))

    # --- training mode ------------------------------------------------------------------------

    @cached_property
    def training_error(self):
        """The exception that forward ends in in training mode, or None."""
        try:
            self.look(self.x, module=self.training)
        except Exception as error:
            return error
        return None

    @cached_property
    def trains_alike(self):
        """Whether it runs in training mode, and nothing mixes there by design as batch norms do."""
        kinds = nn.modules.batchnorm._NormBase
        mixes = any(isinstance(part, kinds) for part in self.pristine.modules())
        return not mixes and self.training_error is None

    @cached_property
    def training_influence(self):
        """(tokens, tokens): `influence` in training mode."""
        base = self.look(self.x, module=self.training)
        if self.differs(self.look(self.x, module=self.training), base)[1].any():
            return torch.zeros(self.sizes.tokens, self.sizes.tokens)  # it keeps something
        moves = self.rows_moved(base, self.looking, module=self.training, seeds=(2,))
        return moves.amax(dim=0)


class Gradients(NamedTuple):
    """found: gradient by weight path, None where there is none; error: what backward ended in."""

    found: dict
    error: Exception | None = None


def fact(function):
    """Remember what a function says of the facts, for all who ask it again."""

    @functools.wraps(function)
    def asked(s, *more):
        key = (function, *more)
        if key not in s.answers:
            s.answers[key] = function(s, *more)
        return s.answers[key]

    return asked
