"""The rules, in the order of causes, with what each gives way to."""

import inspect
from dataclasses import dataclass, field, replace

from ..findings import Note, Unjudged
from ..words import listed

RULES = []


@dataclass(frozen=True)
class Rule:
    """One rule.

    ask: takes the facts; returns a Finding, a Note, an Unjudged, None, or a list of these.
    unless: the codes beside which it is not asked, since they would be its cause, or would hide
    it. where: of the facts, whether there is anything to ask about. alone: whether nothing after
    it is judged where it finds something. whole: whether it asks about the module as a whole, so
    that one way to call it is enough.
    sentence, example: the fault in one sentence, and in a few lines, from the rule's docstring.
    """

    code: str
    ask: callable
    unless: frozenset
    where: callable
    alone: callable
    whole: bool
    sentence: str
    example: str


def rule(code, unless=(), where=lambda s: True, alone=lambda s: False, whole=False):
    """Enter the function below under a code; the codes in `unless` must stand before it."""

    def enter(function):
        unknown = set(unless) - {rule.code for rule in RULES}
        if unknown:
            raise ValueError(f"{code} gives way to {listed(sorted(unknown))}, which stand after it")
        sentence, _, example = inspect.getdoc(function).partition("\n\n")
        kept = frozenset(unless), where, alone, whole
        RULES.append(Rule(code, function, *kept, sentence, example))
        return function

    return enter


@dataclass
class Verdict:
    """What the rules have answered so far: findings, notes, {reason: [what is not judged]}."""

    findings: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    unjudged: dict = field(default_factory=dict)
    asked: list = field(default_factory=list)

    def add(self, code, answer):
        if isinstance(answer, Unjudged):
            what = f"{code} of {answer.of}" if answer.of else code
            known = self.unjudged.setdefault(answer.reason, [])
            known += [] if what in known else [what]
        elif answer is not None:
            answer = replace(answer, code=answer.code or code)
            known = self.notes if isinstance(answer, Note) else self.findings
            if answer.message not in {one.message for one in known}:
                known.append(answer)

    @property
    def codes(self):
        """Those of the findings, each once."""
        return list(dict.fromkeys(finding.code for finding in self.findings))

    @property
    def sentences(self):
        """One for each reason."""
        return [f"{listed(what)} not judged, because {why}" for why, what in self.unjudged.items()]


def judge(facts, verdict, rules=RULES):
    """Ask rules in order; False where one hides the rest."""
    given = {name for other in facts.others for name in other.way.names}
    for one in (one for one in rules if one.where(facts)):
        found = [code for code in verdict.codes if code in one.unless]
        hidden = [Unjudged(f"of {listed(found)}")] if found else []
        for answer in hidden or _asked(one, facts):
            if getattr(answer, "without", None) not in given:  # else another way tells
                verdict.add(one.code, answer)
        verdict.asked.append(one.code)
        if one.code in verdict.codes and one.alone(facts):
            return False
    return True


def judge_way(facts, verdict):
    """Ask the rules about another way to call the module, and add the faults that are new.

    Of what cannot be told there one sentence is kept for each reason that is new.
    """
    here = Verdict([*verdict.findings])
    judge(facts, here, [one for one in RULES if not one.whole])
    known = verdict.codes
    for finding in here.findings:
        if finding.code not in known:
            message = f"With {facts.given}: {finding.message}"
            verdict.findings.append(replace(finding, message=message))
    for why, what in here.unjudged.items():
        if not any(code in known for code in what):
            verdict.unjudged.setdefault(why, what)


def _asked(one, facts):
    """The answers of a rule; one that fails itself is no verdict."""
    try:
        return answers(one, facts)
    except Exception as error:
        return [Unjudged(f"the rule itself fails ({type(error).__name__})")]


def answers(one, facts):
    """What a rule answers, as a list."""
    answer = one.ask(facts)
    return answer if isinstance(answer, list) else [answer]
