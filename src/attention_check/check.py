"""`check_attention`: the way through the house, from a module to a report."""

from dataclasses import replace

from .covered import Watch
from .facts import Facts
from .guard import Clock, TimeUp, untouched
from .report import Report
from .rules import RULES, Verdict, judge, judge_way
from .rules.calls import attention_in_sight, never_ran, refuse_grids
from .search.find import Subject, find_subject, two_widths
from .search.function import of_function
from .search.make import build, of_heads
from .settle import settled_ways

SECONDS = 10


def check_attention(module_or_factory, num_heads=None, causal=None, d_model=None):
    """Say what is wrong with an attention module, and why; return a Report.

    module_or_factory: an nn.Module, taken as it is; or a function f(d_model, num_heads) that
    makes one (or its class), which lets the check choose sizes that all differ; or a bare function
    of q, k and v (and a mask), judged as the module around it.
    num_heads, d_model: read from the module where they are not given.
    causal: True makes every visible future pair a finding, False every hidden one; None finds
    out what was meant.

    forward may take x, x and a context, or queries, keys and values, with or without masks. The
    module is not changed: the check runs a copy, in float32 with random weights, and cuts it off
    after ten seconds.
    Raises ValueError where the module cannot be made or called in a way that the check knows.
    """
    for name, size in (("num_heads", num_heads), ("d_model", d_model)):
        if size is not None and (type(size) is not int or size < 1):
            raise ValueError(f"{name} must be a whole number, 1 or more, but is {size!r}.")
    if causal not in (True, False, None):
        raise ValueError(f"causal must be True, False or None, but is {causal!r}.")
    module_or_factory, verdict, beside = of_function(module_or_factory), Verdict(), []
    with untouched():
        module, d_model, num_heads = build(module_or_factory, d_model, num_heads)
        watch = Watch(module)
        try:
            with Clock(SECONDS) as clock:
                found = find_subject(module, d_model, num_heads, causal, clock, watch)
                if isinstance(found, Subject):
                    widths = two_widths(module_or_factory, found)
                    makes = of_heads(module_or_factory, found.sizes.d_model)
                    found = replace(found, two_widths=widths, factory=makes)
                _judge(found, verdict, beside)
        except TimeUp:  # told outside of the clock, which may ring again
            left = ", ".join(rule.code for rule in RULES if rule.code not in verdict.asked)
            left = f"; not judged: {left}" if verdict.asked else ": nothing was judged"
            beside.append(f"stopped after {SECONDS} seconds{left}")
    told = [*verdict.sentences, *filter(None, beside)]
    judged = bool(verdict.asked or verdict.findings)
    covered = watch.covered(told)
    return Report(verdict.findings, verdict.notes, told, type(module).__name__, judged, covered)


def _judge(found, verdict, beside):
    """Ask the rules, and add to `beside` what is to be said beside their answers."""
    if isinstance(found, Subject):
        s, *others = map(Facts, settled_ways(found))
        refuse_grids(s)
        beside.append(attention_in_sight(s))
        alone = not judge(s, verdict)
        for way in () if alone else others:
            judge_way(way, verdict)
    else:
        verdict.findings.append(never_ran(found))
        alone = True
    if alone:
        hides = verdict.codes[-1]
        beside.append(f"nothing else was judged: {hides} hides what comes after it")
    elif "not-repeatable" in verdict.codes:
        beside.append("the rest was judged with a fixed random state, as far as that goes")
