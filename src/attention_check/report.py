"""What the check found, as text, as a picture in a notebook, and as an error for tests."""

import html
from dataclasses import dataclass, field

import torch

from shape_tracing.terminal import printable

from .covered import Covered


@dataclass
class Report:
    """The answer of `check_attention`.

    ok: True where nothing wrong was found. findings: the faults, causes first. notes: what is
    good to know and no fault. cannot_tell: sentences on what was not judged, and why.
    subject: what was checked, in words. judged: False where time was up before the first test.
    covered: the lines that never ran, the arguments never given, and what was not judged.
    """

    findings: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    cannot_tell: list = field(default_factory=list)
    subject: str = ""
    judged: bool = True
    covered: Covered = field(default_factory=Covered)

    @property
    def ok(self):
        return not self.findings

    def raise_if_wrong(self, strict=False):
        """Raise AssertionError with the findings, for use in tests; return the report if ok.

        strict: raise it also where not all was judged, `covered.whole`.
        """
        if not self.ok or not self.judged or (strict and not self.covered.whole):
            raise AssertionError(str(self))
        return self

    @property
    def headline(self):
        missing = self.covered.missing
        text = f"nothing wrong found in what ran; {missing}" if missing else "nothing wrong found"
        text = text if self.judged else "not checked"
        if count := len(self.findings):
            text = "1 thing is wrong" if count == 1 else f"{count} things are wrong"
        return "; ".join([text, *self.cannot_tell])

    def __str__(self):
        lines = [f"{self.subject}: {self.headline}"]
        for number, finding in enumerate(self.findings, 1):
            lines.append(f"{number}. [{finding.code}] {finding.message}")
            rows = _rows(finding)
            lines += [f"   {finding.shows}:"] if rows and finding.shows else []
            width = max((len(cell) for row in rows for cell, _ in row), default=0)
            lines += ["   " + " ".join(cell.rjust(width) for cell, _ in row) for row in rows]
        lines += [f"note [{note.code}] {note.message}" for note in self.notes]
        return printable("\n".join(lines))

    __repr__ = __str__

    def _repr_html_(self):
        parts = [f"<p><b>{html.escape(self.subject)}</b>: {html.escape(self.headline)}</p>"]
        for number, finding in enumerate(self.findings):
            parts.append(
                f"<details{'' if number else ' open'}><summary><b>{html.escape(finding.code)}</b>"
                f"</summary><p>{html.escape(finding.message)}</p>{_drawn(finding)}</details>"
            )
        if self.notes:
            items = "".join(f"<li>{html.escape(note.message)}</li>" for note in self.notes)
            parts.append(f"<details><summary>Notes</summary><ul>{items}</ul></details>")
        return "\n".join(parts)


_FUTURE = {"future-visible", "mask-off-by-one", "past-hidden", "mask-argument"}


def _rows(finding):
    """The evidence as rows of (text, whether it should be zero); [] where it is no small matrix."""
    if finding.evidence is None or not 0 < finding.evidence.numel() <= 144:
        return []
    numbers = torch.atleast_2d(finding.evidence)
    wrong = torch.ones(numbers.shape[-2:], dtype=torch.bool)
    if finding.wrong is not None:
        wrong = finding.wrong
    elif finding.code == "batch-mixed":
        wrong.fill_diagonal_(False)
    else:
        wrong = wrong.triu(1) & (finding.code in _FUTURE and len(numbers) > 1)
    cells = [["·" if n == 0 else f"{n:.2g}" for n in row] for row in numbers.tolist()]
    marks = (wrong & (numbers != 0).cpu()).tolist()
    return [list(zip(*row, strict=True)) for row in zip(cells, marks, strict=True)]


def _drawn(finding):
    """The evidence as a small table, in which what should be zero is marked."""
    rows = _rows(finding)
    lines = [["", *(f"<b>{j}</b>" for j in range(len(rows[0])))]] if rows else []
    for i, row in enumerate(rows):
        cells = (f"<mark>✗ {cell}</mark>" if wrong else cell for cell, wrong in row)
        lines.append([f"<b>{i}</b>" if len(rows) > 1 else "", *cells])
    table = "".join(f"<tr><td>{'</td><td>'.join(line)}</td></tr>" for line in lines)
    marked = "; ✗ marks what should not be there" if "✗" in table else ""
    return f"<p>{html.escape(finding.shows)}{marked}:</p><table>{table}</table>" if rows else ""
