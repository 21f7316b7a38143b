"""What the runs show, each found out once and remembered, for all rules that ask."""

import functools
from dataclasses import replace
from functools import cached_property

import torch
from torch import nn

from .graph import Graph
from .guard import weights_of
from .runs import Runs
from .search.prepare import fan_in
from .stages import cores


def fact(function):
    """Remember what a function says of the facts, for all who ask it again."""

    @functools.wraps(function)
    def asked(s, *more):
        key = (function, *more)
        if key not in s.answers:
            s.answers[key] = function(s, *more)
        return s.answers[key]

    return asked


class Facts(Runs):
    """The runs of a subject with what follows from them. Rules read it; nobody sets it."""

    def __init__(self, subject):
        super().__init__(subject)
        self.__dict__["answers"] = {}

    @property
    def influence(self):
        """(tokens, tokens): how far output row i moves, of its size, when token j changes."""
        return self.influence_of(self.looking)

    @fact
    def influence_of(self, number):
        """`influence` where the input of that number changes alone; None: all together."""
        return self.rows_moved(self.base, number).amax(dim=0)

    @cached_property
    def looking(self):
        """The number of the input that a mask hides from itself; None: judge all inputs together.

        In a decoder block that is the first: the other, its memory, is seen whole by design.
        """
        ahead = self.influence_of(None).triu(1) > 0 if self.several else torch.zeros(1)
        for number in range(len(self.way.names)) if ahead.any() else ():
            try:
                changed = [self.with_token(token, seed=2) for token in (0, -1)]
                first, last = (self.moved_by_input(number, one) for one in changed)
            except Exception:
                return None  # it takes the same tensor for all only
            seen = self.influence_of(number) > 0 if first[1:].any() and not last[0] else ahead
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

    def capture(self, x, **question):
        """The Graph of one run: what was made of what."""
        return Graph(self.record(x, **question), self.sizes)

    @cached_property
    def graphs(self):
        """The graphs of two runs, on two inputs."""
        return self.capture(self.x), self.capture(self.draw(2))

    @cached_property
    def loud(self):
        """The same facts, with what drops by itself dropping."""
        return Facts(replace(self.subject, quiet=False))

    @property
    def graph(self):
        return self.graphs[0]

    @cached_property
    def both_cores(self):
        return tuple(cores(graph) for graph in self.graphs)

    @property
    def cores(self):
        return self.both_cores[0]

    @cached_property
    def weights(self):
        """Each weight by its path."""
        return weights_of(self.module)

    @property
    def slopes(self):
        """The gradient of each weight by path, for the input `x`; None where there is none."""
        return self._backward[0]

    @property
    def backward_error(self):
        """The exception that backward ends in, or None."""
        return self._backward[1]

    @cached_property
    def _backward(self):
        none, output = dict.fromkeys(self.weights), self.run(self.x)
        wanted = {name: w for name, w in self.weights.items() if w.requires_grad}
        try:
            found = gradients([output], wanted) if wanted and output.requires_grad else {}
        except RuntimeError as error:
            return none, error
        return none | found, None

    @cached_property
    def elsewhere(self):
        """The Facts of each other way to call the module."""
        return [Facts(other) for other in self.others]

    def has_effect(self, name, rows=None):
        """As `acts`, of the weight of that name, in this way to call the module or another."""
        ways = (self, *self.elsewhere)
        return any(s.acts(s.weights[name], rows) for s in ways if name in s.weights)

    def acts(self, weight, rows=None):
        """Whether drawing a weight anew, or those of its rows that are True, moves the output."""
        generator = torch.Generator().manual_seed(7)
        noise = torch.randn(weight.shape, generator=generator).to(weight)
        drawn = noise / fan_in(weight, self.sizes.d_model) ** 0.5
        rows = torch.tensor(True) if rows is None else rows
        return self.moves(weight, torch.where(rows, drawn, weight.detach()))

    @cached_property
    def training_error(self):
        """The exception that forward ends in in training mode, or None."""
        try:
            self.look(self.x, module=self.training)
        except Exception as error:
            return error
        return None

    @property
    def trains_alike(self):
        """Whether it runs in training mode, and nothing mixes there by design as batch norms do."""
        kinds = nn.modules.batchnorm._NormBase
        mixes = any(isinstance(part, kinds) for part in self.pristine.modules())
        return not mixes and self.training_error is None

    @cached_property
    def training_influence(self):
        """(tokens, tokens): `influence` in training mode without dropout; None if calls differ."""
        trained = Facts(replace(self.subject, pristine=self.training, fresh=True, quiet=True))
        if trained.differs(trained.look(self.x), trained.base)[1].any():
            return None
        return trained.influence_of(self.looking)


def gradients(tensors, weights):
    """{name: gradient} of one sum of all numbers in `tensors`, each with a factor of its own."""
    whole = torch.cat([tensor.flatten() for tensor in tensors])
    mix = torch.linspace(1, 2, len(whole), device=whole.device, dtype=whole.dtype)
    found = torch.autograd.grad(whole @ mix, list(weights.values()), allow_unused=True)
    return dict(zip(weights, found, strict=True))
