"""The subject of a check: a copy of the module with a way to call it that runs."""

import contextlib
import itertools
import re
from dataclasses import dataclass, field, replace

import torch
from torch import nn

from ..guard import copy_module, settings_kept
from ..words import listed, told
from .make import CannotCheck, arguments, build_class
from .masks import masks_to_run
from .names import HEADS, OUT_WIDTHS, WIDTHS
from .prepare import prepare, randomise
from .sizes import Sizes, attribute, choose_sizes, find_context, lazy, widths
from .ways import Way, ways, ways_of_two_widths

MOST_MASKS = 80  # ways to write the masks that each call needs, to find one that runs


@dataclass(frozen=True)
class Subject:
    """A module that runs: how it is called, and on what.

    original: as it was given; pristine: a copy with random weights, which is never called.
    masks: those that each call needs, by name. failed: {"batch" or "tokens": (number, error)} of
    the usual sizes, where only others ran. two_widths: what goes wrong where d_in is not d_out.
    factory: makes the module with another number of heads, or None.
    fresh: each call needs an uncalled copy, as it keeps something. quiet: no dropout ever drops.
    random: why two calls differ, "dropout" or "layer"; drops: whether dropout does so too.
    watch: sees which lines run, or None.
    given: what is called otherwise than usual, in words. others: the Subjects of all other ways.
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
    factory: object = None
    fresh: bool = False
    quiet: bool = False
    random: str = ""
    drops: bool = False
    given: str = ""
    others: tuple = ()
    watch: object = None

    @property
    def device(self):
        tensors = itertools.chain(self.original.parameters(), self.original.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    def draw(self, seed, batch=None, tokens=None):
        """A random input (batch, tokens, d_model), the same for the same seed."""
        generator = torch.Generator().manual_seed(1000 + seed)
        shape = (batch or self.sizes.batch, tokens or self.sizes.tokens, self.sizes.d_model)
        return torch.randn(shape, generator=generator).to(self.device, self.dtype)

    def call(self, module, x, masks=None, way=None, watched=True):
        """The output (batch, tokens, width); torch's settings are as before."""
        with self.guarded(watched):
            return (way or self.way)(module, x, self.masks | (masks or {}))

    @contextlib.contextmanager
    def guarded(self, watched=True):
        """For a call of the module: within the time, watched, with torch's settings as before."""
        self.clock.look()
        watch = self.watch() if self.watch and watched else contextlib.nullcontext()
        with settings_kept(), watch:
            try:
                yield
            except SystemExit as error:
                raise RuntimeError("forward ends the program by sys.exit()") from error


@dataclass(frozen=True)
class Never:
    """A module that never returned what it should: the likeliest error, or the shape it gave."""

    subject: Subject
    error: Exception | None = None
    shape: tuple = ()


def find_subject(module, d_model, num_heads, causal, clock, watch=None):
    """The Subject of a module, or Never. Raises CannotCheck where it wants what is not known."""
    heads, context = num_heads or attribute(module, HEADS), find_context(module)
    subject = Subject(module, clock, Way(), None, causal=causal, watch=watch)
    if subject.device.type == "meta":
        raise CannotCheck("The module is on the meta device and has no numbers to run on.")
    candidates = widths(module, d_model)
    if not candidates:
        raise CannotCheck(
            "The width of a token cannot be read from this module, which has no linear layer: "
            "say it, as in check_attention(module, d_model=24)."
        )
    sizes = {width: choose_sizes(width, heads, context) for width in candidates}
    own = [p.dtype for p in module.parameters() if p.is_floating_point()]
    dtypes = list(dict.fromkeys([torch.float32, *own]))
    tries = [(d, w, way) for d in dtypes for w in candidates for way in ways(module)]
    tries += [(dtypes[0], w, way) for w in candidates for way in ways_of_two_widths(module, w)]
    failures = []
    for dtype, width, way in tries:
        found = _tried(replace(subject, dtype=dtype, way=way, sizes=sizes[width]))
        if isinstance(found, Subject):
            return found
        if way.layout == tries[0][2].layout:
            failures.append(found)
    # the failure that tells most is that at the width that gets past the first layer
    never = min(failures, key=lambda never: "mat1 and mat2" in str(never.error))
    return _at_other_sizes(never, candidates[:3]) or _refused(never, d_model)


def _tried(subject):
    """The subject, ready to be used, where it gives an output of the right shape; else Never."""
    if subject.way.layout == "one sentence":
        subject = replace(subject, sizes=replace(subject.sizes, batch=1))
    prepared, failures = prepare(subject.original, subject.dtype), []
    masks = itertools.islice(masks_to_run(subject), MOST_MASKS) if subject.way.required else ()
    for given in itertools.chain([{}], masks):
        masked = replace(subject, masks=given)
        try:
            output = masked.call(copy_module(prepared, share=True), subject.draw(0))
        except Exception as error:
            failures.append(Never(subject, error))
            continue
        if output.dim() == 3 and output.shape[:2] == (subject.sizes.batch, subject.sizes.tokens):
            return _ready(masked)
        failures.append(Never(subject, shape=tuple(output.shape)))
    return failures[0]


def _ready(subject):
    pristine = prepare(subject.original, subject.dtype)
    if any(lazy(parameter) for parameter in pristine.parameters()):
        subject.call(pristine, subject.draw(0))  # lazy layers get their sizes
    randomise(pristine, subject.sizes.d_model, seed=1)
    return replace(subject, pristine=pristine)


def _at_other_sizes(never, candidates):
    """Nothing worked: does the longest input, or another batch? The Subject, or None."""
    sizes, context = never.subject.sizes, never.subject.sizes.context
    taken = {sizes.d_model, sizes.num_heads, sizes.d_model // (sizes.num_heads or 1)}
    named = [int(n) for n in re.findall(r"\((\d+)\)", str(never.error))]  # of a fixed length
    usual = (n for n in (8, 16, 10) if n not in taken)
    lengths = [n for n in (context, *usual, *named) if n and 1 < n <= (context or 99)]
    tries = [("tokens", n) for n in lengths] + [("batch", n) for n in (1, 2, 4, 8)]
    module = never.subject.original
    for (what, size), way, width in itertools.product(tries, ways(module), candidates):
        other = replace(sizes, d_model=width, **{what: size})
        found = _tried(replace(never.subject, way=way, sizes=other))
        if isinstance(found, Never):
            continue
        if way.required and "NoneType" in str(never.error):
            raise CannotCheck(
                f"{type(module).__name__}.forward needs {listed(way.required)}, and no mask of a "
                f"shape that the check knows fits. Wrap it in a module whose forward(x) gives it."
            )
        error = never.error or f"the output has the shape {never.shape}"
        return replace(found, failed={what: (getattr(sizes, what), error)})
    return None


_IMAGES = "four axes, as of images with channels first, not (batch, tokens, d_model)"
_WANTS = {  # what the error says -> what the module wants
    r"expected 4, got 3|[Ee]xpected 4D|4D \(batched\)": _IMAGES,
    r"number of channels|to have \d+ channels": _IMAGES,
    r"indices[^$]*(Long|Int)": "token numbers, not vectors",
    r"forward\(\) missing .*required": "more arguments",
}


def _refused(never, given):
    """Never, or CannotCheck where forward wants something else than tokens, or than a guess."""
    module, text, tokens = never.subject.original, str(never.error), never.subject.sizes.tokens
    own, way = widths(module, None), ways(module)[0]
    sides = {getattr(module, name, None) for name in ("embed_dim", "kdim", "vdim")}
    guessed = way.guessed
    if "NoneType" in text or "mat1 and mat2" in text:
        guessed += way.optional
    if "NoneType" in text:
        left = [p.name for p in arguments(module.forward) if p.default is None]
        guessed += tuple(name for name in left if name not in (*way.masks, *guessed))
    wanted = [words for said, words in _WANTS.items() if re.search(said, text)]
    why, inside = "", "Check the attention inside, or wrap it in a module that takes x."
    if never.shape[:1] == (never.subject.sizes.batch,) and len(never.shape) == 2:
        why = f"gives one row for each sentence, {never.shape}: it seems to pool. {inside}"
    elif wanted:
        why = f"wants {wanted[0]}. {inside} ({told(never.error)})"
    elif given and own and given not in own:
        why = f"fails at d_model = {given}: its layers take {own[0]}."
    elif never.shape[-2:-1] == (tokens + 1,):
        why = f"gives {tokens + 1} tokens for {tokens}: it seems to add one. {inside}"
    elif isinstance(module, nn.MultiheadAttention) and len(sides) > 1:
        why = "takes keys or values of another width than queries. Wrap it in a module whose "
        why += "forward(x, context) calls it."
    elif guessed:
        why = f"fails: {told(never.error)}. The check can but guess what it wants for "
        why += f"{listed(guessed)}: wrap it in a module whose forward(x) gives that."
    if why:
        raise CannotCheck(f"{type(module).__name__} {why}")
    return never


def two_widths(thing, subject):
    """What goes wrong where a class with both widths as arguments gets two that differ, or ""."""
    names = {p.name.lower() for p in arguments(thing)} if isinstance(thing, type) else set()
    if not names & set(OUT_WIDTHS) or not names & set(WIDTHS):
        return ""
    sizes, out, wide = subject.sizes, subject.sizes.d_model, subject.sizes.d_model + 6
    try:
        module = build_class(thing, out, sizes.num_heads or 1, d_in=wide).eval()
    except CannotCheck:
        return ""
    x = torch.randn(sizes.batch, sizes.tokens, wide)
    try:
        shape = subject.way(module, x).shape
        what = "" if shape[:2] == x.shape[:2] else f"gives an output of shape {tuple(shape)}"
    except Exception as error:
        what = f"fails: {told(error)}"
    return what and f"With d_in = {wide} and d_out = {out} it {what}."
