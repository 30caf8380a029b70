"""Ranks: non-dominated sorting with bounds, crowding, the Pareto front of a study, and the hypervolume over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from math import inf, isfinite, log1p

from tensornet_attn.errors import MissingPartError
from tensornet_attn.study.config import ARMS, Study
from tensornet_attn.study.objectives import Point, broken, excess, point, points, values_at
from tensornet_attn.study.record import BOUND, COMPLETE, Trial

NANO = 1e9  # latencies are counted in whole numbers, as costs are, before logarithms are taken
EDGE = 1.1  # the reference of hypervolumes, where 1 is the worst that was found: the worst counts for something too


def ranks(points: Sequence[Point]) -> list[int]:
    """The rank of each point: 0 where none is better, 1 where only those of rank 0 are, and so on; equal points alike.

    >>> ranks([(1, 3), (2, 2), (2, 3), (3, 3)])
    [0, 0, 1, 2]
    """
    found: dict[Point, int] = {}
    for one in sorted(set(points)):  # none that comes later dominates one that came before
        found[one] = max((rank + 1 for other, rank in found.items() if _dominates(other, one)), default=0)
    return [found[one] for one in points]


def _dominates(one: Point, other: Point) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


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
    rounded = [point(_coarse(one, grain), study.objectives) for one in values]
    inside = [place for place, over in enumerate(beyond) if not over]
    found = dict(zip(inside, ranks([rounded[place] for place in inside]), strict=True))
    last = max(found.values(), default=-1) + 1
    steps = sorted({over for over in beyond if over})
    return [found[place] if place in found else last + steps.index(over) for place, over in enumerate(beyond)]


def _coarse(values: Mapping[str, float], grain: float) -> Mapping[str, float]:
    quality = values.get("quality")
    if not grain or quality is None or not isfinite(quality):
        return values
    return {**values, "quality": round(quality / grain) * grain}


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
    """The volume that points dominate, up to a reference; all to be minimised. Raises MissingPartError.

    >>> hypervolume([(0.0, 0.5), (0.5, 0.0)], (1.0, 1.0))
    0.75
    """
    if find_spec("moocore") is None:
        raise MissingPartError("hypervolumes need moocore: pip install 'tensornet-attn[search]'.")
    import moocore  # type: ignore[import-untyped]

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
    ends = [_ends(axis) for axis in zip(*points, strict=True)]
    return [tuple(_share(value, *pair) for value, pair in zip(one, ends, strict=True)) for one in points]


def _ends(axis: Sequence[float]) -> tuple[float, float]:
    finite = [value for value in axis if isfinite(value)] or [0.0]
    return min(finite), max(finite)


def _share(value: float, low: float, high: float) -> float:
    return value if not isfinite(value) else (value - low) / (high - low) if high > low else 0.0


def even(one: Point, objectives: Sequence[str]) -> Point:
    """A point with logarithms of its costs: twice as many is as far wherever it is."""
    return tuple(
        value if name == "quality" or not isfinite(value) else log1p(value * (NANO if name == "latency" else 1.0))
        for name, value in zip(objectives, one, strict=True)
    )
