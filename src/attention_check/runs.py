"""What the module answers: each question is a run of its own, and changes nothing."""

import contextlib
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from shape_tracing import Capture

from .guard import copy_module, reachable

TOLERANCE = 1e-5  # of the largest number in the output: what is less is rounding


class Kept:
    """A tensor that was seen: the object itself, and its numbers at that moment."""

    __slots__ = ("tensor", "value")

    def __init__(self, tensor):
        self.tensor = tensor
        fixed = tensor.is_leaf and tensor.requires_grad
        self.value = tensor.detach() if fixed else tensor.detach().clone()


@dataclass(frozen=True)
class Record:
    """One run: the torch operations in order, what was given, the module that ran, its output."""

    calls: list
    given: torch.Tensor
    module: nn.Module
    output: torch.Tensor | None = None


class NoDropout(TorchFunctionMode):
    """Every dropout in the block lets everything through."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(function, "__name__", "")
        if "dropout" in name and args:
            return args[0]
        if name == "scaled_dot_product_attention" and len(args) > 4:
            args = (*args[:4], 0.0, *args[5:])
        elif "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        return function(*args, **kwargs)


class Runs:
    """The runs of one Subject, whose parts are at hand here: way, sizes, dtype, masks, ..."""

    def __init__(self, subject):
        self.__dict__["subject"] = subject

    def __getattr__(self, name):
        return getattr(self.__dict__["subject"], name)

    def __setattr__(self, name, value):
        raise AttributeError(f"{name} cannot be set: a run is asked, not told")

    def unused(self):
        """A copy that has not been called: it keeps nothing from an earlier call."""
        return copy_module(self.pristine, share=True)

    @cached_property
    def module(self):
        """The copy that all calls share, where none of them needs one of its own."""
        return self.unused()

    @cached_property
    def training(self):
        """A copy in training mode, without dropout."""
        return set_dropout(self.unused(), 0.0).train()

    def run(self, x, masks=None, module=None, seed=0, other=None, way=None, watch=None):
        """The output for x, with a fixed random state, and its gradients.

        other: (number, tensor), the input of that number where it is not x; number None: all
        inputs. watch: a Capture, which stands inside the hush, so that it sees the learner's lines.
        """
        way = way or self.way
        if other is not None and other[0] is None:
            x = other[1]
        elif other is not None:
            way = replace(way, others=(other,))
        if module is None:  # what a call with other masks or inputs leaves is asked for apart
            apart = self.fresh or masks or other is not None
            module = self.unused() if apart else self.module
        # torch.manual_seed would also queue a call for a GPU that is not there, at each run
        torch.default_generator.manual_seed(seed)
        if torch.cuda.is_initialized():
            torch.cuda.manual_seed_all(seed)
        masks = {name: mask.clone() for name, mask in (masks or {}).items()}  # it may write there
        nothing = contextlib.nullcontext()
        with NoDropout() if self.quiet else nothing, watch or nothing:
            return self.call(module, x if watch else x.clone(), masks, way, watched=not watch)

    def look(self, x, *question, **more):
        """The same without gradients."""
        with torch.no_grad():
            return self.run(x, *question, **more).detach()

    def record(self, x, module=None, **question):
        """The Record of one run: every torch operation with its numbers."""
        module, given = module or (self.unused() if self.fresh else self.module), x.clone()
        seen, output = Capture(module, keep=Kept), None
        with contextlib.suppress(Exception):
            output = self.run(given, module=module, watch=seen, **question)
        return Record(seen.calls, given, module, output)

    @cached_property
    def x(self):
        """The input that most questions are about: (batch, tokens, d_model)."""
        return self.draw(1)

    def with_token(self, token, seed):
        """The input with one token drawn anew, and larger."""
        changed = self.x.clone()
        changed[:, token] = 1.5 * self.draw(seed)[:, token]
        return changed

    @cached_property
    def base(self):
        """The output for `x`."""
        return self.look(self.x)

    @cached_property
    def size(self):
        """The size of the numbers in the output, by which differences are judged."""
        return max(self.base.abs().nan_to_num().max().item(), 1e-12)

    def differs(self, first, second):
        """The largest difference by row (batch, tokens), and whether it is more than rounding."""
        change = (first - second).abs().amax(dim=-1)
        return change / self.size, change > TOLERANCE * self.size

    def rows_moved(self, base, number=None, masks=None, module=None, columns=None, seeds=(2, 3)):
        """(batch, tokens, tokens): how far rows move from `base` when a token of `columns` changes.

        In parts of the output's size, 0 where it is no more than rounding. number: the input
        that changes alone, where forward takes several; None: all. columns: None: all tokens.
        """
        tokens = self.sizes.tokens
        moves = torch.zeros(len(base), tokens, tokens)
        for seed, j in product(seeds, range(tokens) if columns is None else columns):
            other = (number, self.with_token(j, seed))
            output = self.look(self.x, masks, module, other=other)
            change, moved = self.differs(output, base)
            moves[:, :, j] = moves[:, :, j].maximum(torch.where(moved, change, 0.0).cpu())
        return moves

    def moved_by_input(self, number, changed):
        """(tokens,) Boolean: the rows that move when one of several inputs is `changed`."""
        output = self.look(self.x, other=(number, changed))
        return self.differs(output, self.base)[1].any(dim=0).cpu()

    def moves(self, weight, values):
        """Whether the output moves when a weight has other values."""
        module = copy_module(self.pristine, share=True, instead=(weight, values))
        return bool(self.differs(self.look(self.x, module=module), self.base)[1].any())


def dropouts(module):
    """(path, layer) of each dropout layer."""
    kinds = nn.modules.dropout._DropoutNd
    parts = [*module.named_modules(), *reachable(module)]
    return [(path, part) for path, part in parts if isinstance(part, kinds)]


def set_dropout(module, p):
    """Set all dropout layers, and plain rates named after dropout, to p; return the module."""
    for _, part in dropouts(module):
        part.p = p
    for part in module.modules():
        for name, value in list(vars(part).items()):
            if "drop" in name.lower() and type(value) in (int, float) and 0 <= value < 1:
                setattr(part, name, p)
    return module
