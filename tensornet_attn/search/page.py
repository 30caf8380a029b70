"""The report of a study as a page: its sentences, tables and cards; the template has their order and their words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from difflib import unified_diff
from functools import lru_cache
from statistics import median
from typing import Any

from markupsafe import Markup

from tensornet_attn import compiler
from tensornet_attn.report import page as pages
from tensornet_attn.report.page import Table
from tensornet_attn.report.svg import Scale, cross, linear, mark
from tensornet_attn.report.words import clock, column, counted, drop, joined, score, short
from tensornet_attn.search.findings import ARM_NAMES, Findings, counts, find, folder, measure, origin, task
from tensornet_attn.search.plots import forests_of, lead, scatter, trained, volume
from tensornet_attn.search.rank import Confirmed, order
from tensornet_attn.search.space import COSTS, Space, base_of, to_text
from tensornet_attn.search.study import Rung, Study, yaml_of
from tensornet_attn.search.trial import COMPLETE, Trial
from tensornet_attn.spec import Design

MOST = 3_000_000  # characters of pictures on one page
LEFT_OUT = "The picture is left out, so that this page stays small; 'tensornet-attn draw' makes it."
# What Graphviz says of every node and wire, and a page says once or not at all.
_SAME = (
    (re.compile(r' xml:space="preserve"'), ""),
    (re.compile(r' font-family="Helvetica,sans-Serif"'), ""),
    (re.compile(r' xmlns:xlink="[^"]*"'), ""),
    (re.compile(r' id="(?:graph|node|edge|clust|a_)[^"]*"'), ""),
    (re.compile(r' class="(?:node|edge|cluster|graph)[^"]*"'), ""),
    (re.compile(r"<!--.*?-->\n?"), ""),
    (re.compile(r"<g>\s*</g>\n?"), ""),
)
_PLACES = re.compile(r' (?:d|points|x|y|cx|cy|rx|ry|viewBox)="[^"]*"')
_DIGITS = re.compile(r"(\.\d)\d+")  # a tenth of a point is enough
ABOUT = ("tensornet", "name", "about", "source", "contains")  # of a design, say nothing of what is computed
NEAR = 1  # lines around a change that are shown
KINDS = {"+": "more", "-": "less", "@": "place"}


def page(study: Study, space: Space, trials: Sequence[Trial]) -> str:
    """The report of a study with these finished trials, as one page of HTML that loads nothing.

    `space` is that of the study.
    """
    found = find(study, space, trials)
    drawn = pictures([*found.chosen, *order(study, found.proposals)])
    names = {essence: f"picture-{place}" for place, essence in enumerate(drawn)}
    return pages.page(
        "search.html", f"Search over {space.name}", "search.js",
        found=found, drawn=drawn, names=names, yaml=yaml_of(study), ARM_NAMES=ARM_NAMES, COSTS=COSTS, **VIEWS,
    )  # fmt: skip


def sentences(found: Findings) -> Iterator[str]:
    """What was tried, and the best that was confirmed."""
    arms = joined(f"{len(found.of_arm(arm))} by {ARM_NAMES[arm]}" for arm in found.study.arms)
    tasks = joined(task(rung) for rung in found.study.rungs)
    yield f"{counted(len(found.proposals), 'design')} of the space '{found.space.name}', {arms}, tried on {tasks}."
    nothing = "No design was trained again with fresh seeds, so nothing here is confirmed."
    yield nothing if found.best is None else _best(found, found.best)


def _best(found: Findings, best: Confirmed) -> str:
    trial = found.slots[best.of]
    seeds = counted(len(best.mean.values), "fresh seed")
    confirmed = f"{measure(found.study.rungs[-1])} {best.mean.to_text()} over {seeds}, {drop(best.drop)}"
    cost = f"{short(trial.price.macs)} multiply-adds"
    return (
        f"The best that was confirmed is trial {best.of}, {to_text(trial.path)}: {confirmed} from the search's "
        f"{score(best.search)}, at {cost}."
    )


def tiles(found: Findings) -> Iterator[tuple[str, str]]:
    """The numbers at the head of the page, and what each is."""
    yield f"{len({trial.essence for trial in found.proposals}):,}", "different designs"
    yield f"{len(found.front)}", "on the Pareto front"
    complete = sum(trial.state == COMPLETE for trial in found.proposals)
    yield f"{complete}", f"trials complete, {len(found.failed)} failed"
    if found.best is not None:
        yield found.best.mean.to_text(), "best confirmed, 95 % interval"
        yield f"{found.best.drop:.4f}", "drop from search to confirmed"
    yield clock(sum(trial.seconds for trial in found.trials)), "spent on all trials"


def plots(found: Findings) -> list[list[tuple[int, str]]]:
    """The (rung, cost) of the plots, row by row: a row for each cost, the last rung first; one row of a single rung."""
    rungs = range(len(found.study.rungs), 0, -1)
    rows = [[(rung, cost) for rung in rungs] for cost in found.shown]
    return rows if len(rungs) > 1 else [[plot for row in rows for plot in row]]


def interval_axis(found: Findings, width: float) -> Scale:
    """One scale for the intervals of all finalists."""
    ends = [v for one in found.confirmed for v in (one.search, one.mean.low, one.mean.high, *one.mean.values)]
    return linear(ends, 8, width - 8)


def columns(found: Findings) -> list[str]:
    """The heads of the table of all trials."""
    rungs = (f"rung {place}" for place, _ in enumerate(found.study.rungs, 1))
    return ["trial", "arm", "from", *rungs, *map(column, costs(found)), "took", "state", "path"]


def costs(found: Findings) -> list[str]:
    """The costs in the table of all trials."""
    return [*COSTS, *(["latency"] if any("latency" in (one.values or {}) for one in found.proposals) else [])]


def values(trial: Trial) -> Mapping[str, float]:
    """All that is known of a trial, by objective."""
    return {**trial.price.as_dict(), **(trial.values or {})}


def quality_on(trial: Trial, rung: int) -> float | None:
    """What a rung gave."""
    return {result.rung: result.counts for result in trial.results}.get(rung)


def state(trial: Trial) -> str:
    """How a trial ended."""
    taken = trial.state == COMPLETE and trial.same_as is not None
    return f"as trial {trial.same_as}" if taken else trial.state


def failures(found: Findings) -> Table:
    """What failed, and why; how many of each state first."""
    by_state = Counter(trial.state for trial in found.failed)
    caption = ", ".join(f"{name} {count}" for name, count in by_state.most_common())
    rows = [[_name(trial), trial.arm, trial.state, trial.reason] for trial in found.failed]
    return Table(("trial", "arm", "state", "reason"), rows, f"{caption[0].upper()}{caption[1:]}.")


def _name(trial: Trial) -> str:
    return str(trial.slot) if trial.of is None else f"{trial.of} with seed {trial.fresh}"


def rungs(found: Findings) -> Table:
    """What candidates were trained on, and how many of each arm came that far."""
    names = ["rung", "task", "run", "learning rates", "quality", "goes on", *found.study.arms, "median time"]
    rows = [_rung(found, place, rung) for place, rung in enumerate(found.study.rungs, 1)]
    caption = (
        "A rung trains a design with each learning rate, all at equal compute; its quality is that of the best one."
    )
    return Table(names, rows, caption)


def _rung(found: Findings, place: int, rung: Rung) -> list[str]:
    own = [trial for trial in found.proposals if any(result.rung == place for result in trial.results)]
    times = [r.seconds for trial in own if trial.same_as is None for r in trial.results if r.rung == place]
    return [
        str(place),
        task(rung),
        ", ".join(f"{name} {value}" for name, value in rung.run.items()),
        ", ".join(f"{rate:g}" for rate in rung.rates),
        counts(rung),
        "" if place == len(found.study.rungs) else f"best {rung.keep:.0%}",
        *(str(sum(trial.arm == arm for trial in own)) for arm in found.study.arms),
        clock(median(times)) if times else "",
    ]


def pictures(trials: Iterable[Trial]) -> dict[str, Markup]:
    """By essence, the picture of each design as SVG, the first ones as far as the page has room; else a sentence."""
    found: dict[str, Markup] = {}
    room = MOST
    for trial in trials:
        if trial.essence not in found:
            drawn = slim(pages.drawing(design_of(trial.design))) if room > 0 else pages.note(LEFT_OUT)
            found[trial.essence] = drawn
            room -= len(drawn)
    return found


@lru_cache(maxsize=1024)
def design_of(text: str) -> Design:
    """A design by its YAML, read once."""
    return compiler.load(text)


def slim(svg: str) -> Markup:
    """A drawing of Graphviz without what its page says once."""
    for pattern, other in _SAME:
        svg = pattern.sub(other, str(svg))
    return Markup(_PLACES.sub(lambda places: _DIGITS.sub(r"\1", places[0]), svg))


def difference(found: Findings, trial: Trial) -> list[tuple[str, str]]:
    """The lines that a design has and its base has not, or the other way round, and some around them; by kind."""
    return changed_lines(found.space.bases[base_of(trial.path)], design_of(trial.design))


def changed_lines(base: Mapping[str, Any], design: Design) -> list[tuple[str, str]]:
    """(`more`, `less`, `same` or `place`, the line): what differs between a base and a design, an entry a line."""
    before, after = list(lines(base)), list(lines(design.as_dict()))
    changed = list(unified_diff(before, after, n=NEAR, lineterm=""))[3:]  # the first place is the beginning
    kinds = ((KINDS.get(text[0], "same"), text) for text in changed)
    return [(kind, "  ..." if kind == "place" else f"{text[0]} {text[1:]}") for kind, text in kinds]


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """The entries of a design, a line each, under the names of their sections, in the order of the language.

    >>> list(lines({"legs": {"f": 64}, "weights": {"W": {"legs": "f g", "init": "zeros"}}, "output": "y"}))
    ['legs:', '  f: 64', 'weights:', '  W: {legs: f g, init: zeros}', 'output: y']
    """
    order_of = ["legs" if name == "declared_legs" else name for name in Design.model_fields]
    for name in (name for name in order_of if name in data and name not in ABOUT):
        section = data[name]
        if isinstance(section, Mapping):
            yield f"{name}:"
            yield from (f"  {key}: {_flow(value)}" for key, value in section.items())
        else:
            yield f"{name}: {_flow(section)}"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        short_form = set(value) == {"legs"}  # `Wq: {legs: f h d}` is written `Wq: f h d`
        inside = ", ".join(f"{key}: {_flow(item)}" for key, item in value.items())
        return _flow(value["legs"]) if short_form else f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    return str(value)


VIEWS: Mapping[str, Callable[..., Any]] = {
    view.__name__: view
    for view in (
        base_of, columns, costs, cross, difference, failures, folder, forests_of, interval_axis, lead, mark, measure,
        origin, plots, quality_on, rungs, scatter, sentences, state, task, tiles, to_text, trained, values, volume,
    )
}  # fmt: skip
