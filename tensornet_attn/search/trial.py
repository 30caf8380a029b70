"""A trial as it was found in the store: what was proposed, what each rung gave, its values by objective."""

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

# How a trial ends. All but the last three have a proposal that was evaluated as far as it went.
COMPLETE, FAILED, DIVERGED, MEMORY, LATE, BOUND = (
    "complete", "failed", "not finite", "out of memory", "timed out", "out of bounds",
)  # fmt: skip
HINTS = {  # what to do where all trials end so
    FAILED: "mend that",
    DIVERGED: "give lower learning rates",
    MEMORY: "raise 'gibibytes', or let smaller designs vary",
    LATE: "raise 'seconds', or train for fewer steps",
    BOUND: "widen that bound",
}


@dataclass(frozen=True)
class Result:
    """What one rung gave: the quality with each learning rate, None where a run was not finite. Rung 0 is `static`.

    `score`: what counts of them, `best` or `mean`. `folders`: of the runs, beside the store; `seconds`: by the clock,
    all runs together.
    """

    rung: int
    quality: tuple[float | None, ...]
    rates: tuple[float, ...]
    seconds: float
    folders: tuple[str, ...] = ()
    score: Score = "best"

    @property
    def counts(self) -> float | None:
        """The highest quality of all learning rates, or their mean; None where no run was finite."""
        known = [value for value in self.quality if value is not None]
        if not known:
            return None
        return max(known) if self.score == "best" else fmean(known)

    @property
    def rate(self) -> float | None:
        """The learning rate with the highest quality."""
        most = max((value for value in self.quality if value is not None), default=None)
        return None if most is None else self.rates[self.quality.index(most)]


@dataclass(frozen=True)
class Trial:
    """A finished trial.

    `slot` numbers the evaluations of a study from 0, each finished exactly once. `arm` is evolution, random or confirm;
    `how`: seed, random, mutate, cross or confirm. `parents`: slots. `same_as`: the slot of the other arm whose results
    these are, since the designs are one. `of`, `fresh`: for a confirmation, the slot that it confirms, and its seed.
    `results`: of the rungs it reached, in order. `values`: by objective, those that are known. `reason`: why it is not
    complete, in a sentence.
    """

    slot: int
    arm: str
    how: str
    path: Path
    hash: str
    essence: str
    design: str
    price: Price
    results: tuple[Result, ...] = ()
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
        """The highest rung that gave a quality; -1 before any."""
        return max((result.rung for result in self.results if result.counts is not None), default=-1)

    @property
    def quality(self) -> float | None:
        """The quality on the highest rung it reached; None where that is the static one, which has none."""
        found = (result.counts for result in reversed(self.results) if result.rung > 0 and result.counts is not None)
        return next(found, None)

    def quality_on(self, rung: int) -> float | None:
        """What a rung gave; None where it gave nothing, or was not reached."""
        return next((result.counts for result in self.results if result.rung == rung), None)

    @property
    def origin(self) -> str:
        """How it was proposed: `mutate of 12`."""
        parents = joined(str(slot) for slot in self.parents)
        return f"{self.how} of {parents}" if parents else self.how

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it; `trial_from` reads it back."""
        return {**asdict(self), "path": as_data(self.path)}


def trial_from(data: Mapping[str, Any]) -> Trial:
    """The trial of what `as_dict` gave."""
    return _TRIALS.validate_python({**data, "path": from_data(data["path"])})


_TRIALS = TypeAdapter(Trial)


Point = tuple[float, ...]  # a value for each objective, smaller is better


def larger(objective: str) -> bool:
    """Whether more of an objective is better.

    >>> larger("quality"), larger("macs")
    (True, False)
    """
    return objective == "quality"


def values_of(price: Price, quality: float | None, latency: float | None = None) -> dict[str, float]:
    """By objective what is known; `latency` in seconds."""
    measured = {"quality": quality, "latency": latency}
    known = {name: float(value) for name, value in measured.items() if value is not None}
    return {name: float(cost) for name, cost in price.as_dict().items()} | known


def values_at(trial: Trial, rung: int) -> dict[str, float]:
    """The values of a trial with the quality that one of its rungs gave; without any before the first one."""
    quality = trial.quality_on(rung) if rung > 0 else None
    return values_of(trial.price, quality, (trial.values or {}).get("latency"))


def on_rung(trials: Iterable[Trial], rung: int) -> list[Trial]:
    """Those that have been on a rung."""
    return [trial for trial in trials if any(result.rung == rung for result in trial.results)]


def points(trials: Iterable[Trial], objectives: Sequence[str]) -> list[Point]:
    """A point for each trial, all to be minimised; infinite where a value is not known."""
    return [point(values_at(trial, trial.rung), objectives) for trial in trials]


def point(values: Mapping[str, float], objectives: Sequence[str]) -> Point:
    """The point of some values, as `points` has it."""
    known = ((name, values.get(name, nan)) for name in objectives)
    return tuple(inf if isnan(value) else -value if larger(name) else value for name, value in known)


def broken(study: Study, values: Mapping[str, float]) -> str | None:
    """The first bound that values break, `macs at most 1,000, not 1,200`; None where they keep to all.

    What is not known breaks nothing.
    """
    for name, limit in study.bounds.items():
        value = values.get(name)
        if value is not None and value > limit.most:
            return f"{name} at most {_text(limit.most)}, not {_text(value)}"
        if value is not None and not value >= limit.least:  # nan is not
            return f"{name} at least {_text(limit.least)}, not {_text(value)}"
    return None


def excess(study: Study, values: Mapping[str, float]) -> float:
    """How far values are beyond all bounds together, as shares of the bounds; 0 where they keep to all."""
    found = 0.0
    for name, limit in study.bounds.items():
        value = values.get(name, limit.least)
        end = limit.most if value > limit.most else limit.least
        if not limit.least <= value <= limit.most:  # nan does not
            found += inf if isnan(value) else abs(value - end) / (abs(end) or 1.0)
    return found


def within(study: Study, space: Space) -> Space:
    """The space with the study's bounds on costs beside its own, so that nothing beyond them is proposed."""
    limits = tuple((name, limit.least, limit.most) for name, limit in study.bounds.items() if name in COSTS)
    return replace(space, bounds=replace(space.bounds, limits=(*space.bounds.limits, *limits)))


def _text(value: float) -> str:
    return f"{value:,.0f}" if value % 1 == 0 else f"{value:.6g}"
