"""Trials: the proposed design, the results of its rungs, and its values by objective."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import inf, isnan, nan
from statistics import fmean
from typing import Any

from pydantic import TypeAdapter

from tensornet_attn.report.words import joined
from tensornet_attn.search.space import COSTS, Path, Price, Space, as_data, from_data
from tensornet_attn.search.study import Score, Study

# Final states of trials.
COMPLETE, FAILED, DIVERGED, MEMORY, LATE, BOUND = (
    "complete", "failed", "not finite", "out of memory", "timed out", "out of bounds",
)  # fmt: skip
HINTS = {  # what to do if all trials end in a state
    FAILED: "fix the cause, which 'logs' in --out shows whole",
    DIVERGED: "set lower learning rates",
    MEMORY: "raise 'gibibytes', or use a space of smaller designs",
    LATE: "raise 'seconds', or train for fewer steps",
    BOUND: "widen the bound",
}


@dataclass(frozen=True)
class RungResult:
    """The result of one rung: the quality for each learning rate, None if not finite. Rung 0 is the static check.

    `score`: how qualities are combined, `best` or `mean`. `folders`: the folders of the runs, relative to the study's
    folder. `seconds`: wall-clock time of all runs together.
    """

    rung: int
    quality: tuple[float | None, ...]
    rates: tuple[float, ...]
    seconds: float
    folders: tuple[str, ...] = ()
    score: Score = "best"

    @property
    def counts(self) -> float | None:
        """The best or mean quality over the learning rates, by `score`; None if no run was finite."""
        finite = [quality for quality in self.quality if quality is not None]
        if not finite:
            return None
        return max(finite) if self.score == "best" else fmean(finite)

    @property
    def rate(self) -> float | None:
        """The learning rate with the highest quality; None if no run was finite."""
        best = max((quality for quality in self.quality if quality is not None), default=None)
        return None if best is None else self.rates[self.quality.index(best)]


@dataclass(frozen=True)
class Trial:
    """A finished trial.

    `slot`: the number of the evaluation in the study, from 0; each slot is finished exactly once. `arm`: evolution,
    random or confirm. `how`: seed, random, mutate, cross or confirm. `parents`: slots. `same_as`: the slot of the other
    arm with the same design, whose results are reused. `of`, `fresh`: of a confirmation, the confirmed slot and the
    seed. `results`: by rung, in order. `values`: the known values by objective. `reason`: the reason why the trial is
    not complete, as a sentence.
    """

    slot: int
    arm: str
    how: str
    path: Path
    hash: str
    essence: str
    design: str
    price: Price
    results: tuple[RungResult, ...] = ()
    values: Mapping[str, float] | None = None
    state: str = COMPLETE
    reason: str = ""
    parents: tuple[int, ...] = ()
    same_as: int | None = None
    of: int | None = None
    fresh: int | None = None
    seconds: float = 0.0
    worker: str = ""

    @property
    def rung(self) -> int:
        """The highest rung with a quality; -1 if there is none."""
        return max((result.rung for result in self.results if result.counts is not None), default=-1)

    @property
    def quality(self) -> float | None:
        """The quality on the highest rung above the static check; None if there is none."""
        qualities = (
            result.counts for result in reversed(self.results) if result.rung > 0 and result.counts is not None
        )
        return next(qualities, None)

    def quality_on(self, rung: int) -> float | None:
        """The quality on a rung; None if the rung was not reached, or no run was finite."""
        return next((result.counts for result in self.results if result.rung == rung), None)

    @property
    def origin(self) -> str:
        """The origin of the proposal, such as `mutate of 12`."""
        parents = joined(str(slot) for slot in self.parents)
        return f"{self.how} of {parents}" if parents else self.how

    def as_dict(self) -> dict[str, Any]:
        """The trial as data for JSON; `trial_from` reads it back."""
        return {**asdict(self), "path": as_data(self.path)}


def trial_from(data: Mapping[str, Any]) -> Trial:
    """The trial of the data of `as_dict`."""
    return _TRIALS.validate_python({**data, "path": from_data(data["path"])})


_TRIALS = TypeAdapter(Trial)


Point = tuple[float, ...]  # a value for each objective, smaller is better


def larger(objective: str) -> bool:
    """Whether larger values of an objective are better.

    >>> larger("quality"), larger("macs")
    (True, False)
    """
    return objective == "quality"


def values_of(price: Price, quality: float | None, latency: float | None = None) -> dict[str, float]:
    """The known values by objective; `latency` in seconds."""
    measured = {"quality": quality, "latency": latency}
    present = {name: float(value) for name, value in measured.items() if value is not None}
    return {name: float(cost) for name, cost in price.as_dict().items()} | present


def values_at(trial: Trial, rung: int) -> dict[str, float]:
    """The values of a trial with its quality on a rung; without quality on rung 0."""
    quality = trial.quality_on(rung) if rung > 0 else None
    return values_of(trial.price, quality, (trial.values or {}).get("latency"))


def on_rung(trials: Iterable[Trial], rung: int) -> list[Trial]:
    """The trials with a result on a rung."""
    return [trial for trial in trials if any(result.rung == rung for result in trial.results)]


def points(trials: Iterable[Trial], objectives: Sequence[str]) -> list[Point]:
    """A point for each trial, to be minimised in each objective; infinite for unknown values."""
    return [point(values_at(trial, trial.rung), objectives) for trial in trials]


def point(values: Mapping[str, float], objectives: Sequence[str]) -> Point:
    """The point of the values of a trial; see `points`."""
    in_order = ((name, values.get(name, nan)) for name in objectives)
    return tuple(inf if isnan(value) else -value if larger(name) else value for name, value in in_order)


def broken(study: Study, values: Mapping[str, float]) -> str | None:
    """The first violated bound, such as `macs at most 1,000, not 1,200`; or None. Unknown values violate none."""
    for name, limit in study.bounds.items():
        value = values.get(name)
        if value is not None and value > limit.most:
            return f"{name} at most {_formatted(limit.most)}, not {_formatted(value)}"
        if value is not None and not value >= limit.least:  # also true for nan
            return f"{name} at least {_formatted(limit.least)}, not {_formatted(value)}"
    return None


def excess(study: Study, values: Mapping[str, float]) -> float:
    """The total violation of all bounds, relative to the bounds; 0 if none is violated."""
    total = 0.0
    for name, limit in study.bounds.items():
        value = values.get(name, limit.least)
        end = limit.most if value > limit.most else limit.least
        if not limit.least <= value <= limit.most:  # also true for nan
            total += inf if isnan(value) else abs(value - end) / (abs(end) or 1.0)
    return total


def within(study: Study, space: Space) -> Space:
    """The space with its own bounds and the study's bounds on costs, so that no proposal violates them."""
    limits = tuple((name, limit.least, limit.most) for name, limit in study.bounds.items() if name in COSTS)
    return replace(space, bounds=replace(space.bounds, limits=(*space.bounds.limits, *limits)))


def _formatted(number: float) -> str:
    return f"{number:,.0f}" if number % 1 == 0 else f"{number:.6g}"
