"""The report of a study as a page: data for its template, plots, pictures, and differences from the bases."""

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

MOST = 3_000_000  # maximum characters of pictures on a page
LEFT_OUT = "The picture is left out to keep this page small; use 'tensornet-attn draw'."
# Attributes that Graphviz repeats for every node and wire, and that a page has once or does not need.
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
_DIGITS = re.compile(r"(\.\d)\d+")  # a resolution of 0.1 points is enough
ABOUT = ("tensornet", "name", "about", "source", "contains")  # sections without influence on the computation
NEAR = 1  # lines of context around a change
KINDS = {"+": "more", "-": "less", "@": "place"}


def page(study: Study, space: Space, trials: Sequence[Trial]) -> str:
    """The report of a study with its space and finished trials, as one self-contained HTML page."""
    findings = find(study, space, trials)
    drawn = pictures([*findings.chosen, *order(study, findings.proposals)])
    names = {essence: f"picture-{index}" for index, essence in enumerate(drawn)}
    states = Counter(trial.state for trial in findings.failed).most_common()
    return pages.page(
        "search.html", f"Search over {space.name}", "search.js",
        found=findings, study=study, drawn=drawn, names=names, states=states, yaml=yaml_of(study),
        ARM_NAMES=ARM_NAMES, COMPLETE=COMPLETE, COSTS=COSTS, MEANINGS=MEANINGS, **VIEWS,
    )  # fmt: skip


def plots(findings: Findings) -> list[list[tuple[int, str]]]:
    """The (rung, cost) of the plots: a row for each cost, with the last rung first; one row if there is one rung."""
    rungs = range(len(findings.study.rungs), 0, -1)
    rows = [[(rung, cost) for rung in rungs] for cost in findings.shown]
    return rows if len(rungs) > 1 else [[plot for row in rows for plot in row]]


def interval_axis(findings: Findings, width: float) -> Scale:
    """The common scale of the intervals of all finalists."""
    ends = [
        end
        for finalist in findings.confirmed
        for end in (finalist.search, finalist.mean.low, finalist.mean.high, *finalist.mean.values)
    ]
    return linear(ends, 8, width - 8)


def values(trial: Trial) -> Mapping[str, float]:
    """All known values of a trial, by objective."""
    return {**trial.price.as_dict(), **(trial.values or {})}


def times(findings: Findings, rung: int) -> Sequence[float]:
    """The seconds of trials on a rung, without trials that reuse the results of others."""
    evaluated = (trial for trial in findings.proposals if trial.same_as is None)
    return [result.seconds for trial in evaluated for result in trial.results if result.rung == rung]


def pictures(trials: Iterable[Trial]) -> dict[str, Markup]:
    """By essence, the picture of each design as SVG, or a sentence after `MOST` characters of pictures."""
    by_essence: dict[str, Markup] = {}
    room = MOST
    for trial in trials:
        if trial.essence not in by_essence:
            drawn = slim(pages.drawing(design_of(trial.design))) if room > 0 else pages.note(LEFT_OUT)
            by_essence[trial.essence] = drawn
            room -= len(drawn)
    return by_essence


@lru_cache(maxsize=1024)
def design_of(text: str) -> Design:
    """The design of a YAML text, cached."""
    return compiler.load(text)


def slim(svg: str) -> Markup:
    """A Graphviz drawing without redundant attributes, and with rounded coordinates."""
    for pattern, replacement in _SAME:
        svg = pattern.sub(replacement, str(svg))
    return Markup(_PLACES.sub(lambda match: _DIGITS.sub(r"\1", match[0]), svg))


def changed_lines(base: Mapping[str, Any], design: Design) -> list[tuple[str, str]]:
    """The difference between a base and a design with context, as (`more`, `less`, `same` or `place`, line)."""
    before, after = list(lines(base)), list(lines(design.as_dict()))
    changed = list(unified_diff(before, after, n=NEAR, lineterm=""))[3:]  # without the header
    marked = ((KINDS.get(line[0], "same"), line) for line in changed)
    return [(kind, "  ..." if kind == "place" else f"{line[0]} {line[1:]}") for kind, line in marked]


def lines(sections: Mapping[str, Any]) -> Iterator[str]:
    """The sections of a design with one line per entry, in the order of the language.

    >>> list(lines({"legs": {"f": 64}, "weights": {"W": {"legs": "f g", "init": "zeros"}}, "output": "y"}))
    ['legs:', '  f: 64', 'weights:', '  W: {legs: f g, init: zeros}', 'output: y']
    """
    order_of = ["legs" if name == "declared_legs" else name for name in Design.model_fields]
    for name in (name for name in order_of if name in sections and name not in ABOUT):
        section = sections[name]
        if isinstance(section, Mapping):
            yield f"{name}:"
            yield from (f"  {key}: {_flow(entry)}" for key, entry in section.items())
        else:
            yield f"{name}: {_flow(section)}"


def _flow(node: Any) -> str:
    if isinstance(node, Mapping):
        short_form = set(node) == {"legs"}  # `Wq: {legs: f h d}` has the short form `Wq: f h d`
        inside = ", ".join(f"{key}: {_flow(child)}" for key, child in node.items())
        return _flow(node["legs"]) if short_form else f"{{{inside}}}"
    if isinstance(node, (list, tuple)):
        return f"[{', '.join(map(_flow, node))}]"
    return str(node)


LEFT, RIGHT, TOP, BOTTOM = 58.0, 544.0, 36.0, 322.0  # the axes of a scatter plot
FAR, LOW = 1000.0, 262.0  # the ends of the axes of hypervolumes
LETTERS = 15.0  # minimum distance of the labels at the ends of lines
WIDE = 3.0  # intervals longer than this many median intervals are cut off at the ends of the axis
BEGIN, END = 170.0, 440.0  # the axis of effects
Corners = Sequence[tuple[float, float]]  # coordinates on the page


@dataclass(frozen=True)
class Scatter:
    """A scatter plot of the designs of a rung by cost and quality.

    `lost`: trials that failed before they had a quality on this rung, and their cost. `best`: by arm, the highest
    quality up to each cost; on the last rung, within all bounds.
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


def trained(findings: Findings, rung: int) -> int:
    """The number of proposals with a quality on a rung."""
    return sum(
        any(result.rung == rung and result.counts is not None for result in trial.results)
        for trial in findings.proposals
    )


def scatter(findings: Findings, number: int, cost: str) -> Scatter:
    """The scatter plot of a rung, counted from 1, by a cost. Accuracies near 1 are plotted by error rate."""
    rung, last = findings.study.rungs[number - 1], number == len(findings.study.rungs)
    values = [(trial, values_at(trial, number)) for trial in findings.proposals]
    placed = [
        (trial, measured[cost], measured["quality"])
        for trial, measured in values
        if {"quality", cost} <= measured.keys()
    ]
    lost = [
        (trial, measured[cost])
        for trial, measured in values
        if trial.state != COMPLETE and max(trial.rung, 0) == number - 1 and cost in measured
    ]
    qualities, means = [quality for *_, quality in placed], [finalist.mean for finalist in findings.confirmed if last]
    fit = rate if measure(rung) == "accuracy" and near_one(qualities) else linear
    x = cost_scale([amount for _, amount, _ in placed] + [amount for _, amount in lost], LEFT, RIGHT)
    y = fit(qualities + [end for mean in means for end in (mean.low, mean.high)], BOTTOM, TOP)
    kept = eligible(findings.study, findings.proposals) if last else findings.proposals
    slots = {trial.slot for trial in kept}
    best = {}
    for arm in findings.study.arms:
        placed_in_arm = sorted((x, y) for trial, x, y in placed if trial.arm == arm and trial.slot in slots)
        highest = accumulate((quality for _, quality in placed_in_arm), max)
        corners = [(x.at(amount), y.at(quality)) for (amount, _), quality in zip(placed_in_arm, highest, strict=True)]
        best[arm] = [*corners, *((x.last, height) for _, height in corners[-1:])]
    return Scatter(measure(rung), task(rung), cost, last, x, y, placed, lost, best)


@dataclass(frozen=True)
class Volumes:
    """The hypervolume line of each arm, and the heights of their labels, moved down to avoid overlaps."""

    x: Scale
    y: Scale
    lines: Mapping[str, Corners]
    heights: Mapping[str, float]


def volume(volumes: Mapping[str, Sequence[float]]) -> Volumes:
    """The plot of the hypervolumes of each arm after each of its evaluations, starting at 0."""
    longest = max((len(history) for history in volumes.values()), default=0)
    x = linear([0.0, float(max(1, longest))], LEFT, FAR, zero=True)
    y = linear([hypervolume for history in volumes.values() for hypervolume in history], LOW, TOP, zero=True)
    whole_ticks = replace(x, ticks=tuple(tick for tick in x.ticks if tick == int(tick)))
    lines = {
        arm: [(x.at(count), y.at(hypervolume)) for count, hypervolume in enumerate((0.0, *history))]
        for arm, history in volumes.items()
    }
    heights, last = dict[str, float](), float("-inf")
    for end, arm in sorted((corners[-1][1], arm) for arm, corners in lines.items() if len(corners) > 1):
        heights[arm] = last = max(end, last + LETTERS)
    return Volumes(whole_ticks, y, lines, heights)


def lead(volumes: Mapping[str, Sequence[float]]) -> str:
    """A sentence that compares the arms.

    >>> lead({"evolution": [0.1, 0.5, 0.6], "random": [0.2, 0.3, 0.4]})
    'Evolution ends at 0.600 and random search at 0.400, which evolution reached after 2 of its 3 designs.'
    """
    ends = {arm: history[-1] for arm, history in volumes.items() if history}
    first, *other_arms = sorted(ends, key=lambda arm: -ends[arm]) or [""]
    start = f"{ARM_NAMES.get(first, 'nothing').capitalize()} ends at {ends.get(first, 0.0):.3f}"
    if not other_arms or ends[first] == ends[other_arms[0]]:
        return f"{start}{f', and so does {ARM_NAMES[other_arms[0]]}' if other_arms else ''}."
    count = next(count for count, hypervolume in enumerate(volumes[first], 1) if hypervolume >= ends[other_arms[0]])
    when = f"which {ARM_NAMES[first]} reached after {count} of its {len(volumes[first])} designs"
    return f"{start} and {ARM_NAMES[other_arms[0]]} at {ends[other_arms[0]]:.3f}, {when}."


@dataclass(frozen=True)
class ForestRow:
    """A row of a forest plot: `kind` is gain, loss or unsure; `low` and `high` are the ends of the bar on the page.

    `cuts`: (position, direction) of the marks where an interval exceeds the plot.
    """

    effect: Effect
    kind: str
    low: float
    high: float
    cuts: Sequence[tuple[float, int]]


@dataclass(frozen=True)
class Forest:
    """A forest plot of the effects on one measure, the largest first.

    `number` formats an effect; `compared` describes the trials that are compared.
    """

    title: str
    number: Callable[[float], str]
    compared: str
    axis: Scale
    rows: Sequence[ForestRow]


def forests_of(findings: Findings, metric: str, rung: int) -> list[Forest]:
    """The forest plots of a metric: one for each set of trials that are compared."""
    groups: dict[tuple[bool, bool], list[Effect]] = {}
    for effect in findings.effects:
        if (effect.metric, effect.rung) == (metric, rung):
            groups.setdefault((effect.paired, effect.arm == ALL), []).append(effect)
    title = measure(findings.study.rungs[rung - 1]) if metric == "quality" else MEANINGS[metric]
    return [forest(groups[key], title) for key in sorted(groups)]


def forest(effects: Sequence[Effect], title: str) -> Forest:
    """The forest plot of at least one effect on one measure.

    The axis includes zero, all means, and the ends of all intervals that are not much wider than the others.
    """
    first, better = effects[0], 1 if larger(effects[0].metric) else -1
    wide = WIDE * median(effect.high - effect.low for effect in effects)
    ends = [end for effect in effects if effect.high - effect.low <= wide for end in (effect.low, effect.high)]
    axis = linear([0.0, *(effect.difference for effect in effects), *ends], BEGIN, END)
    compared = "a mutant and its parent" if first.paired else ARM_NAMES.get(first.arm, "all trials")
    number = "{:+.3f}".format if first.metric == "quality" else _signed
    ordered = sorted(effects, key=lambda effect: -effect.difference * better)
    return Forest(title, number, compared, axis, [_row(effect, axis, better) for effect in ordered])


def _row(effect: Effect, axis: Scale, better: int) -> ForestRow:
    kind = "unsure" if effect.low <= 0 <= effect.high else "gain" if effect.difference * better > 0 else "loss"
    low, high = max(axis.at(effect.low), BEGIN), min(axis.at(effect.high), END)
    cuts = [(low, 5)] * (low > axis.at(effect.low)) + [(high, -5)] * (high < axis.at(effect.high))
    return ForestRow(effect, kind, low, high, cuts)


def _signed(number: float) -> str:
    return f"{'+' if number > 0 else ''}{short(number)}"


VIEWS: Mapping[str, Callable[..., Any]] = {
    view.__name__: view
    for view in (
        base_of, changed_lines, design_of, folder, forests_of, interval_axis, lead, measure, median, on_rung, plots,
        readable_ticks, scatter, short, task, times, to_text, trained, values, volume,
    )
}  # fmt: skip
