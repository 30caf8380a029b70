"""Comparison of trials: non-dominated ranks, crowding, promotion, Pareto front, hypervolume, and finalists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, log1p

import numpy as np

from tensornet_attn.compare.section import Mean, mean_of
from tensornet_attn.search.study import ARMS, Study
from tensornet_attn.search.trial import BOUND, COMPLETE, Point, Trial, broken, excess, on_rung, point, points, values_at

NANO = 1e9  # latencies are converted to nanoseconds before logarithms are taken
EDGE = 1.1  # the reference point of hypervolumes; above 1, so that the worst value found counts too


def ranks(points: Sequence[Point]) -> list[int]:
    """The non-dominated rank of each point: 0 for the Pareto front, 1 for the front of the rest, and so on.

    >>> ranks([(1, 3), (2, 2), (2, 3), (3, 3)])
    [0, 0, 1, 2]
    """
    import moocore

    finite = np.nan_to_num(np.array(points, dtype=np.float64))  # moocore misranks infinite values
    return [int(rank) for rank in moocore.pareto_rank(finite)] if points else []


def crowding(points: Sequence[Point]) -> list[float]:
    """NSGA-II's crowding distance: the distances between a point's neighbours, relative to the objectives' ranges.

    It is infinite at the ends of each objective, and 0 for all but the first of equal points.
    """
    unique = list(dict.fromkeys(points))
    found = dict.fromkeys(unique, 0.0)
    for axis in range(len(points[0]) if points else 0):
        row = sorted(unique, key=lambda one: (one[axis], one))
        spread = row[-1][axis] - row[0][axis]
        for before, one, after in zip([None, *row], row, [*row[1:], None], strict=False):
            if before is None or after is None:
                found[one] = inf
            elif 0 < spread < inf:
                found[one] += (after[axis] - before[axis]) / spread
    first = {one: place for place, one in reversed(list(enumerate(points)))}
    return [found[one] if first[one] == place else 0.0 for place, one in enumerate(points)]


def standing(study: Study, values: Sequence[Mapping[str, float]], grain: float = 0.0) -> list[int]:
    """The rank of each trial: trials within bounds by `ranks`, then the others by their violation of bounds.

    Qualities are rounded to multiples of `grain`, if given, so that the cheaper of similar trials wins.
    """
    beyond = [excess(study, one) for one in values]
    inside = [place for place, over in enumerate(beyond) if not over]
    rounded = []
    for one in (values[place] for place in inside):
        quality = one.get("quality", inf)
        fine = not grain or not isfinite(quality)
        rounded.append(point(one if fine else {**one, "quality": round(quality / grain) * grain}, study.objectives))
    found = dict(zip(inside, ranks(rounded), strict=True))
    last = max(found.values(), default=-1) + 1
    steps = sorted({over for over in beyond if over})
    return [found[place] if place in found else last + steps.index(over) for place, over in enumerate(beyond)]


def order(study: Study, trials: Iterable[Trial], grain: float = 0.0) -> list[Trial]:
    """Trials, the best first: by highest rung, rank, crowding distance and slot. Failed trials come last."""
    own = sorted(trials, key=lambda trial: trial.slot)
    height = {trial.slot: trial.rung if trial.state in (COMPLETE, BOUND) else -2 for trial in own}
    keys: dict[int, tuple[float, ...]] = {}
    for rung in sorted(set(height.values())):
        group = [trial for trial in own if height[trial.slot] == rung]
        found = standing(study, [values_at(trial, rung) for trial in group], grain)
        for rank in set(found):
            level = [trial for trial, other in zip(group, found, strict=True) if other == rank]
            distances = crowding([even(one, study.objectives) for one in points(level, study.objectives)])
            keys |= {t.slot: (-rung, rank, -far, t.slot) for t, far in zip(level, distances, strict=True)}
    return sorted(own, key=lambda trial: keys[trial.slot])


def eligible(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """The proposals that have reached the last rung within all bounds, by slot."""
    found = (trial for trial in trials if trial.arm in ARMS and trial.state == COMPLETE)
    done = [trial for trial in found if trial.rung == len(study.rungs)]
    kept = [trial for trial in done if broken(study, values_at(trial, trial.rung)) is None]
    return sorted(kept, key=lambda trial: trial.slot)


def front(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """The Pareto front: the eligible trials that no other eligible trial dominates.

    The best in the first objective comes first. A design with several slots appears once.
    """
    found: dict[str, Trial] = {}
    for trial in eligible(study, trials):
        found.setdefault(trial.essence, trial)
    kept = list(found.values())
    scored = zip(points(kept, study.objectives), kept, strict=True)
    best = [pair for pair, rank in zip(scored, ranks(points(kept, study.objectives)), strict=True) if rank == 0]
    return [trial for _, trial in sorted(best, key=lambda pair: (pair[0], pair[1].slot))]


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """The volume that points dominate up to a reference point; all objectives are minimised.

    >>> hypervolume([(0.0, 0.5), (0.5, 0.0)], (1.0, 1.0))
    0.75
    """
    import moocore

    inside = [one for one in points if all(mine < end for mine, end in zip(one, reference, strict=True))]
    return float(moocore.hypervolume(inside, ref=list(reference))) if inside else 0.0


def hypervolumes(study: Study, trials: Iterable[Trial], arm: str) -> list[float]:
    """The hypervolume of an arm after each of its evaluations, by slot.

    Quality, and the logarithms of costs and latency, are scaled from 0, the best of all eligible trials, to 1, the
    worst; the reference point is 1.1. Trials that are not eligible add nothing.
    """
    known = sorted(trials, key=lambda trial: trial.slot)
    scale = scaled(study, eligible(study, known))
    own: list[Point] = []
    found = []
    for trial in (trial for trial in known if trial.arm == arm):
        own += [scale[trial.slot]] if trial.slot in scale else []
        found.append(hypervolume(own, (EDGE,) * len(study.objectives)))
    return found


def scaled(study: Study, trials: Sequence[Trial]) -> dict[int, Point]:
    """The points of trials by slot, with each objective scaled from 0 for the best to 1 for the worst."""
    found = unit([even(one, study.objectives) for one in points(trials, study.objectives)])
    return {trial.slot: one for trial, one in zip(trials, found, strict=True)}


def unit(points: Sequence[Point]) -> list[Point]:
    """Points with each axis scaled from 0 for its smallest to 1 for its largest value; infinite values stay."""
    axes = []
    for axis in zip(*points, strict=True):
        finite = [value for value in axis if isfinite(value)] or [0.0]
        low, width = min(finite), max(finite) - min(finite)
        axes.append([value if not isfinite(value) else (value - low) / width if width else 0.0 for value in axis])
    return list(zip(*axes, strict=True))


def even(one: Point, objectives: Sequence[str]) -> Point:
    """A point with its costs and latency in logarithms, so that distances are ratios."""
    return tuple(
        value if name == "quality" or not isfinite(value) else log1p(value * (NANO if name == "latency" else 1.0))
        for name, value in zip(objectives, one, strict=True)
    )


def promoted(study: Study, trial: Trial, finished: Sequence[Trial]) -> bool:
    """Whether a trial is promoted to the next rung, by asynchronous successive halving (ASHA).

    A trial is promoted if fewer than a share `keep` of its arm's trials on its rung, including itself, have a better
    non-dominated rank; the first 1 / keep trials are always promoted. Passing the static check suffices for promotion.
    A trial on the last rung, or whose last result is not finite, is not promoted.
    """
    last = trial.results[-1] if trial.results else None
    if last is None or last.counts is None or last.rung == len(study.rungs):
        return False
    if last.rung == 0:
        return True
    others = [other for other in finished if other.arm == trial.arm and other.slot != trial.slot]
    group = [trial, *on_rung(others, last.rung)]
    keep = study.rungs[last.rung - 1].keep
    own, *ranks = standing(study, [values_at(one, last.rung) for one in group])
    better = sum(rank < own for rank in ranks)
    return len(group) <= round(1 / keep) or better < ceil(round(keep * len(group), 9))


CONFIRM = "confirm"  # the arm of confirmations


@dataclass(frozen=True)
class Confirmed:
    """A finalist and its quality on the last rung: `search` in the search, and `mean` over fresh seeds.

    `mean` has a 95 % interval; `drop` is `search` minus the mean. `failed`: number of runs without a quality.
    """

    of: int
    search: float
    mean: Mean
    drop: float
    failed: int = 0


def finalists(study: Study, finished: Sequence[Trial]) -> tuple[int, ...]:
    """The slots to confirm: up to `study.finalists` of each arm; a design of both arms appears once.

    Finalists come from the front, then from the front of the rest, and so on, because a slightly worse design of the
    search may be the best, and the front of a single objective has one design.
    """
    found: dict[str, int] = {}
    for arm in study.arms:
        left, chosen = [trial for trial in finished if trial.arm == arm], list[Trial]()
        while len(chosen) < study.finalists and (best := front(study, left)):
            chosen += _chosen(study, best, study.finalists - len(chosen))
            taken = {trial.essence for trial in best}
            left = [trial for trial in left if trial.essence not in taken]
        for trial in chosen:
            found.setdefault(trial.essence, trial.slot)
    return tuple(found.values())


def _chosen(study: Study, best: Sequence[Trial], most: int) -> list[Trial]:
    """The best of a front in the first objective, then, one by one, the designs that add the most hypervolume."""
    scale, edge = scaled(study, best), (EDGE,) * len(study.objectives)
    chosen: list[Trial] = []
    while len(chosen) < min(most, len(best)):
        have = [scale[trial.slot] for trial in chosen]
        grown = {t.slot: hypervolume([*have, scale[t.slot]], edge) if chosen else 0.0 for t in best if t not in chosen}
        chosen.append(max((t for t in best if t not in chosen), key=lambda t: grown[t.slot]))
    return chosen


def confirmations(study: Study, finished: Sequence[Trial]) -> list[tuple[int, int, int]]:
    """The confirmations of the finalists: (slot, confirmed slot, fresh seed), `fresh_seeds` for each finalist.

    Slots of confirmations are negative and depend only on the confirmed slot and the index of the seed, so that
    finished confirmations stay valid when a study gets more trials.
    """
    return [
        (-(1 + of * study.fresh_seeds + place), of, study.fresh_seed(place))
        for of in finalists(study, finished)
        for place in range(study.fresh_seeds)
    ]


def confirmed(study: Study, trials: Sequence[Trial]) -> list[Confirmed]:
    """The confirmed finalists, the highest mean first."""
    found, slots, last = [], {trial.slot: trial for trial in trials}, len(study.rungs)
    for of in finalists(study, trials):
        runs = sorted((t for t in trials if t.arm == CONFIRM and t.of == of), key=lambda trial: -trial.slot)
        values = [quality for trial in runs if (quality := trial.quality_on(last)) is not None]
        search = slots[of].quality_on(last)
        if values and search is not None:
            mean = mean_of(values)
            found.append(Confirmed(of, search, mean, search - mean.value, len(runs) - len(values)))
    return sorted(found, key=lambda one: (-one.mean.value, one.of))
