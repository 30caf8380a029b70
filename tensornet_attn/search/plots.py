"""The plots of a study's report: quality against cost, hypervolumes over evaluations, effects of moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import accumulate
from statistics import median

from markupsafe import Markup

from tensornet_attn.report.svg import Axes, Scale, cross, drawing, line, linear, mark, near_one, rate, steps, text
from tensornet_attn.report.svg import cost as cost_scale
from tensornet_attn.report.words import score, short
from tensornet_attn.search.effects import ALL, Effect
from tensornet_attn.search.findings import ARM_NAMES, MEANINGS, Findings, measure, task
from tensornet_attn.search.rank import eligible
from tensornet_attn.search.space import to_text
from tensornet_attn.search.study import Rung
from tensornet_attn.search.trial import COMPLETE, Trial, larger, values_at

SCATTER = (560.0, 366.0)
LEFT, RIGHT, TOP, BOTTOM = 58.0, 544.0, 36.0, 322.0  # where its axes are
LANE = 8.0  # above the end of the plot, where the designs that have no quality stand
VOLUME = (1120.0, 320.0)
FAR, LOW = 1000.0, 262.0  # where the axes of hypervolumes end
LETTERS = 15.0  # between the words at the ends of two lines
FOREST, ROW, HEAD, FOOT = 560.0, 24.0, 30.0, 36.0
WIDE = 3.0  # times the median interval, from which on one is cut off where the axis ends
BEGIN, END = 170.0, 440.0  # of the plot; names stand before it, numbers behind it
Placed = tuple[Trial, float, float]  # a trial, its cost and its quality


def trained(found: Findings, rung: int) -> int:
    """How many proposals a rung gave a quality."""
    return sum(any(r.rung == rung and r.counts is not None for r in one.results) for one in found.proposals)


def scatter(found: Findings, rung: int, cost: str) -> Markup:
    """All designs that were trained on a rung, and those that failed there, by quality and cost."""
    placed = list(_placed(found.proposals, rung, cost))
    failed = [(trial, value) for trial in _lost(found, rung) if (value := values_at(trial, rung).get(cost)) is not None]
    last = rung == len(found.study.rungs)
    axes = _axes(found, found.study.rungs[rung - 1], placed, [value for _, value in failed], last)
    title = measure(found.study.rungs[rung - 1])
    pieces = [axes.frame(MEANINGS[cost], title, short, _number)]
    pieces += [_best(axes, placed, found, rung, arm) for arm in found.study.arms]
    pieces += [_confirmed(axes, found, trial, x) for trial, x, _ in placed if last]
    pieces += [_lost_point(axes, trial, value) for trial, value in failed]
    pieces += [_point(axes, found, one, last) for one in sorted(placed, key=lambda one: one[0].slot)]
    pieces += [_label(axes, one) for one in placed if last and _shows(found, one[0])]
    return drawing(*SCATTER, pieces, f"{title} on {task(found.study.rungs[rung - 1])}, by {cost}")


def _placed(trials: Iterable[Trial], rung: int, cost: str) -> Iterator[Placed]:
    for trial in trials:
        values = values_at(trial, rung)
        if "quality" in values and cost in values:
            yield trial, values[cost], values["quality"]


def _lost(found: Findings, rung: int) -> list[Trial]:
    """The trials that ended on their way to a rung."""
    return [trial for trial in found.proposals if trial.state != COMPLETE and max(trial.rung, 0) == rung - 1]


def _axes(found: Findings, rung: Rung, placed: Sequence[Placed], failed: Sequence[float], last: bool) -> Axes:
    """Linear in quality; accuracies near 1 by the share of errors."""
    qualities = [quality for _, _, quality in placed]
    ends = [end for one in found.confirmed for end in (one.mean.low, one.mean.high)] if last else []
    errors = measure(rung) == "accuracy" and near_one(qualities)
    fit = rate if errors else linear
    costs = [cost for _, cost, _ in placed] + list(failed)
    return Axes(cost_scale(costs, LEFT, RIGHT), fit(qualities + ends, BOTTOM, TOP))


def _number(value: float) -> str:
    return f"{value:g}"


def _best(axes: Axes, placed: Sequence[Placed], found: Findings, rung: int, arm: str) -> str:
    """The best quality of an arm at no more than each cost; on the last rung, within all bounds."""
    kept = {trial.slot for trial in eligible(found.study, found.proposals)} if rung == len(found.study.rungs) else None
    own = sorted((x, y) for trial, x, y in placed if trial.arm == arm and (kept is None or trial.slot in kept))
    highest = accumulate((y for _, y in own), max)
    corners = [(axes.x.at(x), axes.y.at(y)) for (x, _), y in zip(own, highest, strict=True)]
    return steps([*corners, (axes.x.last, corners[-1][1])] if corners else [], f"best {arm}")


def _point(axes: Axes, found: Findings, placed: Placed, last: bool) -> str:
    trial, x, y = placed
    kinds = ["point", trial.arm]
    kinds += ["front"] if last and _shows(found, trial) else []
    kinds += [] if last or trial.rung > 1 else ["stopped"]
    at = axes.x.at(x), axes.y.at(y)
    ring = f'<circle class="ring" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="9"/>'
    return link(trial, f"{ring}{mark(trial.arm, *at)}", " ".join(kinds), f"quality {score(y)}")


def _shows(found: Findings, trial: Trial) -> bool:
    """Whether a trial is the one of its design that stands on the front."""
    return any(trial is one for one in found.front)


def _lost_point(axes: Axes, trial: Trial, value: float) -> str:
    return link(trial, cross(axes.x.at(value), BOTTOM - LANE), f"point lost {trial.arm}", trial.state)


def _confirmed(axes: Axes, found: Findings, trial: Trial, cost: float) -> str:
    """The interval of the confirmed mean, under the point that the search gave."""
    one = found.ratings.get(trial.essence)
    if one is None or one.of != trial.slot:
        return ""
    x, mean = axes.x.at(cost), axes.y.at(one.mean.value)
    low, high = axes.y.at(one.mean.low), axes.y.at(one.mean.high)
    ends = line(x - 5, x + 5, low, low, "whisker") + line(x - 5, x + 5, high, high, "whisker")
    return f"{line(x, x, low, high, 'whisker')}{ends}{line(x - 8, x + 8, mean, mean, 'whisker mean')}"


def _label(axes: Axes, placed: Placed) -> str:
    trial, x, y = placed
    return text(axes.x.at(x) - 8, axes.y.at(y) - 8, str(trial.slot), "label end")


def link(trial: Trial, inside: str, kinds: str, value: str) -> str:
    """Something that opens the card of a trial."""
    words = f"trial {trial.slot}, {trial.arm}: {to_text(trial.path)}; {value}"
    return f'<a class="{kinds}" href="#trial-{trial.slot}" aria-label="{escape(words)}">{inside}</a>'


def volume(volumes: Mapping[str, Sequence[float]]) -> Markup:
    """A line an arm, from no evaluation on."""
    longest = max((len(own) for own in volumes.values()), default=0)
    axes = Axes(
        linear([0.0, float(max(1, longest))], LEFT, FAR, zero=True),
        linear([value for own in volumes.values() for value in own], LOW, TOP, zero=True),
    )
    axes = Axes(replace(axes.x, ticks=tuple(tick for tick in axes.x.ticks if tick == int(tick))), axes.y)
    pieces = [axes.frame("different designs that an arm has evaluated", "hypervolume", "{:.0f}".format, "{:g}".format)]
    ends = _label_heights(axes, {arm: own for arm, own in volumes.items() if own})
    for arm, own in volumes.items():
        corners = [(axes.x.at(place), axes.y.at(value)) for place, value in enumerate((0.0, *own))]
        pieces.append(steps(corners, f"best {arm}"))
        if own:
            x, y = corners[-1]
            told = text(FAR + 12, ends[arm] + 4, f"{arm} {own[-1]:.3f}", "label")
            pieces.append(f'<g class="{arm}">{mark(arm, x, y)}</g>{told}')
    return drawing(*VOLUME, pieces, "hypervolume over evaluations")


def _label_heights(axes: Axes, volumes: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """How high the words of each line stand: at its end, moved down where two would run into each other."""
    found: dict[str, float] = {}
    last = float("-inf")
    for arm in sorted(volumes, key=lambda arm: axes.y.at(volumes[arm][-1])):
        last = max(axes.y.at(volumes[arm][-1]), last + LETTERS)
        found[arm] = last
    return found


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


def forests_of(found: Findings, metric: str, rung: int) -> list[tuple[Markup, str]]:
    """A forest plot for each way to compare designs with and without a choice, and whom it compares."""
    groups: dict[tuple[bool, bool], list[Effect]] = {}
    for one in found.effects:
        if (one.metric, one.rung) == (metric, rung):
            groups.setdefault((one.paired, one.arm == ALL), []).append(one)
    return [_forest_of(found, groups[key]) for key in sorted(groups)]


def _forest_of(found: Findings, group: Sequence[Effect]) -> tuple[Markup, str]:
    one = group[0]
    quality = one.metric == "quality"
    title = measure(found.study.rungs[one.rung - 1]) if quality else MEANINGS[one.metric]
    drawn = forest(group, title, "{:+.3f}".format if quality else _signed, 1 if larger(one.metric) else -1)
    return drawn, "a mutant and its parent" if one.paired else ARM_NAMES.get(one.arm, "all trials")


def _signed(value: float) -> str:
    return f"{'+' if value > 0 else ''}{short(value)}"


def forest(effects: Sequence[Effect], title: str, number: Callable[[float], str], better: int) -> Markup:
    """A row an effect, the greatest first; `better`: 1 where more is better, -1 where less is."""
    rows = sorted(effects, key=lambda one: -one.difference * better)
    height = HEAD + ROW * len(rows) + FOOT
    axis = linear(_reach(rows), BEGIN, END)
    bottom = HEAD + ROW * len(rows)
    pieces = [text(BEGIN, 16, title, "title")]
    pieces += [line(axis.at(tick), axis.at(tick), HEAD - 4, bottom, "grid") for tick in axis.ticks]
    ticks = axis.ticks[:: 1 + len(axis.ticks) // 5]
    pieces += [text(axis.at(tick), bottom + 16, number(tick), "tick middle") for tick in ticks]
    pieces.append(line(axis.at(0), axis.at(0), HEAD - 4, bottom, "zero"))
    pieces += [_effect(one, axis, HEAD + ROW * (place + 0.5), number, better) for place, one in enumerate(rows)]
    return drawing(FOREST, height, pieces, title, "plot forest", "img")


def _reach(effects: Sequence[Effect]) -> list[float]:
    """What the axis reaches: zero, all means, and the ends of all intervals that are not far wider than the others."""
    wide = WIDE * median(one.high - one.low for one in effects)
    ends = [end for one in effects if one.high - one.low <= wide for end in (one.low, one.high)]
    return [0.0, *(one.difference for one in effects), *ends]


def _effect(one: Effect, axis: Scale, y: float, number: Callable[[float], str], better: int) -> str:
    kind = "unsure" if one.low <= 0 <= one.high else "gain" if one.difference * better > 0 else "loss"
    name = text(BEGIN - 10, y + 4, one.move, "name end")
    low, high = max(axis.at(one.low), BEGIN), min(axis.at(one.high), END)
    cut = _cut(low, y, 5) * (low > axis.at(one.low)) + _cut(high, y, -5) * (high < axis.at(one.high))
    bar = line(low, high, y, y, "bar") + cut
    dot = f'<circle class="dot" cx="{axis.at(one.difference):.1f}" cy="{y:.1f}" r="4"/>'
    told = f"{one.move}: {number(one.difference)}, from {number(one.low)} to {number(one.high)}"
    value = text(END + 12, y + 4, number(one.difference), "value")
    counts = f"{one.with_}" if one.paired else f"{one.with_} / {one.without}"
    many = text(FOREST - 4, y + 4, counts, "tick end")
    return f'<g class="effect {kind}"><title>{escape(told)}</title>{name}{bar}{dot}{value}{many}</g>'


def _cut(x: float, y: float, back: float) -> str:
    """An arrowhead where an interval goes on beyond the plot."""
    return f'<path class="cut" d="M{x + back:.1f},{y - 4:.1f}L{x:.1f},{y:.1f}L{x + back:.1f},{y + 4:.1f}"/>'
