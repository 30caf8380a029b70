"""Which trials are better: ranks with bounds, crowding, promotion, the front, hypervolume, finalists."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf, isfinite, log1p

import numpy as np

from tensornet_attn.compare.section import Mean, mean_of
from tensornet_attn.search.study import ARMS, Study
from tensornet_attn.search.trial import BOUND, COMPLETE, Point, Trial, broken, excess, on_rung, point, points, values_at

NANO = 1e9  # latencies are counted in whole numbers, as costs are, before logarithms are taken
EDGE = 1.1  # the reference of hypervolumes, where 1 is the worst that was found: the worst counts for something too


def ranks(points: Sequence[Point]) -> list[int]:
    """The rank of each point: 0 where none is better, 1 where only those of rank 0 are, and so on; equal points alike.

    >>> ranks([(1, 3), (2, 2), (2, 3), (3, 3)])
    [0, 0, 1, 2]
    """
    import moocore

    finite = np.nan_to_num(np.array(points, dtype=np.float64))  # moocore misplaces infinite values, not the largest
    return [int(rank) for rank in moocore.pareto_rank(finite)] if points else []


def crowding(points: Sequence[Point]) -> list[float]:
    """How far from each point its neighbours are, in shares of the range of each objective: NSGA-II's distance.

    Infinite at the ends of each objective. Of equal points the first has the distance, the others have 0.
    """
    unique = list(dict.fromkeys(points))
    found = dict.fromkeys(unique, 0.0)
    for axis in range(len(points[0]) if points else 0):
        row = sorted(unique, key=lambda one: (one[axis], one))
        spread = row[-1][axis] - row[0][axis]
        for before, one, after in zip([None, *row], row, [*row[1:], None], strict=False):
            ends = before is None or after is None
            found[one] += inf if ends else (after[axis] - before[axis]) / spread if 0 < spread < inf else 0.0  # type: ignore[index]
    first = {one: place for place, one in reversed(list(enumerate(points)))}
    return [found[one] if first[one] == place else 0.0 for place, one in enumerate(points)]


def standing(study: Study, values: Sequence[Mapping[str, float]], grain: float = 0.0) -> list[int]:
    """The rank of each trial by its values: those within bounds by `ranks`, then the others by how far beyond they are.

    Qualities that differ by less than `grain` may count as equal, so that the cheaper one wins.
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
    """Trials, the best first: by highest rung, rank, crowding and slot. Failed ones come last, wherever they failed."""
    own = sorted(trials, key=lambda trial: trial.slot)
    height = {trial.slot: trial.rung if trial.state in (COMPLETE, BOUND) else -2 for trial in own}
    keys: dict[int, tuple[float, ...]] = {}
    for rung in sorted(set(height.values())):
        group = [trial for trial in own if height[trial.slot] == rung]
        found = standing(study, [values_at(trial, rung) for trial in group], grain)
        for rank in set(found):
            level = [trial for trial, other in zip(group, found, strict=True) if other == rank]
            apart = crowding([even(one, study.objectives) for one in points(level, study.objectives)])
            keys |= {t.slot: (-rung, rank, -far, t.slot) for t, far in zip(level, apart, strict=True)}
    return sorted(own, key=lambda trial: keys[trial.slot])


def eligible(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """Proposals, by slot, that have reached the last rung and keep to all bounds."""
    found = (trial for trial in trials if trial.arm in ARMS and trial.state == COMPLETE)
    done = [trial for trial in found if trial.rung == len(study.rungs)]
    kept = [trial for trial in done if broken(study, values_at(trial, trial.rung)) is None]
    return sorted(kept, key=lambda trial: trial.slot)


def front(study: Study, trials: Iterable[Trial]) -> list[Trial]:
    """The Pareto front: of the trials that reached the last rung within all bounds, those that no other dominates.

    By their points, the best in the first objective first; a design that several slots have comes once.
    """
    found: dict[str, Trial] = {}
    for trial in eligible(study, trials):
        found.setdefault(trial.essence, trial)
    kept = list(found.values())
    scored = zip(points(kept, study.objectives), kept, strict=True)
    best = [pair for pair, rank in zip(scored, ranks(points(kept, study.objectives)), strict=True) if rank == 0]
    return [trial for _, trial in sorted(best, key=lambda pair: (pair[0], pair[1].slot))]


def hypervolume(points: Sequence[Point], reference: Point) -> float:
    """The volume that points dominate, up to a reference; all to be minimised.

    >>> hypervolume([(0.0, 0.5), (0.5, 0.0)], (1.0, 1.0))
    0.75
    """
    import moocore

    inside = [one for one in points if all(mine < end for mine, end in zip(one, reference, strict=True))]
    return float(moocore.hypervolume(inside, ref=list(reference))) if inside else 0.0


def hypervolumes(study: Study, trials: Iterable[Trial], arm: str) -> list[float]:
    """The hypervolume of an arm after each of its evaluations, by slot.

    Quality is taken as it is, costs and latency by their logarithm; each runs from 0, the best that any arm has found
    within bounds on the last rung, to 1, the worst, and the reference lies at 1.1. What has not come that far adds
    nothing.
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
    """By slot the points of trials, each objective from 0 for the best of them to 1 for the worst."""
    found = unit([even(one, study.objectives) for one in points(trials, study.objectives)])
    return {trial.slot: one for trial, one in zip(trials, found, strict=True)}


def unit(points: Sequence[Point]) -> list[Point]:
    """Points with each axis from 0 for the least to 1 for the largest of them; what is infinite stays so."""
    axes = []
    for axis in zip(*points, strict=True):
        finite = [value for value in axis if isfinite(value)] or [0.0]
        low, width = min(finite), max(finite) - min(finite)
        axes.append([value if not isfinite(value) else (value - low) / width if width else 0.0 for value in axis])
    return list(zip(*axes, strict=True))


def even(one: Point, objectives: Sequence[str]) -> Point:
    """A point with logarithms of its costs: twice as many is as far wherever it is."""
    return tuple(
        value if name == "quality" or not isfinite(value) else log1p(value * (NANO if name == "latency" else 1.0))
        for name, value in zip(objectives, one, strict=True)
    )


def promoted(study: Study, trial: Trial, finished: Sequence[Trial]) -> bool:
    """Whether a trial goes on after its highest rung, as asynchronous successive halving has it.

    It does where fewer than `keep` of the trials of its arm on that rung, itself among them, have a better
    non-dominated rank; the first 1 / keep of them do in any case. The static rung only has to be passed; a trial whose
    last result is not finite, and one on the last rung, have nowhere to go.
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
    """A finalist and its qualities on the last rung: `search`, which it was chosen by, and those of fresh seeds.

    `mean` has their 95 % interval; `drop` is how far it lies below `search`. `failed`: runs that gave no quality.
    """

    of: int
    search: float
    mean: Mean
    drop: float
    failed: int = 0


def finalists(study: Study, finished: Sequence[Trial]) -> tuple[int, ...]:
    """The slots to confirm: of each arm up to `study.finalists`; a design of both arms once.

    Those of its front come first, then those of the front of what is left, and so on: what is behind by a little in the
    search may be the best, and a single objective has a front of one.
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
    """Of a front the best in the first objective, then those that add the most hypervolume, one after the other."""
    scale, edge = scaled(study, best), (EDGE,) * len(study.objectives)
    chosen: list[Trial] = []
    while len(chosen) < min(most, len(best)):
        have = [scale[trial.slot] for trial in chosen]
        grown = {t.slot: hypervolume([*have, scale[t.slot]], edge) if chosen else 0.0 for t in best if t not in chosen}
        chosen.append(max((t for t in best if t not in chosen), key=lambda t: grown[t.slot]))
    return chosen


def confirmations(study: Study, finished: Sequence[Trial]) -> list[tuple[int, int, int]]:
    """What to train for the finalists: (slot, the slot it confirms, fresh seed), `fresh_seeds` times for each.

    Slots of confirmations are negative and follow from the slot confirmed and the place of the seed alone, so that
    those which are finished stay what they are when a study is given more trials.
    """
    return [
        (-(1 + of * study.fresh_seeds + place), of, study.fresh_seed(place))
        for of in finalists(study, finished)
        for place in range(study.fresh_seeds)
    ]


def confirmed(study: Study, trials: Sequence[Trial]) -> list[Confirmed]:
    """The finalists that have qualities of fresh seeds, the highest mean first."""
    found, slots, last = [], {trial.slot: trial for trial in trials}, len(study.rungs)
    for of in finalists(study, trials):
        runs = sorted((t for t in trials if t.arm == CONFIRM and t.of == of), key=lambda trial: -trial.slot)
        values = [quality for trial in runs if (quality := trial.quality_on(last)) is not None]
        search = slots[of].quality_on(last)
        if values and search is not None:
            mean = mean_of(values)
            found.append(Confirmed(of, search, mean, search - mean.value, len(runs) - len(values)))
    return sorted(found, key=lambda one: (-one.mean.value, one.of))
