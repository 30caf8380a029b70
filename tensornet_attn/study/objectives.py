"""Objectives: which way each is better, the values of a trial on a rung, and bounds on them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf, isnan

from tensornet_attn.search.price import COSTS, Price
from tensornet_attn.search.space import Space
from tensornet_attn.study.config import Limit, Study
from tensornet_attn.study.record import Trial

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
    found = (result.counts for result in trial.results if result.rung == rung > 0)
    return values_of(trial.price, next(found, None), (trial.values or {}).get("latency"))


def points(trials: Iterable[Trial], objectives: Sequence[str]) -> list[Point]:
    """A point for each trial, all to be minimised; infinite where a value is not known."""
    return [point(values_at(trial, trial.rung), objectives) for trial in trials]


def point(values: Mapping[str, float], objectives: Sequence[str]) -> Point:
    """The point of some values, as `points` has it."""
    return tuple(_smaller(name, values.get(name)) for name in objectives)


def _smaller(name: str, value: float | None) -> float:
    if value is None or isnan(value):
        return inf
    return -value if larger(name) else value


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
    pairs = ((values[name], limit) for name, limit in study.bounds.items() if name in values)
    return sum(_over(value, limit) for value, limit in pairs)


def _over(value: float, limit: Limit) -> float:
    if isnan(value):
        return inf
    end = limit.most if value > limit.most else limit.least
    return abs(value - end) / (abs(end) or 1.0) if value > limit.most or value < limit.least else 0.0


def within(study: Study, space: Space) -> Space:
    """The space with the study's bounds on costs beside its own, so that nothing beyond them is proposed."""
    limits = tuple((name, limit.least, limit.most) for name, limit in study.bounds.items() if name in COSTS)
    return replace(space, bounds=replace(space.bounds, limits=(*space.bounds.limits, *limits)))


def _text(value: float) -> str:
    return f"{value:,.0f}" if value % 1 == 0 else f"{value:.6g}"
