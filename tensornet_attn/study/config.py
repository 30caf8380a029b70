"""What a study is: its space, the rungs its candidates climb, objectives and bounds, and how much it may take."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from tensornet_attn.search.price import COSTS

Count = Annotated[int, Field(ge=1, lt=2**40)]
Share = Annotated[float, Field(gt=0, le=1)]
Rate = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Score = Literal["best", "mean"]
OBJECTIVES = ("quality", *COSTS, "latency")  # quality is maximised, all others are minimised
ARMS = ("evolution", "random")
SEEDS = 1000  # that designs of a study are trained with; fresh ones follow


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Limit(_Model):
    """The least and the most that something may be."""

    least: float = float("-inf")
    most: float = float("inf")


class Rung(_Model):
    """A task that a candidate is trained on, with each of some learning rates, all at equal compute.

    `run`: keys of a run file, such as steps, batch, depth or mlp. `keep`: the share of the candidates that go on to the
    next rung, by non-dominated rank. `measure`: `accuracy` or `loss` (then quality is its negative, in nats).
    `score`: `best`, of the learning rates, which share a training seed; or `mean`, each with a seed of its own, where a
    seed decides whether a design learns at all.
    """

    task: str
    options: dict[str, Any] = {}
    run: dict[str, Any] = {}
    rates: Annotated[tuple[Rate, ...], Field(min_length=1, strict=False)] = (1e-3, 2e-3, 4e-3)
    keep: Share = 1 / 3
    measure: Literal["accuracy", "loss"] = "accuracy"
    score: Score = "best"


class Study(_Model):
    """A study, as `study.yaml` in its folder holds it. Equal studies propose equal designs, with one worker.

    `trials`: different designs that each arm evaluates: evolution and, with `baseline`, random search of that space.
    `bounds`: by objective; those on costs are decided before anything is built. `finalists`: of each arm, trained again
    with `fresh_seeds` seeds that nothing was chosen by. `seconds` and `gibibytes`: what one trial may take.
    """

    study: Literal[1] = 1
    space: dict[str, Any]
    rungs: Annotated[tuple[Rung, ...], Field(min_length=1, strict=False)]
    objectives: Annotated[tuple[str, ...], Field(min_length=1, strict=False)] = ("quality", "macs")
    bounds: dict[str, Limit] = {}
    trials: Count = 40
    baseline: bool = True
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    population: Count = 8
    tournament: Count = 4
    crossover: Annotated[float, Field(ge=0, le=1)] = 0.3
    finalists: Annotated[int, Field(ge=0)] = 2
    fresh_seeds: Annotated[int, Field(ge=5)] = 5
    seconds: Rate = 3600.0
    gibibytes: Rate | None = None
    threads: Count = 1

    @model_validator(mode="after")
    def _known(self) -> Study:
        for name in (*self.objectives, *self.bounds):
            if name not in OBJECTIVES:
                told = {"name": name, "known": ", ".join(OBJECTIVES)}
                raise PydanticCustomError("objective", "there is no objective '{name}'; there are {known}", told)
        return self

    @property
    def arms(self) -> tuple[str, ...]:
        return ARMS if self.baseline else ARMS[:1]

    @property
    def proposals(self) -> int:
        """How many slots hold proposals; slot s belongs to arm s modulo their number. Confirmations follow."""
        return self.trials * len(self.arms)

    def seed_of(self, essence: str, place: int = 0) -> int:
        """The seed of a design, its own: what one seed favours would else pass for the merit of a family.

        `place`: of the learning rate, from 0, where each has a seed of its own.
        """
        return (self.seed + int(essence, 16) // SEEDS**place % SEEDS) % 2**63

    def fresh_seed(self, place: int) -> int:
        """The seed of a confirmation, which no design is chosen by."""
        return (self.seed + SEEDS + place) % 2**63
