"""What a study has come to, put together once for all parts of its report; and how the report calls it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tensornet_attn.report.words import joined
from tensornet_attn.search.effects import Effect, effects
from tensornet_attn.search.rank import Confirmed, confirmed, front, hypervolumes
from tensornet_attn.search.space import COSTS, Space
from tensornet_attn.search.study import ARMS, Rung, Study
from tensornet_attn.search.study_file import callable_task
from tensornet_attn.search.trial import BOUND, COMPLETE, Trial

ARM_NAMES = {"evolution": "evolution", "random": "random search"}
MEANINGS = {  # of objectives
    "macs": "multiply-adds of a forward call",
    "parameters": "parameters",
    "activations": "floats kept for backward",
    "decoding_state": "floats of the decoding state",
    "latency": "seconds of a forward and a backward call",
}


@dataclass(frozen=True)
class Findings:
    """A study and its trials: `proposals` by slot, and the `front` of them, the best in the first objective first."""

    study: Study
    space: Space
    trials: tuple[Trial, ...]
    proposals: tuple[Trial, ...]
    front: tuple[Trial, ...]
    confirmed: tuple[Confirmed, ...]

    @cached_property
    def slots(self) -> Mapping[int, Trial]:
        return {trial.slot: trial for trial in self.trials}

    @cached_property
    def members(self) -> frozenset[str]:
        """The essences on the front."""
        return frozenset(trial.essence for trial in self.front)

    @cached_property
    def front_slots(self) -> frozenset[int]:
        return frozenset(trial.slot for trial in self.front)

    @cached_property
    def again(self) -> Mapping[int, Confirmed]:
        """By the slot of a finalist, what confirming it gave."""
        return {one.of: one for one in self.confirmed}

    @cached_property
    def costs(self) -> Sequence[str]:
        """The costs that are known of trials."""
        latency = any("latency" in (one.values or {}) for one in self.proposals)
        return [*COSTS, *(["latency"] if latency else [])]

    @cached_property
    def chosen(self) -> Sequence[Trial]:
        """The front and then the other finalists, the highest mean first."""
        others = (self.slots[one.of] for one in self.confirmed)
        return (*self.front, *(trial for trial in others if trial.essence not in self.members))

    @cached_property
    def ratings(self) -> Mapping[str, Confirmed]:
        """By essence, what confirming a design gave."""
        return {self.slots[one.of].essence: one for one in self.confirmed}

    @cached_property
    def failed(self) -> tuple[Trial, ...]:
        """All trials that ended neither complete nor beyond a bound; confirmations too."""
        return tuple(trial for trial in self.trials if trial.state not in (COMPLETE, BOUND))

    @property
    def shown(self) -> tuple[str, ...]:
        """The objectives that qualities are plotted against: those of the study, or multiply-adds where it has none."""
        return tuple(name for name in self.study.objectives if name != "quality") or ("macs",)

    @cached_property
    def best(self) -> Confirmed | None:
        """The confirmed design of the highest mean; None where nothing was confirmed."""
        return self.confirmed[0] if self.confirmed else None

    def of_arm(self, arm: str) -> list[Trial]:
        return [trial for trial in self.proposals if trial.arm == arm]

    @cached_property
    def volumes(self) -> Mapping[str, Sequence[float]]:
        """The hypervolume of each arm after each of its evaluations."""
        return {arm: hypervolumes(self.study, self.proposals, arm) for arm in self.study.arms}

    @cached_property
    def effects(self) -> Sequence[Effect]:
        return effects(self.study, self.proposals)


def find(study: Study, space: Space, trials: Iterable[Trial]) -> Findings:
    """The findings of a study's trials, in any order."""
    known = tuple(sorted(trials, key=lambda trial: trial.slot))
    proposals = tuple(trial for trial in known if trial.arm in ARMS)
    return Findings(study, space, known, proposals, tuple(front(study, known)), tuple(confirmed(study, known)))


def task(rung: Rung) -> str:
    """
    >>> task(Rung(task="mqar", options={"length": 64, "pairs": 4}))
    'mqar (length 64, pairs 4)'
    """
    options = ", ".join(f"{name} {value}" for name, value in rung.options.items())
    return f"{rung.task} ({options})" if options else rung.task


def measure(rung: Rung) -> str:
    """What the quality of a rung is; more is better. What a user's function returns has no name of its own."""
    if callable_task(rung.task):
        return "quality"
    return "accuracy" if rung.measure == "accuracy" else "minus the loss, nats"


def counts(rung: Rung) -> str:
    """
    >>> counts(Rung(task="mqar", score="mean"))
    'accuracy, mean of the rates'
    """
    return f"{measure(rung)}, {rung.score} of the rates" if len(rung.rates) > 1 else measure(rung)


def origin(trial: Trial) -> str:
    """How a trial was proposed: `mutate of 12`."""
    parents = joined(str(slot) for slot in trial.parents)
    return f"{trial.how} of {parents}" if parents else trial.how


def folder(trial: Trial) -> str:
    """The name of the folder of a design of the front: `062_mhsa_delta`."""
    name = next(line.removeprefix("name:").strip() for line in trial.design.splitlines() if line.startswith("name:"))
    return f"{trial.slot:03}_{name}"
