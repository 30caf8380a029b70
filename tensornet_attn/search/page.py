"""The report of a study as a page: what its template asks for, plots, pictures, and what differs from a base."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import unified_diff
from functools import lru_cache
from itertools import accumulate
from statistics import median
from typing import Any

from markupsafe import Markup

from tensornet_attn import compiler
from tensornet_attn.report import page as pages
from tensornet_attn.report.scales import Scale, linear, near_one, rate, readable_ticks
from tensornet_attn.report.scales import cost as cost_scale
from tensornet_attn.report.words import short
from tensornet_attn.search.findings import ALL, ARM_NAMES, MEANINGS, Effect, Findings, find, folder, measure, task
from tensornet_attn.search.rank import eligible, order
from tensornet_attn.search.space import COSTS, Space, base_of, to_text
from tensornet_attn.search.study import Study, yaml_of
from tensornet_attn.search.trial import COMPLETE, Trial, larger, on_rung, values_at
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
    states = Counter(trial.state for trial in found.failed).most_common()
    return pages.page(
        "search.html", f"Search over {space.name}", "search.js",
        found=found, study=study, drawn=drawn, names=names, states=states, yaml=yaml_of(study),
        ARM_NAMES=ARM_NAMES, COMPLETE=COMPLETE, COSTS=COSTS, MEANINGS=MEANINGS, **VIEWS,
    )  # fmt: skip


def plots(found: Findings) -> list[list[tuple[int, str]]]:
    """The (rung, cost) of the plots, row by row: a row for each cost, the last rung first; one row of a single rung."""
    rungs = range(len(found.study.rungs), 0, -1)
    rows = [[(rung, cost) for rung in rungs] for cost in found.shown]
    return rows if len(rungs) > 1 else [[plot for row in rows for plot in row]]


def interval_axis(found: Findings, width: float) -> Scale:
    """One scale for the intervals of all finalists."""
    ends = [v for one in found.confirmed for v in (one.search, one.mean.low, one.mean.high, *one.mean.values)]
    return linear(ends, 8, width - 8)


def values(trial: Trial) -> Mapping[str, float]:
    """All that is known of a trial, by objective."""
    return {**trial.price.as_dict(), **(trial.values or {})}


def times(found: Findings, rung: int) -> Sequence[float]:
    """The seconds that trials have taken on a rung; those that took over the results of others left out."""
    own = (trial for trial in found.proposals if trial.same_as is None)
    return [result.seconds for trial in own for result in trial.results if result.rung == rung]


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


def changed_lines(base: Mapping[str, Any], design: Design) -> list[tuple[str, str]]:
    """(`more`, `less`, `same` or `place`, the line): what differs between a base and a design, and lines around."""
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


LEFT, RIGHT, TOP, BOTTOM = 58.0, 544.0, 36.0, 322.0  # where the axes of a scatter are
FAR, LOW = 1000.0, 262.0  # where the axes of hypervolumes end
LETTERS = 15.0  # between the words at the ends of two lines
WIDE = 3.0  # times the median interval, from which on one is cut off where the axis ends
BEGIN, END = 170.0, 440.0  # of the axis of effects
Corners = Sequence[tuple[float, float]]  # places on the page


@dataclass(frozen=True)
class Scatter:
    """The designs that were trained on a rung, each with its cost and quality, and the axes of both.

    `lost`: trials that ended on their way to the rung, and their cost. `best`: by arm, the highest quality at no more
    than each cost, on the last rung within all bounds.
    """

    quality: str
    task: str
    cost: str
    last: bool
    x: Scale
    y: Scale
    placed: Sequence[tuple[Trial, float, float]]
    lost: Sequence[tuple[Trial, float]]
    best: Mapping[str, Corners]


def trained(found: Findings, rung: int) -> int:
    """How many proposals a rung gave a quality."""
    return sum(any(r.rung == rung and r.counts is not None for r in one.results) for one in found.proposals)


def scatter(found: Findings, number: int, cost: str) -> Scatter:
    """The scatter of a rung, counted from 1, by a cost. Accuracies near 1 stand by the share of errors."""
    rung, last = found.study.rungs[number - 1], number == len(found.study.rungs)
    values = [(trial, values_at(trial, number)) for trial in found.proposals]
    placed = [(trial, one[cost], one["quality"]) for trial, one in values if {"quality", cost} <= one.keys()]
    lost = [
        (trial, one[cost])
        for trial, one in values
        if trial.state != COMPLETE and max(trial.rung, 0) == number - 1 and cost in one
    ]
    qualities, means = [quality for *_, quality in placed], [one.mean for one in found.confirmed if last]
    fit = rate if measure(rung) == "accuracy" and near_one(qualities) else linear
    x = cost_scale([one for _, one, _ in placed] + [one for _, one in lost], LEFT, RIGHT)
    y = fit(qualities + [end for mean in means for end in (mean.low, mean.high)], BOTTOM, TOP)
    kept = eligible(found.study, found.proposals) if last else found.proposals
    slots = {trial.slot for trial in kept}
    best = {}
    for arm in found.study.arms:
        own = sorted((x, y) for trial, x, y in placed if trial.arm == arm and trial.slot in slots)
        highest = accumulate((quality for _, quality in own), max)
        corners = [(x.at(one), y.at(quality)) for (one, _), quality in zip(own, highest, strict=True)]
        best[arm] = [*corners, *((x.last, height) for _, height in corners[-1:])]
    return Scatter(measure(rung), task(rung), cost, last, x, y, placed, lost, best)


@dataclass(frozen=True)
class Volumes:
    """By arm the line of its hypervolumes, and the height of the words at its end, moved down where two would meet."""

    x: Scale
    y: Scale
    lines: Mapping[str, Corners]
    heights: Mapping[str, float]


def volume(volumes: Mapping[str, Sequence[float]]) -> Volumes:
    """Hypervolumes of each arm after each of its evaluations, from no evaluation on."""
    longest = max((len(own) for own in volumes.values()), default=0)
    x = linear([0.0, float(max(1, longest))], LEFT, FAR, zero=True)
    y = linear([value for own in volumes.values() for value in own], LOW, TOP, zero=True)
    whole = replace(x, ticks=tuple(tick for tick in x.ticks if tick == int(tick)))
    lines = {arm: [(x.at(i), y.at(value)) for i, value in enumerate((0.0, *own))] for arm, own in volumes.items()}
    heights, last = dict[str, float](), float("-inf")
    for end, arm in sorted((corners[-1][1], arm) for arm, corners in lines.items() if len(corners) > 1):
        heights[arm] = last = max(end, last + LETTERS)
    return Volumes(whole, y, lines, heights)


def lead(volumes: Mapping[str, Sequence[float]]) -> str:
    """How the arms compare, in a sentence.

    >>> lead({"evolution": [0.1, 0.5, 0.6], "random": [0.2, 0.3, 0.4]})
    'Evolution ends at 0.600 and random search at 0.400, which evolution had after 2 of its 3 designs.'
    """
    ends = {arm: own[-1] for arm, own in volumes.items() if own}
    first, *others = sorted(ends, key=lambda arm: -ends[arm]) or [""]
    told = f"{ARM_NAMES.get(first, 'nothing').capitalize()} ends at {ends.get(first, 0.0):.3f}"
    if not others or ends[first] == ends[others[0]]:
        return f"{told}{f', and so does {ARM_NAMES[others[0]]}' if others else ''}."
    place = next(place for place, value in enumerate(volumes[first], 1) if value >= ends[others[0]])
    when = f"which {ARM_NAMES[first]} had after {place} of its {len(volumes[first])} designs"
    return f"{told} and {ARM_NAMES[others[0]]} at {ends[others[0]]:.3f}, {when}."


@dataclass(frozen=True)
class Row:
    """An effect: `kind` is gain, loss or unsure; `low` and `high` are the ends of its bar on the page.

    `cuts`: where an interval goes on beyond the plot, and the way back from there.
    """

    effect: Effect
    kind: str
    low: float
    high: float
    cuts: Sequence[tuple[float, int]]


@dataclass(frozen=True)
class Forest:
    """Effects on one measure, the greatest first; `number` writes them, `compared` says whom they compare."""

    title: str
    number: Callable[[float], str]
    compared: str
    axis: Scale
    rows: Sequence[Row]


def forests_of(found: Findings, metric: str, rung: int) -> list[Forest]:
    """A forest plot for each way to compare designs with and without a choice."""
    groups: dict[tuple[bool, bool], list[Effect]] = {}
    for one in found.effects:
        if (one.metric, one.rung) == (metric, rung):
            groups.setdefault((one.paired, one.arm == ALL), []).append(one)
    title = measure(found.study.rungs[rung - 1]) if metric == "quality" else MEANINGS[metric]
    return [forest(groups[key], title) for key in sorted(groups)]


def forest(effects: Sequence[Effect], title: str) -> Forest:
    """The forest of some effects on one measure, at least one.

    Its axis reaches zero, all means, and the ends of all intervals that are not far wider than the others.
    """
    first, better = effects[0], 1 if larger(effects[0].metric) else -1
    wide = WIDE * median(one.high - one.low for one in effects)
    ends = [end for one in effects if one.high - one.low <= wide for end in (one.low, one.high)]
    axis = linear([0.0, *(one.difference for one in effects), *ends], BEGIN, END)
    compared = "a mutant and its parent" if first.paired else ARM_NAMES.get(first.arm, "all trials")
    number = "{:+.3f}".format if first.metric == "quality" else _signed
    ordered = sorted(effects, key=lambda one: -one.difference * better)
    return Forest(title, number, compared, axis, [_row(one, axis, better) for one in ordered])


def _row(one: Effect, axis: Scale, better: int) -> Row:
    kind = "unsure" if one.low <= 0 <= one.high else "gain" if one.difference * better > 0 else "loss"
    low, high = max(axis.at(one.low), BEGIN), min(axis.at(one.high), END)
    cuts = [(low, 5)] * (low > axis.at(one.low)) + [(high, -5)] * (high < axis.at(one.high))
    return Row(one, kind, low, high, cuts)


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{short(value)}"


VIEWS: Mapping[str, Callable[..., Any]] = {
    view.__name__: view
    for view in (
        base_of, changed_lines, design_of, folder, forests_of, interval_axis, lead, measure, median, on_rung, plots,
        readable_ticks, scatter, short, task, times, to_text, trained, values, volume,
    )
}  # fmt: skip
