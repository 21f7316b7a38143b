"""A trace as plain text and as an HTML table that folds per module.

Both are the same on every machine: no address, no path of a file, no random id.
"""

import re
from html import escape
from itertools import groupby

from .terminal import printable

OPEN_AT_MOST = (
    40  # rows: a longer trace shows its modules closed, but for the largest or the one that broke
)

# --- Plain text -----------------------------------------------------------------------------


def text(trace, opened=False, lines=False):
    """Return the trace as a terminal's text; opened: with inner rows, lines: with source lines."""
    rows = _all(trace.rows) if opened else trace.rows
    columns = {
        "#": [row.number for row in rows],
        "operation": [row.operation + row.arguments for row in rows],
        "input": [inputs(row) for row in rows],
        "output": [outputs(trace, row) for row in rows],
        "axes": [axes(trace, row) for row in rows],
        "result": [row.result for row in rows],
        "module": [where(row) for row in rows],
        "code": [code(row) for row in rows] if lines else [],
    }
    table = _aligned({name: cells for name, cells in columns.items() if any(cells)})
    told = table[:2]
    for row, line in zip(rows, table[2:], strict=True):
        told.append(line)
        told += [f"{' ' * len(table[1].split()[0])}  {remark}" for remark in remarks(row)]
    return printable("\n".join([heading(trace), *trace.notes, *told]))


def _aligned(columns):
    """Return lines for {title: cells}: the titles, a rule, then the cells, padded to the left."""
    padded = []
    for title, cells in columns.items():
        cells = [printable(str(cell)) for cell in cells]  # before it is measured
        width = max(len(title) + 2, *map(len, cells))
        padded.append([cell.ljust(width) for cell in (title, "-" * width, *cells)])
    return ["  ".join(cells).rstrip() for cells in zip(*padded, strict=True)]


def heading(trace):
    """Return one line: what ran, how many operations, and whether it broke."""
    count = f"{len(trace.rows)} operation{'' if len(trace.rows) == 1 else 's'}"
    if trace.error is None:
        return f"{trace.title}: {count}"
    if trace.rows and trace.rows[-1].error:
        return f"{trace.title}: {count}, broke at row {trace.rows[-1].number}"
    message = str(trace.error).strip().partition("\n")[0]
    return f"{trace.title}: {count}, then {type(trace.error).__name__}: {message}"


def remarks(row):
    """Return what is to be said under a row: its note, and where it broke what would fit.

    torch's own words, which change from version to version, stand in only where the shapes do
    not tell; `trace.error` always has them.
    """
    said = [row.note] if row.note else []
    if row.inner:
        said.append(f"{len(row.inner)} operation{'' if len(row.inner) == 1 else 's'} inside")
    if row.error:
        said.append(f"broke: {row.fits or row.error}")
    return said


def inputs(row):
    """Return the shapes that went in; a parameter with its name, repeated ones counted."""
    told = []
    for shape, same in groupby(row.inputs):
        name = shape.parameter.rpartition(".")[2]
        told.append(_counted(f"{name} {shape.sizes}".lstrip(), len(list(same))))
    return ", ".join(told) or ("" if row.error else "none")


def outputs(trace, row):
    """Return the shapes that came out, with the type where it is not the trace's own."""
    if row.error:
        return "broke"
    told = []
    for shape, same in groupby(row.outputs):
        kind = "" if shape.dtype == trace.dtype else f" {str(shape.dtype).removeprefix('torch.')}"
        told.append(_counted(f"{shape.sizes}{kind}", len(list(same))))
    return ", ".join(told)


def axes(trace, row):
    """Return the names of the axes of what came out; "" where no names were given."""
    if not trace.names:
        return ""
    named = [", ".join(trace.axes(shape.sizes)) for shape in row.outputs]
    return "; ".join(dict.fromkeys(name for name in named if name))


def where(row):
    """Return the module of a row, with its other paths and the run if it is not the first."""
    return _label(row.visits[-1]) if row.visits else ""


def code(row):
    """Return the source line without the comment behind it; "…" where its statement goes on."""
    line = row.line.partition("  #")[0].rstrip()
    opened = sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
    return line + " …" if opened > 0 else line


def _label(visit):
    also = "" if not visit.others else f" = {visit.others[0]}"
    if len(visit.others) > 1:
        also = f" and {len(visit.others)} more names"
    return f"{visit.path}{also}" + (f" (run {visit.run})" if visit.run > 1 else "")


def _counted(told, count):
    return told if count == 1 else f"{count} × {told}"


def _all(rows):
    return [one for row in rows for one in (row, *_all(row.inner))]


# --- HTML -----------------------------------------------------------------------------------

COLUMNS = {"#": 5, "operation": 20, "input": 15, "output": 23, "result": 9, "code": 28}

# The id, which nothing has, gives the rules its weight: a page has its own rules for tables.
STYLE = """
TRACE{container-type:inline-size;max-width:1200px;font-size:13px;line-height:1.45}
TRACE p{margin:2px 0 6px}
TRACE table{table-layout:fixed;width:100%;min-width:0!important;border-collapse:collapse;margin:0;
font-size:inherit;border:0}
TRACE :is(th,td){text-align:left;vertical-align:top;padding:3px 8px 3px 0;border:0;
white-space:normal;overflow-wrap:anywhere;background:none}
TRACE tr{border:0;border-top:1px solid rgba(128,128,128,.28);background:none}
TRACE th{font-weight:600;opacity:.75}
TRACE td:first-child{opacity:.6;padding-left:6px}
TRACE td.number{white-space:nowrap;padding-right:0}
TRACE code{font-size:12px;background:none;color:inherit;padding:0}
TRACE small{font-size:12px;opacity:.75}
TRACE details{margin:0;border-left:3px solid rgba(128,128,128,.35)}
TRACE summary{cursor:pointer;padding:4px 6px;border-top:1px solid rgba(128,128,128,.28);
background:rgba(128,128,128,.10)}
TRACE .result span{border:1px solid currentColor;border-radius:3px;padding:0 5px;
display:inline-block;font-size:12px;line-height:1.3}
TRACE .view span{border-style:dashed;opacity:.8}
TRACE .broke{background:rgba(220,50,50,.14)}
TRACE .broke td:first-child{box-shadow:inset 4px 0 rgb(200,40,40);opacity:1}
TRACE td.said{padding:0 8px 6px 4%;opacity:1}
TRACE tr:has(td.said){border-top:0}
@container (max-width:680px){
TRACE thead{display:none}
TRACE :is(table,tbody){display:block}
TRACE tr{display:grid;grid-template-columns:2.6em 1fr auto;padding:3px 0}
TRACE td{padding:1px 6px 1px 0}
TRACE .input,TRACE .output,TRACE .code{grid-column:2 / 4}
TRACE .result{grid-column:3;grid-row:1}
TRACE .output::before{content:"→ "}
TRACE td.said{grid-column:1 / 4;padding-left:2.6em}
TRACE .said .said{padding-left:0}}
""".replace("TRACE", ":is(.shape-trace,#shape-trace)").replace("\n", "")


def html(trace):
    """Return the trace as an HTML table, its modules folded."""
    total = len(trace.rows)
    says = "".join(f"<p>{escape(note)}</p>" for note in trace.notes)
    return (
        f'<div class="shape-trace" style="overflow-x:auto"><style>{STYLE}</style>'
        f"<p><b>{escape(heading(trace))}</b></p>{says}"
        f"{_table([], head=True)}{_groups(trace, trace.rows, 0, total)}</div>"
    )


def _groups(trace, rows, depth, total):
    """Tables of rows, and a fold for each module in which more than one row stands."""
    parts, plain = [], []
    for visit, group in groupby(rows, key=lambda row: _visit(row, depth)):
        group = list(group)
        if visit is None or len(group) == 1:
            plain += group
            continue
        parts.append(_table([_html_row(trace, row) for row in plain]))
        plain = []
        inner = _groups(trace, group, depth + 1, total)
        if visit.path == "":  # the whole module needs no fold
            parts.append(inner)
            continue
        if trace.error is None:
            open_ = total <= OPEN_AT_MOST or 2 * len(group) > total
        else:
            open_ = total <= OPEN_AT_MOST or group[-1] is trace.rows[-1]
        shape = escape(outputs(trace, group[-1]))
        parts.append(
            f"<details{' open' if open_ else ''}><summary><b>{escape(_label(visit))}</b> · "
            f"{len(group)} operations · {shape}</summary>{inner}</details>"
        )
    parts.append(_table([_html_row(trace, row) for row in plain]))
    return "".join(parts)


def _visit(row, depth):
    return row.visits[depth] if depth < len(row.visits) else None


def _table(rows, head=False):
    if not rows and not head:
        return ""
    widths = "".join(f'<col width="{width}%">' for width in COLUMNS.values())
    titles = "".join(f"<th>{title}</th>" for title in COLUMNS) if head else ""
    top = f"<thead><tr>{titles}</tr></thead>" if head else ""
    # The width is for pages that leave the rules out, as JupyterLab does until a cell is run.
    return (
        f'<table width="100%" style="min-width:620px"><colgroup>{widths}</colgroup>{top}'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _html_row(trace, row):
    named = axes(trace, row)
    module = where(row)
    operation = escape(row.operation).replace("_", "_<wbr>")  # may break there
    cells = {
        "number": row.number,
        "operation": f"<b>{operation}</b>"
        + f"<wbr><code>{escape(row.arguments)}</code>" * bool(row.arguments),
        "input": escape(inputs(row)),
        "output": escape(outputs(trace, row))
        + (f"<br><small>{escape(named)}</small>" if named else ""),
        f"result {row.result.replace(' ', '-')}": f"<span>{row.result}</span>" * bool(row.result),
        "code": (f"<b>{escape(module)}</b><br>" if module else "")
        + f"<small><code>{_breakable(code(row))}</code></small>",
    }
    broke = ' class="broke"' if row.error else ""
    told = "".join(f'<td class="{name}">{cell}</td>' for name, cell in cells.items())
    return f"<tr{broke}>{told}</tr>{_said(trace, row, broke)}"


def _breakable(line):
    """Return a line of code as HTML that may break after a point or a bracket, as after a space."""
    return re.sub(r"([.(,])(?=\S)", r"\1<wbr>", escape(line))


def _said(trace, row, broke):
    """Under a row: its remarks, and the operations inside it, folded."""
    said = [escape(remark) for remark in remarks(row)]
    if row.inner:
        inside = said.pop(1 if row.note else 0)
        table = _table([_html_row(trace, part) for part in row.inner])
        opened = " open" if any(part.error for part in row.inner) else ""
        said.append(f"<details{opened}><summary>{inside}</summary>{table}</details>")
    if not said:
        return ""
    body = "".join(one if one.startswith("<details") else f"<div>{one}</div>" for one in said)
    span = len(COLUMNS)
    return f'<tr{broke}><td class="said" colspan="{span}">{body}</td></tr>'
