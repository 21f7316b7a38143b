"""`check_attention`: the way through the house, from a module to a report."""

from dataclasses import replace

from .facts import Facts
from .guard import Clock, TimeUp, untouched
from .report import Report
from .rules import RULES, Verdict, judge
from .rules.calls import attention_in_sight, never_ran
from .search.find import Never, find_subject, two_widths
from .search.make import build
from .settle import settled

SECONDS = 10


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
        verdict, others = Verdict(), []
        try:
            with Clock(SECONDS) as clock:
                subject = find_subject(module, d_model, num_heads, causal, clock)
                if isinstance(subject, Never):
                    verdict.findings.append(never_ran(subject))
                    others.append(_nothing_else(verdict))
                else:
                    subject = replace(subject, two_widths=two_widths(module_or_factory, subject))
                    others += _judged(Facts(settled(subject)), verdict)
        except TimeUp:  # told outside of the clock, which may ring again
            others.append(f"stopped after {SECONDS} seconds{_left(verdict)}")
    judged = bool(verdict.asked or verdict.findings)
    told = verdict.sentences + others
    return Report(verdict.findings, verdict.notes, told, type(module).__name__, judged)


def _judged(s, verdict):
    """Ask the rules; return what is to be said beside their answers."""
    others = [attention_in_sight(s)]
    if not judge(s, verdict):
        others.append(_nothing_else(verdict))
    elif "not-repeatable" in {finding.code for finding in verdict.findings}:
        others.append("the rest was judged with a fixed random state, as far as that goes")
    return [sentence for sentence in others if sentence]


def _nothing_else(verdict):
    return f"nothing else was judged: {verdict.findings[-1].code} hides what comes after it"


def _left(verdict):
    if not verdict.asked:
        return ", before one call was done: nothing was judged"
    left = [rule.code for rule in RULES if rule.code not in verdict.asked]
    return f"; not judged: {', '.join(left)}"
