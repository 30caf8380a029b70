"""Comparison of trials: non-dominated ranks, crowding, promotion, Pareto front, hypervolume, and finalists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, log1p

import numpy as np

from tensornet_attn.compare.section import SeedMean, mean_of
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
    distances = dict.fromkeys(unique, 0.0)
    for axis in range(len(points[0]) if points else 0):
        row = sorted(unique, key=lambda coordinates: (coordinates[axis], coordinates))
        spread = row[-1][axis] - row[0][axis]
        for before, coordinates, after in zip([None, *row], row, [*row[1:], None], strict=False):
            if before is None or after is None:
                distances[coordinates] = inf
            elif 0 < spread < inf:
                distances[coordinates] += (after[axis] - before[axis]) / spread
    first = {coordinates: index for index, coordinates in reversed(list(enumerate(points)))}
    return [distances[coordinates] if first[coordinates] == index else 0.0 for index, coordinates in enumerate(points)]


def standing(study: Study, values: Sequence[Mapping[str, float]], grain: float = 0.0) -> list[int]:
    """The rank of each trial: trials within bounds by `ranks`, then the others by their violation of bounds.

    Qualities are rounded to multiples of `grain`, if given, so that the cheaper of similar trials wins.
    """
    beyond = [excess(study, trial_values) for trial_values in values]
    inside = [index for index, over in enumerate(beyond) if not over]
    rounded = []
    for trial_values in (values[index] for index in inside):
        quality = trial_values.get("quality", inf)
        exact = not grain or not isfinite(quality)
        rounded.append(
            point(
                trial_values if exact else {**trial_values, "quality": round(quality / grain) * grain}, study.objectives
            )
        )
    rank_of = dict(zip(inside, ranks(rounded), strict=True))
    last = max(rank_of.values(), default=-1) + 1
    steps = sorted({over for over in beyond if over})
    return [rank_of[index] if index in rank_of else last + steps.index(over) for index, over in enumerate(beyond)]


def order(study: Study, trials: Iterable[Trial], grain: float = 0.0) -> list[Trial]:
    """Trials, the best first: by highest rung, rank, crowding distance and slot. Failed trials come last."""
    in_order = sorted(trials, key=lambda trial: trial.slot)
    height = {trial.slot: trial.rung if trial.state in (COMPLETE, BOUND) else -2 for trial in in_order}
    keys: dict[int, tuple[float, ...]] = {}
    for rung in sorted(set(height.values())):
        group = [trial for trial in in_order if height[trial.slot] == rung]
        standings = standing(study, [values_at(trial, rung) for trial in group], grain)
        for rank in set(standings):
            level = [trial for trial, trial_rank in zip(group, standings, strict=True) if trial_rank == rank]
            distances = crowding(
                [even(coordinates, study.objectives) for coordinates in points(level, study.objectives)]
            )
            keys |= {
                trial.slot: (-rung, rank, -distance, trial.slot)
                for trial, distance in zip(level, distances, strict=True)
            }
    return sorted(in_order, key=lambda trial: keys[trial.slot])


def eligible(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """The proposals that have reached the last rung within all bounds, by slot."""
    complete = (trial for trial in trials if trial.arm in ARMS and trial.state == COMPLETE)
    done = [trial for trial in complete if trial.rung == len(study.rungs)]
    kept = [trial for trial in done if broken(study, values_at(trial, trial.rung)) is None]
    return sorted(kept, key=lambda trial: trial.slot)


def front(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """The Pareto front: the eligible trials that no other eligible trial dominates.

    The best in the first objective comes first. A design with several slots appears once.
    """
    by_essence: dict[str, Trial] = {}
    for trial in eligible(study, trials):
        by_essence.setdefault(trial.essence, trial)
    kept = list(by_essence.values())
    scored = zip(points(kept, study.objectives), kept, strict=True)
    best = [pair for pair, rank in zip(scored, ranks(points(kept, study.objectives)), strict=True) if rank == 0]
    return [trial for _, trial in sorted(best, key=lambda pair: (pair[0], pair[1].slot))]


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """The volume that points dominate up to a reference point; all objectives are minimised.

    >>> hypervolume([(0.0, 0.5), (0.5, 0.0)], (1.0, 1.0))
    0.75
    """
    import moocore

    inside = [
        coordinates
        for coordinates in points
        if all(coordinate < end for coordinate, end in zip(coordinates, reference, strict=True))
    ]
    return float(moocore.hypervolume(inside, ref=list(reference))) if inside else 0.0


def hypervolumes(study: Study, trials: Iterable[Trial], arm: str) -> list[float]:
    """The hypervolume of an arm after each of its evaluations, by slot.

    Quality, and the logarithms of costs and latency, are scaled from 0, the best of all eligible trials, to 1, the
    worst; the reference point is 1.1. Trials that are not eligible add nothing.
    """
    in_order = sorted(trials, key=lambda trial: trial.slot)
    scale = scaled(study, eligible(study, in_order))
    arm_points: list[Point] = []
    volumes = []
    for trial in (trial for trial in in_order if trial.arm == arm):
        arm_points += [scale[trial.slot]] if trial.slot in scale else []
        volumes.append(hypervolume(arm_points, (EDGE,) * len(study.objectives)))
    return volumes


def scaled(study: Study, trials: Sequence[Trial]) -> dict[int, Point]:
    """The points of trials by slot, with each objective scaled from 0 for the best to 1 for the worst."""
    scaled_points = unit([even(coordinates, study.objectives) for coordinates in points(trials, study.objectives)])
    return {trial.slot: coordinates for trial, coordinates in zip(trials, scaled_points, strict=True)}


def unit(points: Sequence[Point]) -> list[Point]:
    """Points with each axis scaled from 0 for its smallest to 1 for its largest value; infinite values stay."""
    axes = []
    for axis in zip(*points, strict=True):
        finite = [coordinate for coordinate in axis if isfinite(coordinate)] or [0.0]
        low, width = min(finite), max(finite) - min(finite)
        axes.append(
            [
                coordinate if not isfinite(coordinate) else (coordinate - low) / width if width else 0.0
                for coordinate in axis
            ]
        )
    return list(zip(*axes, strict=True))


def even(coordinates: Point, objectives: Sequence[str]) -> Point:
    """A point with its costs and latency in logarithms, so that distances are ratios."""
    return tuple(
        coordinate
        if name == "quality" or not isfinite(coordinate)
        else log1p(coordinate * (NANO if name == "latency" else 1.0))
        for name, coordinate in zip(objectives, coordinates, strict=True)
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
    rivals = [rival for rival in finished if rival.arm == trial.arm and rival.slot != trial.slot]
    group = [trial, *on_rung(rivals, last.rung)]
    keep = study.rungs[last.rung - 1].keep
    own_rank, *ranks = standing(study, [values_at(member, last.rung) for member in group])
    better = sum(rank < own_rank for rank in ranks)
    return len(group) <= round(1 / keep) or better < ceil(round(keep * len(group), 9))


CONFIRM = "confirm"  # the arm of confirmations


@dataclass(frozen=True)
class Confirmed:
    """A finalist and its quality on the last rung: `search` in the search, and `mean` over fresh seeds.

    `mean` has a 95 % interval; `drop` is `search` minus the mean. `failed`: number of runs without a quality.
    """

    of: int
    search: float
    mean: SeedMean
    drop: float
    failed: int = 0


def finalists(study: Study, finished: Sequence[Trial]) -> tuple[int, ...]:
    """The slots to confirm: up to `study.finalists` of each arm; a design of both arms appears once.

    Finalists come from the front, then from the front of the rest, and so on, because a slightly worse design of the
    search may be the best, and the front of a single objective has one design.
    """
    slots: dict[str, int] = {}
    for arm in study.arms:
        remaining, chosen = [trial for trial in finished if trial.arm == arm], list[Trial]()
        while len(chosen) < study.finalists and (best := front(study, remaining)):
            chosen += _chosen_of_front(study, best, study.finalists - len(chosen))
            front_essences = {trial.essence for trial in best}
            remaining = [trial for trial in remaining if trial.essence not in front_essences]
        for trial in chosen:
            slots.setdefault(trial.essence, trial.slot)
    return tuple(slots.values())


def _chosen_of_front(study: Study, best: Sequence[Trial], limit: int) -> list[Trial]:
    """The best of a front in the first objective, then, one by one, the designs that add the most hypervolume."""
    scale, edge = scaled(study, best), (EDGE,) * len(study.objectives)
    chosen: list[Trial] = []
    while len(chosen) < min(limit, len(best)):
        have = [scale[trial.slot] for trial in chosen]
        grown = {
            trial.slot: hypervolume([*have, scale[trial.slot]], edge) if chosen else 0.0
            for trial in best
            if trial not in chosen
        }
        chosen.append(max((trial for trial in best if trial not in chosen), key=lambda trial: grown[trial.slot]))
    return chosen


def confirmations(study: Study, finished: Sequence[Trial]) -> list[tuple[int, int, int]]:
    """The confirmations of the finalists: (slot, confirmed slot, fresh seed), `fresh_seeds` for each finalist.

    Slots of confirmations are negative and depend only on the confirmed slot and the index of the seed, so that
    finished confirmations stay valid when a study gets more trials.
    """
    return [
        (-(1 + of * study.fresh_seeds + seed_index), of, study.fresh_seed(seed_index))
        for of in finalists(study, finished)
        for seed_index in range(study.fresh_seeds)
    ]


def confirmed(study: Study, trials: Sequence[Trial]) -> list[Confirmed]:
    """The confirmed finalists, the highest mean first."""
    ranking, slots, last = [], {trial.slot: trial for trial in trials}, len(study.rungs)
    for of in finalists(study, trials):
        runs = sorted(
            (trial for trial in trials if trial.arm == CONFIRM and trial.of == of), key=lambda trial: -trial.slot
        )
        values = [quality for trial in runs if (quality := trial.quality_on(last)) is not None]
        search = slots[of].quality_on(last)
        if values and search is not None:
            mean = mean_of(values)
            ranking.append(Confirmed(of, search, mean, search - mean.value, len(runs) - len(values)))
    return sorted(ranking, key=lambda finalist: (-finalist.mean.value, finalist.of))
