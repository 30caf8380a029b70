"""Quality against a cost, a point for each design: the plots in which one looks for a design."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from html import escape
from itertools import accumulate

from tensornet_attn.search.path import to_text
from tensornet_attn.search.rank import eligible
from tensornet_attn.search.report import scale, words
from tensornet_attn.search.report.axes import Axes, cross, drawing, line, mark, steps, text
from tensornet_attn.search.report.findings import Findings
from tensornet_attn.search.study import Rung
from tensornet_attn.search.trial import COMPLETE, Trial, values_at

WIDTH, HEIGHT = 560.0, 366.0
LEFT, RIGHT, TOP, BOTTOM = 58.0, 544.0, 36.0, 322.0
LANE = 8.0  # above the end of the plot, where the designs that have no quality stand
Placed = tuple[Trial, float, float]  # a trial, its cost and its quality


def scatter(found: Findings, rung: int, cost: str) -> str:
    """All designs that were trained on a rung, and those that failed there, by quality and cost."""
    placed = list(_placed(found.proposals, rung, cost))
    failed = [(trial, value) for trial in _lost(found, rung) if (value := values_at(trial, rung).get(cost)) is not None]
    last = rung == len(found.study.rungs)
    axes = _axes(found, found.study.rungs[rung - 1], placed, [value for _, value in failed], last)
    title = words.measure(found.study.rungs[rung - 1])
    pieces = [axes.frame(words.NAMES[cost], title, words.short, _number)]
    pieces += [_best(axes, placed, found, rung, arm) for arm in found.study.arms]
    pieces += [_confirmed(axes, found, trial, x) for trial, x, _ in placed if last]
    pieces += [_lost_point(axes, trial, value) for trial, value in failed]
    pieces += [_point(axes, found, one, last) for one in sorted(placed, key=lambda one: one[0].slot)]
    pieces += [_label(axes, one) for one in placed if last and _shows(found, one[0])]
    return drawing(WIDTH, HEIGHT, pieces, f"{title} on {words.task(found.study.rungs[rung - 1])}, by {cost}")


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
    errors = words.measure(rung) == "accuracy" and scale.near_one(qualities)
    fit = scale.rate if errors else scale.linear
    costs = [cost for _, cost, _ in placed] + list(failed)
    return Axes(scale.cost(costs, LEFT, RIGHT), fit(qualities + ends, BOTTOM, TOP))


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
    return link(trial, f"{ring}{mark(trial.arm, *at)}", " ".join(kinds), f"quality {words.score(y)}")


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
