"""The module under test: its runs, and what they show, each found out once."""

import contextlib
import itertools
from dataclasses import replace
from functools import cached_property

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from shape_tracing import Capture

from . import calling
from .calling import CannotCheck, NoTensor, told
from .flow import Flow, Kept
from .guard import copy_module, read_settings, write_settings
from .report import Finding, listed

TOLERANCE = 1e-5  # of the largest number in the output
MOST_MASKS = 80  # ways to write the masks that each call needs, to find one that runs


class NoDropout(TorchFunctionMode):
    """Every dropout in the block lets everything through."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = getattr(function, "__name__", "")
        if "dropout" in name and args:
            return args[0]
        if name == "scaled_dot_product_attention":
            if len(args) > 4:
                args = (*args[:4], 0.0, *args[5:])
            else:
                kwargs["dropout_p"] = 0.0
        elif "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        return function(*args, **kwargs)


class Subject:
    """A float32 copy with random weights, the way to call it, and the facts that tests read.

    found: the codes of the findings so far; notes and unclear: what the report says beside them.
    """

    def __init__(self, module, d_model, num_heads, causal, clock):
        self.original, self.causal, self.clock = module, causal, clock
        self.found, self.notes, self.unclear, self.settings = [], [], [], {}
        self.fresh, self.quiet, self.dropout_too, self.masks = False, False, False, None
        self.error, self.shape, self.failed, self.backward_error = None, None, {}, None
        self.tried = []  # (width, layout, error, shape) of each way that did not work
        self._find_way(d_model, num_heads)

    # --- how to call it ---------------------------------------------------------------------

    def _find_way(self, d_model, num_heads):
        heads = num_heads or calling.find_heads(self.original)
        context = calling.find_context(self.original)
        if self.device.type == "meta":
            raise CannotCheck("The module is on the meta device and has no numbers to run on.")
        candidates = calling.widths(self.original, d_model)
        if not candidates:
            raise CannotCheck(
                "The width of a token cannot be read from this module, which has no linear layer: "
                "say it, as in check_attention(module, d_model=24)."
            )
        dtypes = [torch.float32]
        for parameter in self.original.parameters():
            if parameter.is_floating_point() and parameter.dtype not in dtypes:
                dtypes.append(parameter.dtype)
        for dtype in dtypes:
            for width in candidates:
                sizes = calling.choose_sizes(width, heads, context)
                for way in calling.ways(self.original):
                    if self._works(way, sizes, dtype):
                        return
        for width in candidates:
            sizes = calling.choose_sizes(width, heads, context)
            for way in calling.ways_of_two_widths(self.original, width):
                if self._works(way, sizes, dtypes[0]):
                    return
        sizes = calling.choose_sizes(candidates[0], heads, context)
        self._at_full_length(sizes, candidates, d_model)

    def _works(self, way, sizes, dtype):
        """Whether the way gives an output of the right shape; if so, get ready to use it."""
        self.way, self.sizes = way, sizes
        if way.layout == "one sentence":
            self.sizes = replace(sizes, batch=1)
        first = calling.prepare(self.original, dtype)
        try:
            output = self._call(first, self.draw(0, dtype))
        except (Exception, NoTensor) as error:
            if way.required and self._works_with_a_mask(dtype):
                return True
            self.tried.append((sizes.d_model, way.layout, error, None))
            return False
        if output.dim() != 3 or output.shape[:2] != (self.sizes.batch, self.sizes.tokens):
            self.tried.append((sizes.d_model, way.layout, None, tuple(output.shape)))
            return False
        self._settle(dtype)
        return True

    def _works_with_a_mask(self, dtype):
        from .masks import masks_to_run  # the masks need a subject, the subject its masks

        prepared = calling.prepare(self.original, dtype)
        for masks in itertools.islice(masks_to_run(self), MOST_MASKS):
            try:
                output = self._call(copy_module(prepared, True), self.draw(0, dtype), masks)
            except Exception:
                continue
            if output.dim() == 3 and output.shape[:2] == (self.sizes.batch, self.sizes.tokens):
                self.masks = masks
                self._settle(dtype)
                return True
        return False

    def _settle(self, dtype):
        self.dtype = dtype
        self.pristine = calling.prepare(self.original, dtype)
        if any(calling.lazy(p) for p in self.pristine.parameters()):
            self._call(self.pristine, self.draw(0))  # lazy layers get their sizes
        calling.randomise(self.pristine, self.sizes.d_model, seed=1)
        self.module = copy_module(self.pristine)

    def _at_full_length(self, sizes, candidates, given):
        """Nothing worked: does the longest input, or another batch?"""
        # the width that gets past the first layer tells most about what is wrong
        first = [t for t in self.tried if t[1] == self.tried[0][1]]
        fitting = [t for t in first if "mat1 and mat2" not in str(t[2])] or first
        width, layout, error, shape = fitting[0]
        shape = shape and (layout, shape)
        sizes = replace(sizes, d_model=width)
        context = sizes.context
        taken = {sizes.d_model, sizes.num_heads, sizes.d_model // (sizes.num_heads or 1)}
        lengths = [context, *(n for n in (8, 16, 10) if n not in taken and n <= (context or 99))]
        tries = [(sizes.batch, n) for n in lengths if n]
        tries += [(n, sizes.tokens) for n in (1, 2, 4, 8)]
        for batch, tokens in tries:
            for way in calling.ways(self.original):
                for width in candidates[:3]:
                    other = replace(sizes, batch=batch, tokens=tokens, d_model=width)
                    if self._works(way, other, torch.float32):
                        if way.required and "NoneType" in str(error):
                            raise CannotCheck(
                                f"{type(self.original).__name__}.forward needs "
                                f"{listed(way.required)}, and no mask of a shape that the check "
                                f"knows fits. Wrap it in a module whose forward(x) gives it."
                            )
                        what = "tokens" if tokens != sizes.tokens else "batch"
                        self.failed[what] = (getattr(sizes, what), error)
                        return
        self.error, self.shape, self.sizes = error, shape, sizes
        self._refuse_other_inputs(given)
        self.module = self.pristine = None

    def _refuse_other_inputs(self, given):
        """Raise CannotCheck where forward wants something else than tokens."""
        text, name = str(self.error), type(self.original).__name__
        own = calling.widths(self.original, None)
        if given is not None and own and given not in own:
            raise CannotCheck(
                f"{name} fails at d_model = {given}, which was asked for: its layers take {own[0]}."
            )
        if self.shape and self.shape[1][-2:-1] == (self.sizes.tokens + 1,):
            raise CannotCheck(
                f"{name} gives {self.sizes.tokens + 1} tokens for {self.sizes.tokens}: it seems to "
                f"add a token of its own. Check the attention module inside."
            )
        theirs = self.original if isinstance(self.original, nn.MultiheadAttention) else None
        if theirs and {theirs.kdim, theirs.vdim} != {theirs.embed_dim}:
            raise CannotCheck(
                f"{name} takes keys of width {theirs.kdim} and values of width {theirs.vdim}, "
                f"beside queries of width {theirs.embed_dim}. Wrap it in a module whose "
                f"forward(x, context) calls it."
            )
        advice = "Check the attention module inside, or wrap it in a module that takes x."
        if "expected 4, got 3" in text or "4D (batched)" in text:
            raise CannotCheck(
                f"{name} wants four axes, such as images, and the check gives (batch, tokens, "
                f"d_model). {advice}"
            )
        if "indices" in text and ("Long" in text or "Int" in text):
            raise CannotCheck(f"{name} wants token numbers, not vectors. {advice}")
        if isinstance(self.error, TypeError) and "required" in text and "forward()" in text:
            raise CannotCheck(f"{name} cannot be called: {text}. {advice}")
        way = calling.ways(self.original)[0]
        guessed = way.guessed
        if "NoneType" in text or "mat1 and mat2" in text:
            guessed += way.optional
        if guessed:
            raise CannotCheck(
                f"{name}.forward fails: {told(self.error)}. The check can but guess what it wants "
                f"for {listed(guessed)}: wrap it in a module whose forward(x) gives that."
            )

    @cached_property
    def device(self):
        for tensor in [*self.original.parameters(), *self.original.buffers()]:
            return tensor.device
        return torch.device("cpu")

    def draw(self, seed, dtype=None, batch=None, tokens=None):
        """A random input (batch, tokens, d_model), the same for the same seed."""
        generator = torch.Generator().manual_seed(1000 + seed)
        shape = (batch or self.sizes.batch, tokens or self.sizes.tokens, self.sizes.d_model)
        return torch.randn(shape, generator=generator).to(self.device, dtype or self.dtype)

    # --- runs -------------------------------------------------------------------------------

    def run(self, x, masks=None, module=None, seed=0):
        """The output for x, from a clone of x, with a fixed random state."""
        if module is None:
            module = self.unused() if self.fresh else self.module
        _seed(seed)
        return self._call(module, x.clone(), (self.masks or {}) | (masks or {}))

    def unused(self):
        """A copy that has not been called: it keeps nothing from an earlier call."""
        return copy_module(self.pristine, share=True)

    def look(self, x, masks=None, module=None, seed=0):
        """The same without gradients."""
        with torch.no_grad():
            return self.run(x, masks, module, seed).detach()

    def look_at(self, changed, number=None, masks=None, module=None):
        """The output where all inputs are `changed`, or the input of that number alone."""
        if number is None:
            return self.look(changed, masks, module)
        with self.other(number, changed):
            return self.look(self.x, masks, module)

    @contextlib.contextmanager
    def other(self, number, tensor):
        """In the block, the input of that number is `tensor`, whatever the others are."""
        kept, self.way = self.way, replace(self.way, other=(number, tensor))
        try:
            yield
        finally:
            self.way = kept

    def _call(self, module, x, masks=None):
        with self._hush():
            return self._called(module, x, masks)

    def _hush(self):
        return NoDropout() if self.quiet else contextlib.nullcontext()

    def _called(self, module, x, masks):
        self.clock.look()
        before = read_settings()
        try:
            return self.way(module, x, masks)
        except SystemExit as error:
            raise RuntimeError("forward ends the program by sys.exit()") from error
        finally:
            after = read_settings()
            if after != before:
                changed = {n: (before[n], after[n]) for n in before if before[n] != after[n]}
                self.settings |= changed
                write_settings(before)

    def capture(self, x, train=False, module=None, masks=None):
        """The Flow of one run: every torch operation with its numbers."""
        module = module or (self.unused() if self.fresh else self.module)
        module.train(train)
        given = x.clone()
        _seed(0)
        try:
            # the capture stands inside the hush, so that it sees the learner's lines
            with (
                self._hush(),
                Capture(module, keep=Kept) as seen,
                contextlib.suppress(Exception),
            ):
                self._called(module, given, (self.masks or {}) | (masks or {}))
        finally:
            module.eval()
        return Flow(seen.calls, given, self.sizes, module)

    def differs(self, first, second):
        """The largest difference by row (batch, tokens), and whether it is more than rounding."""
        change = (first - second).abs().amax(dim=-1)
        return change / self.size, change > TOLERANCE * self.size

    def note(self, code, message):
        """Add a note to the report, once."""
        if all(note.message != message for note in self.notes):
            self.notes.append(Finding(code, message))

    def forget(self):
        """Let the facts be found out anew, after a change in how the module is called."""
        facts = "base size together looking influence constant flows weights slopes _trials"
        for name in facts.split():
            vars(self).pop(name, None)

    # --- facts ------------------------------------------------------------------------------

    @cached_property
    def x(self):
        return self.draw(1)

    @cached_property
    def base(self):
        return self.look(self.x)

    @cached_property
    def size(self):
        """The size of the numbers in the output, by which differences are judged."""
        return max(self.base.abs().nan_to_num().max().item(), 1e-12)

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

    def rows_moved(self, base, number=None, masks=None, module=None, columns=None, seeds=(2, 3)):
        """(batch, tokens, tokens): how far rows move from `base` when a token of `columns` changes.

        In parts of the output's size, 0 where it is no more than rounding. number: the input
        that changes alone, where forward takes several; None: all. columns: None: all tokens.
        """
        tokens = self.sizes.tokens
        moves = torch.zeros(len(base), tokens, tokens)
        for seed in seeds:
            for j in range(tokens) if columns is None else columns:
                output = self.look_at(self.with_token(j, seed), number, masks, module)
                change, moved = self.differs(output, base)
                moves[:, :, j] = moves[:, :, j].maximum(torch.where(moved, change, 0.0).cpu())
        return moves

    def with_token(self, token, seed):
        """The input with one token drawn anew, and larger."""
        changed = self.x.clone()
        changed[:, token] = 1.5 * self.draw(seed)[:, token]
        return changed

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
    def training(self):
        """A copy in training mode, without dropout."""
        module = copy_module(self.pristine, share=True)
        set_dropout(module, 0.0)
        return module.train()

    @cached_property
    def trains_alike(self):
        """Whether batch norms, which mix in training mode by design, are absent."""
        kinds = nn.modules.batchnorm._NormBase
        return not any(isinstance(part, kinds) for part in self.pristine.modules())

    @cached_property
    def training_influence(self):
        """(tokens, tokens): `influence` in training mode."""
        base = self.look(self.x, module=self.training)
        if self.differs(self.look(self.x, module=self.training), base)[1].any():
            return torch.zeros(self.sizes.tokens, self.sizes.tokens)  # it keeps something
        moves = self.rows_moved(base, self.looking, module=self.training, seeds=(2,))
        return moves.amax(dim=0)

    @cached_property
    def constant(self):
        """How much the rows differ, of their size, when all tokens of a sentence are equal."""
        same = self.x[:, :1].expand_as(self.x)
        output = self.look(same)
        return ((output - output[:, :1]).abs().max() / self.size).item()

    @cached_property
    def flows(self):
        """Two captures, of two inputs."""
        return self.capture(self.x), self.capture(self.draw(2))

    @property
    def flow(self):
        return self.flows[0]

    @cached_property
    def weights(self):
        """Each weight by its path, those of other modules that forward uses included."""
        weights = calling.weights_of(self.module)
        known = {id(weight) for weight in weights.values()}
        for name, weight in self.flow.foreign(known):
            weights[name] = weight
        return weights

    def redrawn(self, weight, rows=None):
        """The output after a weight (or the rows of it that are True) was drawn anew."""
        kept = weight.data
        generator = torch.Generator().manual_seed(7)
        noise = torch.randn(kept.shape, generator=generator).to(kept)
        fresh = noise / calling.fan_in(kept, self.sizes.d_model) ** 0.5
        if rows is not None:
            fresh = torch.where(rows, fresh, kept)
        try:
            weight.data = fresh
            return self.look(self.x)
        finally:
            weight.data = kept

    def moved_by_input(self, number, changed):
        """(tokens,) Boolean: the rows that move when one of several inputs is `changed`."""
        return self.differs(self.look_at(changed, number), self.base)[1].any(dim=0).cpu()

    def moves(self, weight, rows=None):
        """Whether drawing the weight anew changes the output."""
        return bool(self.differs(self.redrawn(weight, rows), self.base)[1].any())

    def moves_a_little(self, weight, rows):
        """Whether the output moves as soon as those rows of a weight grow, and as they shrink.

        The rows of a unit that a ReLU has switched off have no gradient, rightly: it stays off.
        """
        kept = weight.data
        try:
            for factor in (1.01, 0.99):
                weight.data = torch.where(rows, factor * kept, kept)
                if not self.differs(self.look(self.x), self.base)[1].any():
                    return False
        finally:
            weight.data = kept
        return True

    def gradients(self, x):
        """Gradient of a random sum of the output by weight path; None where there is none."""
        names, weights = zip(*self.weights.items(), strict=True) if self.weights else ((), ())
        output = self.run(x)
        if not weights or not output.requires_grad:
            return dict.fromkeys(names)
        generator = torch.Generator().manual_seed(5)
        mix = torch.randn(output.shape, generator=generator).to(output)
        wanted = [weight for weight in weights if weight.requires_grad]
        try:
            found = torch.autograd.grad((output * mix).sum(), wanted, allow_unused=True)
        except RuntimeError as error:
            self.backward_error = error
            return dict.fromkeys(names)
        by_id = {id(weight): g for weight, g in zip(wanted, found, strict=True)}
        return {name: by_id.get(id(w)) for name, w in zip(names, weights, strict=True)}

    @cached_property
    def slopes(self):
        """The gradients on the five-token input."""
        return self.gradients(self.x)


def _seed(seed):
    # torch.manual_seed would also queue a call for a GPU that is not there, at each run
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)


def dropouts(module):
    """(path, layer) of each dropout layer."""
    kinds = nn.modules.dropout._DropoutNd
    parts = [*module.named_modules(), *calling.reachable(module)]
    return [(path, part) for path, part in parts if isinstance(part, kinds)]


def set_dropout(module, p):
    """Set all dropout layers, and plain rates named after dropout, to p."""
    for _, part in dropouts(module):
        part.p = p
    for part in module.modules():
        for name, value in list(vars(part).items()):
            rate = isinstance(value, float) or (type(value) is int and value == 0)
            if rate and "drop" in name.lower():
                setattr(part, name, p)
