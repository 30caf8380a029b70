"""The plots of quality against costs, a row for each cost, the last rung first, with their legend."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from tensornet_attn.analyse import html
from tensornet_attn.search.report import words
from tensornet_attn.search.report.axes import cross, mark
from tensornet_attn.search.report.findings import Findings
from tensornet_attn.search.report.scatter import scatter

HINT = "Point at a mark, or go to it with the tab key, to see the design; a click keeps its card open."


def fronts(found: Findings) -> Iterator[str]:
    """The section."""
    yield html.heading(2, "Quality and cost", "fronts")
    yield html.paragraph(HINT, "note")
    yield f'<ul class="legend">{"".join(_legend(found))}</ul>'
    rows = [[_plot(found, rung, cost) for rung in range(len(found.study.rungs), 0, -1)] for cost in found.shown]
    if len(found.study.rungs) == 1:
        rows = [[plot for row in rows for plot in row]]
    yield from (f'<div class="plots">{"".join(row)}</div>' for row in rows)


def _plot(found: Findings, rung: int, cost: str) -> str:
    trained = sum(any(r.rung == rung and r.counts is not None for r in t.results) for t in found.proposals)
    end = "" if rung == len(found.study.rungs) else " Pale marks went no further."
    told = f"<b>Rung {rung}: {escape(words.task(found.study.rungs[rung - 1]))}.</b>"
    words_ = f"{told} {words.counted(trained, 'trial')}.{end}"
    return f"<figure>{scatter(found, rung, cost)}<figcaption>{words_}</figcaption></figure>"


def _legend(found: Findings) -> Iterator[str]:
    for arm in found.study.arms:
        yield _sign(mark(arm, 11, 9), f"point {arm}", words.ARMS[arm])
    for arm in found.study.arms:
        told = f"best of {words.ARMS[arm]} at this cost or less"
        yield _sign(f'<path class="best {arm}" d="M1,14h10v-9h10"/>', "", told)
    ring = f'<circle class="ring" cx="11" cy="9" r="8"/>{mark("evolution", 11, 9)}'
    yield _sign(ring, "point evolution front", "on the Pareto front of the study, with its number")
    bar = '<path class="whisker" d="M11,2v14M7,2h8M7,16h8M5,9h12"/>'
    yield _sign(bar, "", f"confirmed: mean of {found.study.fresh_seeds} fresh seeds, 95 % interval")
    yield _sign(cross(11, 9), "point lost", "ended on the way to this rung")


def _sign(inside: str, kind: str, told: str) -> str:
    return f'<li><svg class="{kind}" width="22" height="18" aria-hidden="true">{inside}</svg>{escape(told)}</li>'
