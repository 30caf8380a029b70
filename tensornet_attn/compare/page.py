"""The comparison as a self-contained HTML page: tables, learning curves, pictures of the designs, and commands."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from markupsafe import Markup

from tensornet_attn.analyse.plots import need_matplotlib
from tensornet_attn.compare.curves import curves, style
from tensornet_attn.compare.section import NOTE, TaskSection, cells, head
from tensornet_attn.report import page as pages
from tensornet_attn.report.page import Table
from tensornet_attn.report.words import counted
from tensornet_attn.spec import Design

WIDE = 180  # width of the column of intervals in pixels


def page(sections: Sequence[TaskSection], title: str) -> str:
    """The page. Raises MissingPartError without matplotlib."""
    need_matplotlib()
    designs = []
    for design, labels in designs_of(sections):
        sizes = ", ".join(f"{leg} {size}" for leg, size in design.legs.items() if size is not None)
        designs.append((design, sizes, labels if labels != [design.name] else []))
    runs = sum(len(row.records) for section in sections for row in section.rows)
    waiting = sum(len(section.unfinished) for section in sections)
    more = f", {waiting} unfinished" if waiting else ""
    counts = f"{counted(runs, 'finished run')} on {counted(len(sections), 'task')}{more}."
    note = f"{NOTE[0].upper()}{NOTE[1:]}."
    tasks = list(map(_task, sections))
    return pages.page("compare.html", title, counts=counts, tasks=tasks, designs=designs, note=note)


def designs_of(sections: Iterable[TaskSection]) -> list[tuple[Design, list[str]]]:
    """The different designs, with the labels of the rows and unfinished runs that have them."""
    designs_by_yaml: dict[str, tuple[Design, list[str]]] = {}
    for section in sections:
        for label, record in [*((row.label, row.records[0]) for row in section.rows), *section.unfinished]:
            for design in record.designs.values():
                _, labels = designs_by_yaml.setdefault(design.to_yaml(), (design, []))
                labels += [label] if label not in labels else []
    return list(designs_by_yaml.values())


def _task(section: TaskSection) -> dict[str, Any]:
    ends = [end for row in section.rows for end in (row.score.low, row.score.high)]
    records = [record for row in section.rows for record in row.records] + [record for _, record in section.unfinished]
    rows = []  # (row, style and tooltip of its line, cells)
    for index, row in enumerate(section.rows):
        colour, dashes = style(index)
        pattern = "" if isinstance(dashes, str) else " ".join(str(2 * length) for length in dashes[1])
        seeds = ", ".join(f"{score:.4g}" for score in row.score.values)
        line = {"colour": colour, "dashes": pattern, "words": f"{row.label}: {row.score.to_text()}; seeds: {seeds}"}
        rows.append((row, line, cells(section, row)))
    commands = []
    for record in records:
        command = (record.summary or {}).get("command") or "not finished"  # text, or a list of arguments
        words = shlex.join(map(str, command)) if isinstance(command, list) else str(command)
        commands.append(f"# {record.path}\n{words}")

    def at(score: float) -> float:
        """The position of a score on the common scale of all intervals."""
        return 6 + (WIDE - 12) * (score - min(ends)) / ((max(ends) - min(ends)) or 1.0)

    return {
        "section": section,
        "options": [f"{name} {option}" for name, option in section.options.items() if option is not None],
        "head": head(section),
        "rows": rows,
        "at": at,
        "width": WIDE,
        "curves": Markup(curves(section)) if section.rows else "",
        "tables": list(_tables(section)),
        "commands": "\n".join(commands),
    }


def _tables(section: TaskSection) -> Iterator[Table]:
    """The tables of scores by groups of samples and of unfinished runs, if any."""
    if section.groups:
        names = ["", *(key.partition("/")[2] for key in section.groups)]
        rows = [[row.label, *(row.mean(key).to_text() for key in section.groups)] for row in section.rows]
        yield Table(names, rows, "Scores by groups of validation samples.")
    if section.unfinished:
        rows = []
        for label, record in section.unfinished:
            curve = record.curve("loss")
            loss = f"{curve[max(curve)]:.4g}" if curve else "none yet"
            rows.append([label, str(record.seed), f"{record.last_step:,} of {record.run.steps:,}", loss, record.path])
        yield Table(["unfinished", "seed", "step", "last loss", "folder"], rows, "Runs that are not in the table.")
