"""What the plots of a study's report show: quality against cost, hypervolumes over evaluations, effects of moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

from tensornet_attn.report.scales import Scale, linear, near_one, rate
from tensornet_attn.report.scales import cost as cost_scale
from tensornet_attn.report.words import short
from tensornet_attn.search.effects import ALL, Effect
from tensornet_attn.search.findings import ARM_NAMES, MEANINGS, Findings, measure, task
from tensornet_attn.search.rank import eligible
from tensornet_attn.search.trial import COMPLETE, Trial, larger, values_at

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
