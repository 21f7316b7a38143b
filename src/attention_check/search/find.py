"""The subject of a check: a copy of the module with a way to call it that runs."""

import inspect
import itertools
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from ..guard import copy_module, read_settings, write_settings
from ..words import listed, told
from .make import CannotCheck, build_class
from .masks import masks_to_run
from .names import OUT_WIDTHS, WIDTHS
from .prepare import prepare, randomise
from .sizes import Sizes, choose_sizes, find_context, find_heads, lazy, widths
from .ways import NoTensor, Way, ways, ways_of_two_widths

MOST_MASKS = 80  # ways to write the masks that each call needs, to find one that runs


@dataclass(frozen=True)
class Subject:
    """A module that runs: how it is called, and on what.

    original: as it was given; pristine: a copy with random weights, which is never called.
    masks: those that each call needs, by name. failed: {"batch" or "tokens": (number, error)} of
    the usual sizes, where only others ran. two_widths: what goes wrong where d_in is not d_out.
    fresh: each call needs an uncalled copy, as it keeps something. quiet: no dropout ever drops.
    random: why two calls differ, "dropout" or "layer"; drops: whether dropout does so too.
    """

    original: nn.Module
    clock: object
    way: Way
    sizes: Sizes
    dtype: torch.dtype = torch.float32
    causal: bool | None = None
    pristine: nn.Module | None = None
    masks: dict = field(default_factory=dict)
    failed: dict = field(default_factory=dict)
    two_widths: str = ""
    fresh: bool = False
    quiet: bool = False
    random: str = ""
    drops: bool = False

    @property
    def device(self):
        for tensor in [*self.original.parameters(), *self.original.buffers()]:
            return tensor.device
        return torch.device("cpu")

    def draw(self, seed, batch=None, tokens=None):
        """A random input (batch, tokens, d_model), the same for the same seed."""
        generator = torch.Generator().manual_seed(1000 + seed)
        shape = (batch or self.sizes.batch, tokens or self.sizes.tokens, self.sizes.d_model)
        return torch.randn(shape, generator=generator).to(self.device, self.dtype)

    def call(self, module, x, masks=None, way=None):
        """The output (batch, tokens, width); torch's settings are as before."""
        self.clock.look()
        before = read_settings()
        try:
            return (way or self.way)(module, x, self.masks | (masks or {}))
        except SystemExit as error:
            raise RuntimeError("forward ends the program by sys.exit()") from error
        finally:
            write_settings(before)


@dataclass(frozen=True)
class Never:
    """A module that never returned what it should: the likeliest error, or the shape it gave."""

    original: nn.Module
    sizes: Sizes
    error: Exception | None = None
    layout: str = "batch"
    shape: tuple = ()


def find_subject(module, d_model, num_heads, causal, clock):
    """The Subject of a module, or Never. Raises CannotCheck where it wants what is not known."""
    heads, context = num_heads or find_heads(module), find_context(module)
    subject = Subject(module, clock, Way(), None, causal=causal)
    if subject.device.type == "meta":
        raise CannotCheck("The module is on the meta device and has no numbers to run on.")
    candidates = widths(module, d_model)
    if not candidates:
        raise CannotCheck(
            "The width of a token cannot be read from this module, which has no linear layer: "
            "say it, as in check_attention(module, d_model=24)."
        )
    sizes = {width: choose_sizes(width, heads, context) for width in candidates}
    dtypes = list(dict.fromkeys([torch.float32, *_dtypes(module)]))
    tries = [(d, w, way) for d in dtypes for w in candidates for way in ways(module)]
    tries += [(dtypes[0], w, way) for w in candidates for way in ways_of_two_widths(module, w)]
    failures = []
    for dtype, width, way in tries:
        found = _tried(replace(subject, dtype=dtype, way=way, sizes=sizes[width]))
        if isinstance(found, Subject):
            return found
        failures.append(found)
    return _at_other_sizes(subject, _likeliest(failures), candidates, d_model)


def _dtypes(module):
    return [p.dtype for p in module.parameters() if p.is_floating_point()]


def _tried(subject):
    """The subject, ready to be used, where it gives an output of the right shape; else Never."""
    if subject.way.layout == "one sentence":
        subject = replace(subject, sizes=replace(subject.sizes, batch=1))
    never = Never(subject.original, subject.sizes, None, subject.way.layout)
    try:
        output = subject.call(prepare(subject.original, subject.dtype), subject.draw(0))
    except (Exception, NoTensor) as error:
        masked = _with_masks(subject) if subject.way.required else None
        return masked or replace(never, error=error)
    return _ready(subject) if _fits(subject, output) else replace(never, shape=tuple(output.shape))


def _fits(subject, output):
    sizes = subject.sizes
    return output.dim() == 3 and output.shape[:2] == (sizes.batch, sizes.tokens)


def _with_masks(subject):
    """The subject with masks that each call needs, or None where none runs."""
    prepared = prepare(subject.original, subject.dtype)
    for masks in itertools.islice(masks_to_run(subject), MOST_MASKS):
        masked = replace(subject, masks=masks)
        try:
            output = masked.call(copy_module(prepared, True), subject.draw(0))
        except Exception:
            continue
        if _fits(subject, output):
            return _ready(masked)
    return None


def _ready(subject):
    pristine = prepare(subject.original, subject.dtype)
    if any(lazy(parameter) for parameter in pristine.parameters()):
        subject.call(pristine, subject.draw(0))  # lazy layers get their sizes
    randomise(pristine, subject.sizes.d_model, seed=1)
    return replace(subject, pristine=pristine)


def _likeliest(failures):
    """The failure that tells most: at the width that gets past the first layer."""
    first = [never for never in failures if never.layout == failures[0].layout]
    past = [never for never in first if "mat1 and mat2" not in str(never.error)]
    return (past or first)[0]


def _at_other_sizes(subject, never, candidates, given):
    """Nothing worked: does the longest input, or another batch?"""
    # one sentence alone may have been given, where the layout has no batch
    sizes = choose_sizes(never.sizes.d_model, never.sizes.num_heads, never.sizes.context)
    context = sizes.context
    taken = {sizes.d_model, sizes.num_heads, sizes.d_model // (sizes.num_heads or 1)}
    lengths = [context, *(n for n in (8, 16, 10) if n not in taken and n <= (context or 99))]
    tries = [(sizes.batch, n) for n in lengths if n]
    tries += [(n, sizes.tokens) for n in (1, 2, 4, 8)]
    every = itertools.product(tries, ways(subject.original), candidates[:3])
    for (batch, tokens), way, width in every:
        other = replace(sizes, batch=batch, tokens=tokens, d_model=width)
        found = _tried(replace(subject, way=way, sizes=other))
        if isinstance(found, Subject):
            if way.required and "NoneType" in str(never.error):
                raise CannotCheck(
                    f"{type(subject.original).__name__}.forward needs {listed(way.required)}, and "
                    f"no mask of a shape that the check knows fits. Wrap it in a module whose "
                    f"forward(x) gives it."
                )
            what = "tokens" if tokens != sizes.tokens else "batch"
            return replace(found, failed={what: (getattr(sizes, what), never.error)})
    never = replace(never, sizes=sizes)
    _refuse_other_inputs(never, given)
    return never


def _refuse_other_inputs(never, given):
    """Raise CannotCheck where forward wants something else than tokens."""
    original, text, name = never.original, str(never.error), type(never.original).__name__
    own, tokens = widths(original, None), never.sizes.tokens
    if given is not None and own and given not in own:
        raise CannotCheck(
            f"{name} fails at d_model = {given}, which was asked for: its layers take {own[0]}."
        )
    if never.shape[-2:-1] == (tokens + 1,):
        raise CannotCheck(
            f"{name} gives {tokens + 1} tokens for {tokens}: it seems to add a token of its own. "
            f"Check the attention module inside."
        )
    if isinstance(original, nn.MultiheadAttention) and (
        {original.kdim, original.vdim} != {original.embed_dim}
    ):
        raise CannotCheck(
            f"{name} takes keys of width {original.kdim} and values of width {original.vdim}, "
            f"beside queries of width {original.embed_dim}. Wrap it in a module whose "
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
    if isinstance(never.error, TypeError) and "required" in text and "forward()" in text:
        raise CannotCheck(f"{name} cannot be called: {text}. {advice}")
    _refuse_guesses(never, name, text)


def _refuse_guesses(never, name, text):
    """Raise CannotCheck where the fault may be what was given for lack of better."""
    way = ways(never.original)[0]
    guessed = way.guessed
    if "NoneType" in text or "mat1 and mat2" in text:
        guessed += way.optional
    if guessed:
        raise CannotCheck(
            f"{name}.forward fails: {told(never.error)}. The check can but guess what it wants "
            f"for {listed(guessed)}: wrap it in a module whose forward(x) gives that."
        )


def two_widths(thing, subject):
    """What goes wrong where a class with both widths as arguments gets two that differ, or ""."""
    names = [name.lower() for name in _arguments(thing)]
    if not set(names) & set(OUT_WIDTHS) or not set(names) & set(WIDTHS):
        return ""
    sizes, out = subject.sizes, subject.sizes.d_model
    wide = out + 6
    try:
        module = build_class(thing, out, sizes.num_heads or 1, d_in=wide)
    except Exception:
        return ""
    x = torch.randn(sizes.batch, sizes.tokens, wide)
    try:
        shape = subject.way(module.eval(), x).shape
        what = "" if shape[:2] == x.shape[:2] else f"gives an output of shape {tuple(shape)}"
    except Exception as error:
        what = f"fails: {' '.join(str(error).split())[:160]}"
    return what and f"With d_in = {wide} and d_out = {out} it {what}."


def _arguments(thing):
    return inspect.signature(thing).parameters if isinstance(thing, type) else ()
