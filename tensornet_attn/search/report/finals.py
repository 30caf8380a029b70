"""The finalists: what the search saw, what fresh seeds gave, and the drop between them, with intervals drawn."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tensornet_attn.search.path import to_text
from tensornet_attn.search.rank import Confirmed
from tensornet_attn.search.report import scale, words
from tensornet_attn.search.report.axes import line, swatch
from tensornet_attn.search.report.findings import Findings

WIDTH, HEIGHT = 220.0, 22.0  # of an interval
NOTE = (
    "Intervals hold the true mean in 95 of 100 repetitions (Student's t over seeds). Dot: mean; ticks: seeds; "
    "diamond: score in the search."
)


def finals(found: Findings) -> str:
    """A row a finalist, the best first, all intervals on one scale."""
    rows = sorted(found.confirmed, key=lambda one: -one.mean.value)
    ends = [value for one in rows for value in (one.search, one.mean.low, one.mean.high, *one.mean.values)]
    axis = scale.linear(ends, 8, WIDTH - 8)
    mean = f"mean of {words.counted(found.study.fresh_seeds, 'fresh seed')}"
    names = ["trial", "path", "in the search", "", mean, "drop", *map(words.column, found.shown)]
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in names)
    body = "".join(_row(found, one, axis, found.shown) for one in rows)
    table = f"<caption>{escape(NOTE)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="wide"><table class="finalists">{table}</table></div>'


def _row(found: Findings, one: Confirmed, axis: scale.Scale, costs: Sequence[str]) -> str:
    trial = found.slots[one.of]
    values = {**trial.price.as_dict(), **(trial.values or {})}
    cells = [
        f'<a href="#trial-{trial.slot}">{swatch(trial.arm)}{trial.slot}</a>',
        escape(to_text(trial.path)),
        words.score(one.search),
        interval(one, axis),
        escape(one.mean.to_text()),
        f"{one.drop:.4f}",
        *(words.exact(values.get(cost)) for cost in costs),
    ]
    kind = ' class="best"' if one is found.best else ""
    return f"<tr{kind}>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def interval(one: Confirmed, axis: scale.Scale) -> str:
    """The mean as a dot in its interval, each seed as a tick, the search's score as a diamond."""
    middle, mean = HEIGHT / 2, one.mean
    bar = line(axis.at(mean.low), axis.at(mean.high), middle, middle, "bar")
    seeds = "".join(line(axis.at(value), axis.at(value), middle - 6, middle + 6, "seed") for value in mean.values)
    dot = f'<circle class="dot" cx="{axis.at(mean.value):.1f}" cy="{middle:g}" r="3.5"/>'
    seen = f'<path class="seen" d="M{axis.at(one.search):.1f},{middle - 5:g}l5,5l-5,5l-5,-5z"/>'
    told = f"<title>{escape(f'{mean.to_text()}; in the search {words.score(one.search)}')}</title>"
    size = f'width="{WIDTH:g}" height="{HEIGHT:g}"'
    return f'<svg class="interval" {size} role="img">{told}{bar}{seeds}{dot}{seen}</svg>'
