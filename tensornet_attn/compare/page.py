"""The comparison as a page of HTML in one file: tables, learning curves, a picture of each design, how it was made."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from html import escape

from tensornet_attn import compiler
from tensornet_attn.analyse import html
from tensornet_attn.analyse.plots import need_matplotlib
from tensornet_attn.compare.curves import curves, style
from tensornet_attn.compare.look import STYLE
from tensornet_attn.compare.rows import designs_of
from tensornet_attn.compare.section import Row, Section
from tensornet_attn.compare.table import NOTE, cells, head
from tensornet_attn.errors import MissingPartError
from tensornet_attn.spec import Design

WIDE = 180  # of the column of intervals, in pixels


def page(sections: Sequence[Section], title: str) -> str:
    """The whole page. Raises MissingPartError without matplotlib."""
    need_matplotlib()
    body = [html.heading(1, title), html.paragraph(_counts(sections), "note")]
    if len(sections) > 1:
        links = (f'<li><a href="#task{i}">{escape(section.task)}</a></li>' for i, section in enumerate(sections))
        body.append(f'<nav><ul>{"".join(links)}<li><a href="#designs">Designs</a></li></ul></nav>')
    for place, section in enumerate(sections):
        body += _section(section, f"task{place}")
    cards = "".join(_design(*found) for found in designs_of(sections))
    body += [html.heading(2, "Designs", "designs"), f'<div class="designs">{cards}</div>']
    return html.page(title, body, STYLE)


def _counts(sections: Sequence[Section]) -> str:
    runs = sum(len(row.records) for section in sections for row in section.rows)
    waiting = sum(len(section.unfinished) for section in sections)
    tasks = f"{len(sections)} task{'s' * (len(sections) != 1)}"
    return f"{runs} finished run{'s' * (runs != 1)} on {tasks}{f', {waiting} unfinished' * bool(waiting)}."


def _section(section: Section, mark: str) -> Iterator[str]:
    yield html.heading(2, section.task, mark)
    options = [f"{name} {value}" for name, value in section.options.items() if value is not None]
    if options:
        yield html.paragraph(f"{', '.join(options)}.", "note")
    if section.rows:
        if section.verdict():
            yield html.paragraph(section.verdict(), "verdict")
        yield _table(section)
        words = "Left: training loss. Right: validation. Lines are means over seeds, bands reach from the least to the "
        words += "greatest. Colours are those of the table."
        yield f"<figure class='curves'>{curves(section)}<figcaption>{words}</figcaption></figure>"
    if section.groups:
        yield _groups(section)
    if section.unfinished:
        yield _unfinished(section)
    yield _commands(section)


def _table(section: Section) -> str:
    """The rows of a task, with their intervals drawn beside their numbers."""
    first, score, *others = head(section)
    names = [first, score, "", *others]
    lines = [f'<div class="wide"><table class="rows"><caption>{escape(NOTE[0].upper() + NOTE[1:])}.</caption>']
    lines.append(f"<thead><tr>{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr></thead><tbody>")
    ends = [end for row in section.rows for end in (row.score.low, row.score.high)]
    for place, row in enumerate(section.rows):
        label, value, *rest = cells(section, row)
        kind = "best" if row is section.best else "tied" if row in section.tied and len(section.tied) > 1 else ""
        badge = f'<span class="badge">{kind}</span>' if kind == "best" else ""
        head_cell = f"<td>{_swatch(place)}{escape(label)}{badge}</td><td>{escape(value)}</td>"
        drawn = f"<td>{_interval(row, place, min(ends), max(ends))}</td>"
        lines.append(f"<tr>{head_cell}{drawn}{''.join(f'<td>{escape(cell)}</td>' for cell in rest)}</tr>")
    return "\n".join([*lines, "</tbody></table></div>"])


def _swatch(place: int) -> str:
    """A piece of the row's line in the plots."""
    colour, dashes = style(place)
    dash = "" if dashes == "solid" else f' stroke-dasharray="{" ".join(str(2 * x) for x in dashes[1])}"'  # type: ignore[index]
    line = f'<line x1="1" y1="5" x2="23" y2="5" stroke="{colour}" stroke-width="3"{dash}/>'
    return f'<svg class="swatch" width="24" height="10" aria-hidden="true">{line}</svg>'


def _interval(row: Row, place: int, low: float, high: float) -> str:
    """The mean as a dot, each seed as a tick, the interval as a bar, on one scale for all rows of a task."""
    span = (high - low) or 1.0

    def at(value: float) -> str:
        return f"{6 + (WIDE - 12) * (value - low) / span:.1f}"

    colour, score = style(place)[0], row.score
    seeds = "".join(f'<line x1="{at(v)}" x2="{at(v)}" y1="3" y2="15" class="seed"/>' for v in score.values)
    bar = f'<line x1="{at(score.low)}" x2="{at(score.high)}" y1="9" y2="9" stroke="{colour}" stroke-width="3"/>'
    dot = f'<circle cx="{at(score.value)}" cy="9" r="3" fill="{colour}"/>'
    words = f"{row.label}: {score.to_text()}; seeds: {', '.join(f'{value:.4g}' for value in score.values)}"
    return f'<svg width="{WIDE}" height="18" role="img"><title>{escape(words)}</title>{bar}{seeds}{dot}</svg>'


def _groups(section: Section) -> str:
    names = [key.partition("/")[2] for key in section.groups]
    rows = [[row.label, *(row.mean(key).to_text() for key in section.groups)] for row in section.rows]
    return html.table(["", *names], rows, "By groups of validation samples.")


def _unfinished(section: Section) -> str:
    rows = [
        [
            label,
            str(record.seed),
            f"{record.last_step:,} of {record.run.steps:,}",
            _last(record.curve("loss")),
            record.path,
        ]
        for label, record in section.unfinished
    ]
    return html.table(["unfinished", "seed", "step", "loss there", "folder"], rows, "Runs that are not in the table.")


def _last(curve: dict[int, float]) -> str:
    return f"{curve[max(curve)]:.4g}" if curve else "none yet"


def _design(design: Design, labels: Sequence[str]) -> str:
    """A design: its picture, or why there is none; its sizes, and who has it."""
    sizes = ", ".join(f"{leg} {size}" for leg, size in design.legs.items() if size is not None)
    who = "" if list(labels) == [design.name] else f" Used by {'; '.join(labels)}."
    words = f"<b>{escape(design.name)}</b> {escape(design.about)} {escape(sizes)}.{escape(who)}"
    try:
        drawing = compiler.picture(design, "svg").decode()
    except MissingPartError as error:
        drawing = html.paragraph(f"No picture: {error}", "note")
    return f'<figure class="card"><div>{drawing}</div><figcaption>{words}</figcaption></figure>'


def _commands(section: Section) -> str:
    """How each run was made; folded away."""
    records = [record for row in section.rows for record in row.records] + [record for _, record in section.unfinished]
    lines = [f"# {record.path}\n{_command_text((record.summary or {}).get('command'))}" for record in records]
    return f"<details><summary>Commands</summary><pre>{escape(chr(10).join(lines))}</pre></details>"


def _command_text(command: object) -> str:
    """A command line, given as text or as its words."""
    if isinstance(command, (list, tuple)):
        return shlex.join(map(str, command))
    return str(command or "not finished")
