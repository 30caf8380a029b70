"""The table of all trials: sorted by a click on a column, narrowed by words, each row with a link to its card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from tensornet_attn.search.path import to_text
from tensornet_attn.search.report import words
from tensornet_attn.search.report.axes import swatch
from tensornet_attn.search.report.findings import Findings
from tensornet_attn.search.space import COSTS
from tensornet_attn.search.trial import COMPLETE, Trial

Cell = tuple[str, str | float | None]  # as HTML, and what rows are sorted by; None comes last
HINT = "split, random, timed out"


def trials(found: Findings) -> str:
    """All proposals, by slot."""
    rungs = (f"rung {place}" for place, _ in enumerate(found.study.rungs, 1))
    costs = [*COSTS, *(["latency"] if any("latency" in (one.values or {}) for one in found.proposals) else [])]
    names = ["trial", "arm", "from", *rungs, *map(words.column, costs), "took", "state", "path"]
    head = "".join(f'<th scope="col"><button type="button">{escape(name)}</button></th>' for name in names)
    rows = "".join(_row(found, trial, costs) for trial in found.proposals)
    kept = f'<label>Show those with <input type="search" placeholder="{HINT}" aria-controls="trials"></label>'
    table = f'<table class="sorted" id="trials"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<p class="filter">{kept} <output></output></p><div class="wide tall">{table}</div>'


def _row(found: Findings, trial: Trial, costs: Sequence[str]) -> str:
    cells = "".join(_cell(*one) for one in _cells(found, trial, costs))
    kind = ' class="front"' if trial in found.front else ""
    return f'<tr id="row-{trial.slot}"{kind}>{cells}</tr>'


def _cell(shown: str, key: str | float | None) -> str:
    return f"<td>{shown}</td>" if key is None else f'<td data-key="{escape(str(key))}">{shown}</td>'


def _cells(found: Findings, trial: Trial, costs: Sequence[str]) -> Iterator[Cell]:
    values = {**trial.price.as_dict(), **(trial.values or {})}
    reached = {result.rung: result.counts for result in trial.results}
    yield f'<a href="#trial-{trial.slot}">{trial.slot}</a>', trial.slot
    yield f"{swatch(trial.arm)}{trial.arm}", trial.arm
    yield escape(words.origin(trial)), words.origin(trial)
    for rung in range(1, len(found.study.rungs) + 1):
        yield words.score(reached.get(rung)), reached.get(rung)
    for cost in costs:
        yield words.exact(values.get(cost)), values.get(cost)
    yield words.clock(trial.seconds), trial.seconds
    yield escape(_state(trial)), _state(trial)
    yield escape(to_text(trial.path)), to_text(trial.path)


def _state(trial: Trial) -> str:
    taken = trial.state == COMPLETE and trial.same_as is not None
    return f"as trial {trial.same_as}" if taken else trial.state
