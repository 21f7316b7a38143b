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
    it. alone: of the facts, whether nothing after it is judged where it finds something.
    sentence, example: the fault in one sentence, and in a few lines, from the rule's docstring.
    """

    code: str
    ask: callable
    unless: frozenset
    alone: callable
    sentence: str
    example: str


def rule(code, unless=(), alone=None):
    """Enter the function below under a code; the codes in `unless` must stand before it."""

    def enter(function):
        unknown = set(unless) - {rule.code for rule in RULES}
        if unknown:
            raise ValueError(f"{code} gives way to {listed(sorted(unknown))}, which stand after it")
        sentence, _, example = inspect.getdoc(function).partition("\n\n")
        RULES.append(Rule(code, function, frozenset(unless), alone, sentence, example))
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
            self.unjudged.setdefault(answer.reason, []).append(what)
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


def judge(facts, verdict):
    """Ask the rules in order; False where one hides the rest."""
    for one in RULES:
        found = [code for code in verdict.codes if code in one.unless]
        hidden = [Unjudged(f"of {listed(found)}")] if found else []
        for answer in hidden or _asked(one, facts):
            verdict.add(one.code, answer)
        verdict.asked.append(one.code)
        if one.alone and one.code in verdict.codes and one.alone(facts):
            return False
    return True


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
