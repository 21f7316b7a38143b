"""What the check found, as text, as a picture in a notebook, and as an error for tests."""

import html
from dataclasses import dataclass, field

from shape_tracing.terminal import printable


@dataclass
class Report:
    """The answer of `check_attention`.

    ok: True where nothing wrong was found. findings: the faults, causes first. notes: what is
    good to know and no fault. cannot_tell: sentences on what was not judged, and why.
    subject: what was checked, in words. judged: False where time was up before the first test.
    """

    findings: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    cannot_tell: list = field(default_factory=list)
    subject: str = ""
    judged: bool = True

    @property
    def ok(self):
        return not self.findings

    def raise_if_wrong(self):
        """Raise AssertionError with the findings, for use in tests; return the report if ok."""
        if not self.ok or not self.judged:
            raise AssertionError(str(self))
        return self

    @property
    def headline(self):
        if not self.judged:
            text = "not checked"
        elif self.ok:
            text = "nothing wrong found"
        else:
            count = len(self.findings)
            text = "1 thing is wrong" if count == 1 else f"{count} things are wrong"
        for sentence in self.cannot_tell:
            text += f"; {sentence}"
        return text

    def __str__(self):
        lines = [f"{self.subject}: {self.headline}"]
        for number, finding in enumerate(self.findings, 1):
            lines.append(f"{number}. [{finding.code}] {finding.message}")
            if finding.evidence is not None and finding.evidence.numel():
                lines.append(_indented(finding))
        lines += [f"note [{note.code}] {note.message}" for note in self.notes]
        return printable("\n".join(lines))

    __repr__ = __str__

    def _repr_html_(self):
        escaped = html.escape(self.headline)
        parts = [f"<p><b>{html.escape(self.subject)}</b>: {escaped}</p>"]
        for number, finding in enumerate(self.findings):
            opened = " open" if number == 0 else ""
            parts.append(
                f"<details{opened}><summary><b>{html.escape(finding.code)}</b></summary>"
                f"<p>{html.escape(finding.message)}</p>{_drawn(finding)}</details>"
            )
        if self.notes:
            items = "".join(f"<li>{html.escape(note.message)}</li>" for note in self.notes)
            parts.append(f"<details><summary>Notes</summary><ul>{items}</ul></details>")
        return "\n".join(parts)


def _rows(finding):
    """The evidence as a list of rows of text, or None where it is no small matrix."""
    evidence = finding.evidence
    if evidence is None or not evidence.numel() or evidence.dim() > 2 or evidence.numel() > 144:
        return None
    if evidence.dim() < 2:
        evidence = evidence.reshape(1, -1)
    return [[_cell(number) for number in row] for row in evidence.tolist()]


def _cell(number):
    if number == 0:
        return "·"
    if number != number:
        return "NaN"
    return f"{number:.2g}"


def _indented(finding):
    rows = _rows(finding)
    if rows is None:
        return ""
    lines = [f"   {finding.shows}:"] if finding.shows else []
    width = max(len(cell) for row in rows for cell in row)
    lines += ["   " + " ".join(cell.rjust(width) for cell in row) for row in rows]
    return "\n".join(lines)


# Colours of its own for text and ground, so that it reads on a dark page too.
_CELL = "border:1px solid #999;padding:2px 8px;text-align:center;color:#111;background:"
_HEAD = "padding:2px 8px;text-align:center;font-weight:bold"
_FUTURE = {"future-visible", "mask-off-by-one", "past-hidden", "mask-argument"}


def _drawn(finding):
    """The evidence as a small table, in which what should not be there is marked."""
    rows = _rows(finding)
    if rows is None:
        return ""
    numbered = "".join(f'<th style="{_HEAD}">{j}</th>' for j in range(len(rows[0])))
    lines = [f"<tr><th></th>{numbered}</tr>"]
    for i, row in enumerate(rows):
        cells = "".join(
            _drawn_cell(cell, _is_wrong(finding, i, j, cell)) for j, cell in enumerate(row)
        )
        name = f'<th style="{_HEAD}">{i}</th>' if len(rows) > 1 else "<th></th>"
        lines.append(f"<tr>{name}{cells}</tr>")
    words = html.escape(finding.shows)
    marked = "; ✗ marks what should not be there" if "✗" in "".join(lines) else ""
    return (
        f'<p style="margin:4px 0">{words}{marked}:</p><div style="overflow-x:auto">'
        f'<table style="border-collapse:collapse;margin:0 0 8px 0">{"".join(lines)}</table></div>'
    )


def _is_wrong(finding, i, j, cell):
    if cell == "·" or finding.evidence.dim() < 2:
        return False
    if finding.wrong is not None:
        return bool(finding.wrong[i, j])
    return j > i if finding.code in _FUTURE else j != i and finding.code == "batch-mixed"


def _drawn_cell(cell, wrong):
    text, ground = (f"✗ {cell}", "#f6c6c6") if wrong else (cell, "#ffffff")
    return f'<td style="{_CELL}{ground}">{text}</td>'
