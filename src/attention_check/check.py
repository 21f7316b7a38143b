"""`check_attention`: the tests, in the order in which one fault makes later ones lie."""

import inspect
from functools import cached_property

import torch

from . import blackbox, effect, inputs, layers, layout, masks, roles, scores, sight, visible
from .calling import OUT_WIDTHS, WIDTHS, CannotCheck, build, build_class
from .cores import cores
from .guard import Clock, TimeUp, untouched
from .report import Finding, Report
from .subject import Subject as Facts

SECONDS = 10

# The order is the order of causes: a test may rely on what those above it found.
BLOCKING = [blackbox.crash, blackbox.length, blackbox.width, blackbox.nan]
TESTS = [
    blackbox.input_changed,
    blackbox.backward_fails,
    blackbox.not_repeatable,
    blackbox.length_kept,
    blackbox.dropout_in_eval,
    blackbox.dropout_unused,
    blackbox.global_seed,
    blackbox.batch_mixed,
    layout.split_by_view,
    blackbox.input_cut,
    layout.merge_by_view,
    layout.heads_attend_heads,
    scores.softmax_axis,
    scores.softmax_twice,
    scores.not_normalised,
    effect.attention_unused,
    roles.wrong_pair,
    roles.wrong_values,
    effect.heads_alike,
    effect.no_effect,
    visible.future_visible,
    visible.mask_off_by_one,
    visible.past_hidden,
    masks.mask_argument,
    scores.scale,
    scores.rotary,
    layers.unused_layer,
    layers.detached,
    layers.not_registered,
    layers.not_a_buffer,
    masks.hidden_row,
]


class Subject(Facts):
    """The facts of one module, with those that the tests which look inside share."""

    width_finding = None

    @cached_property
    def both_cores(self):
        return tuple(cores(flow) for flow in self.flows)

    @property
    def cores(self):
        return self.both_cores[0]

    @cached_property
    def layout_mixes_batch(self):
        return layout.layout_mixes_batch(self)

    @cached_property
    def sees_others(self):
        apart = "heads-attend-heads" in self.found
        return apart or bool((self.influence > 0).fill_diagonal_(False).any())

    @cached_property
    def idle(self):
        return roles.find_idle(self)

    @cached_property
    def projections(self):
        return effect.find_projections(self)

    @cached_property
    def dead(self):
        return effect.find_dead(self)

    @cached_property
    def inputs_read(self):
        return inputs.inputs_read(self)

    @property
    def named(self):
        return {label for _, label in self.idle}

    @cached_property
    def mask_kind(self):
        return visible.mask_kind(self)

    @cached_property
    def mask_in_sight(self):
        return sight.mask_in_sight(self)

    @cached_property
    def diagonal_hidden(self):
        return visible.diagonal_hidden(self)

    @cached_property
    def masked_by_argument(self):
        """Whether forward takes a mask that hides the future, or one that fails to."""
        tried = masks.trials(self)
        return any(trial.accepted or trial.ran for trial in tried)

    def absent(self, what):
        """Whether forward takes a context that it does not get; `what` stays unjudged then."""
        if self.way.optional:
            name = self.way.optional[0]
            self.tell(f"{what} not judged, because forward was called without {name}")
        return bool(self.way.optional)

    def tell(self, sentence):
        if sentence not in self.unclear:
            self.unclear.append(sentence)


def check_attention(module_or_factory, num_heads=None, causal=None, d_model=None):
    """Say what is wrong with an attention module, and why; return a Report.

    module_or_factory: an nn.Module, taken as it is; or a function f(d_model, num_heads) that
    makes one (or its class), which lets the check choose sizes that all differ.
    num_heads, d_model: read from the module where they are not given.
    causal: True makes every visible future pair a finding, False every hidden one; None finds
    out what was meant.

    forward may take x, x and a context, or queries, keys and values, with or without masks. The
    module is not changed: the check runs a copy, in float32 with random weights, and cuts it off
    after ten seconds.
    Raises ValueError where the module cannot be made or called in a way that the check knows.
    """
    for name, size in (("num_heads", num_heads), ("d_model", d_model)):
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or size < 1):
            raise ValueError(f"{name} must be a whole number, 1 or more, but is {size!r}.")
    if causal not in (True, False, None):
        raise ValueError(f"causal must be True, False or None, but is {causal!r}.")
    with untouched():
        module, d_model, num_heads = build(module_or_factory, d_model, num_heads)
        report, done = Report(subject=type(module).__name__), []
        report.judged = False
        try:
            with Clock(SECONDS) as clock:
                subject = Subject(module, d_model, num_heads, causal, clock)
                _split_widths(module_or_factory, subject)
                report.notes, report.cannot_tell = subject.notes, subject.unclear
                report.judged = True
                _run_tests(subject, report, done)
        except TimeUp:  # told outside of the clock, which may ring again
            report.cannot_tell.append(f"stopped after {SECONDS} seconds{_left(report, done)}")
    return report


def _left(report, done):
    if not report.judged:
        return ", before one call was done: nothing was judged"
    left = [test.__name__.replace("_", "-") for test in [*BLOCKING, *TESTS] if test not in done]
    return f"; not judged: {', '.join(left)}"


def _run_tests(subject, report, done):
    """Run the tests in order, each of which may rely on those before it; `done` lists them."""
    for test in BLOCKING:
        finding = test(subject)
        done.append(test)
        if finding is not None:
            report.findings.append(finding)
            subject.found.append(finding.code)
            if _stops(subject, finding):
                report.cannot_tell.append(
                    f"nothing else was judged: {finding.code} hides what comes after it"
                )
                return
        if test is blackbox.length:
            masks.settle_required(subject)
    blackbox.find_randomness(subject)
    if subject.fresh or subject.quiet:
        subject.forget()
    if not report.findings:
        _look_for_attention(subject)
    for test in TESTS:
        finding = _safely(test, subject)
        done.append(test)
        if finding is not None:
            report.findings.append(finding)
            subject.found.append(finding.code)
            if finding.code == "heads-attend-heads":
                subject.tell("the mask was not judged, because no token sees another")
            if finding.code == "not-repeatable":
                report.cannot_tell.append(
                    "the rest was judged with a fixed random state, as far as that goes"
                )


def _look_for_attention(subject):
    """Say so where no attention is in sight; raise CannotCheck where no token sees another."""
    if subject.module is None or subject.sizes.tokens < 2 or subject.flow.attends:
        return
    if not (subject.influence > 0).fill_diagonal_(False).any():
        raise CannotCheck(
            f"No attention is in sight in {type(subject.original).__name__}: no token changes the "
            f"output of another, and forward multiplies no queries by keys. Give the module that "
            f"holds the attention."
        )
    subject.tell(
        "no product of queries and keys and no softmax was seen, so it may be no attention at all"
    )


def _stops(subject, finding):
    if finding.code == "length":
        return subject.sizes.tokens > 16
    return finding.code in ("nan", "width") or subject.module is None


def _safely(test, subject):
    """A test that fails itself is no verdict: what it would have said is not judged."""
    try:
        return test(subject)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError) as error:
        subject.tell(f"{test.__name__.replace('_', '-')} not judged ({type(error).__name__})")
        return None


def _split_widths(thing, subject):
    """A class with both widths as arguments is tried with two that differ."""
    if not isinstance(thing, type):
        return
    names = [name.lower() for name in inspect.signature(thing).parameters]
    if not set(names) & set(OUT_WIDTHS) or not set(names) & set(WIDTHS):
        return
    out = subject.sizes.d_model
    heads = subject.sizes.num_heads or 1
    wide = out + 6
    try:
        module = build_class(thing, out, heads, d_in=wide)
    except Exception:
        return
    x = torch.randn(subject.sizes.batch, subject.sizes.tokens, wide)
    try:
        shape = subject.way(module.eval(), x).shape
        right = shape[:2] == x.shape[:2]
        what = f"gives an output of shape {tuple(shape)}"
    except Exception as error:
        right, what = False, f"fails: {' '.join(str(error).split())[:160]}"
    if not right and subject.module is not None:
        subject.width_finding = Finding(
            "width",
            f"With d_in = {wide} and d_out = {out} it {what}. Merge the heads to d_out, the "
            f"width of the layers' output, not to the width of the input.",
        )
