"""A trial as it was found in the store: what was proposed, what each rung gave, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from tensornet_attn.search.path import Path, as_data, from_data
from tensornet_attn.search.price import Price
from tensornet_attn.study.config import Score

# How a trial ends. All but the last three have a proposal that was evaluated as far as it went.
COMPLETE, FAILED, DIVERGED, MEMORY, LATE, BOUND = (
    "complete", "failed", "not finite", "out of memory", "timed out", "out of bounds",
)  # fmt: skip
STATES = (COMPLETE, BOUND, DIVERGED, FAILED, MEMORY, LATE)


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

    def as_dict(self) -> dict[str, Any]:
        """As JSON holds it; `trial_from` reads it back."""
        return {**asdict(self), "path": as_data(self.path)}


def trial_from(data: Mapping[str, Any]) -> Trial:
    """The trial of what `as_dict` gave."""
    results = tuple(
        Result(
            r["rung"], tuple(r["quality"]), tuple(r["rates"]), r["seconds"], tuple(r["folders"]), r.get("score", "best")
        )
        for r in data["results"]
    )
    made = {"path": from_data(data["path"]), "price": Price(**data["price"]), "results": results}
    return Trial(**{**data, **made, "parents": tuple(data["parents"])})
