"""What a study has come to, put together once for all parts of its report: how the report calls it, and what paid.

How qualities and costs differ between trials with and without a choice has 95 % intervals.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from statistics import fmean, variance

from tensornet_attn.compare.section import mean_of, quantile
from tensornet_attn.search.rank import Confirmed, confirmed, front, hypervolumes
from tensornet_attn.search.space import COSTS, Choice, Space
from tensornet_attn.search.study import ARMS, Rung, Study
from tensornet_attn.search.study_file import callable_task
from tensornet_attn.search.trial import BOUND, COMPLETE, Trial, values_at

LEAST = 2  # values on each side of a difference that has an interval
ALL = "all"  # trials of all arms


@dataclass(frozen=True)
class Effect:
    """The mean of `metric` in trials with a choice, less that in trials without it, and its 95 % interval.

    `move`: what was chosen, a move, a base or `STEP: ALTERNATIVE`, by `kind`. `with_`, `without`: how many trials.
    `arm`: random, whose trials nothing was chosen by, or all. `paired`: over pairs of mutant and parent that differ in
    this choice alone, of which there are `with_`. `rung`: the one that gave the qualities, 0 for costs.
    """

    move: str
    kind: str
    metric: str
    difference: float
    low: float
    high: float
    with_: int
    without: int
    arm: str = ALL
    paired: bool = False
    rung: int = 0


Key = tuple[str, str]  # kind, name


def effects(study: Study, trials: Iterable[Trial]) -> list[Effect]:
    """The effects of all choices on quality and the objectives, where there are two trials at least on either side.

    Qualities are compared on each rung by itself, among all that were trained there; costs among all proposals. A
    design that both arms have counts once. Unpaired ones of a study are confounded: evolution adds moves to what was
    good already, so look at the random arm and at pairs first.
    """
    own = sorted((trial for trial in trials if trial.arm in ARMS), key=lambda trial: trial.slot)
    measures = [(rung, "quality") for rung in range(len(study.rungs), 0, -1)]
    measures += [(0, name) for name in study.objectives if name != "quality"]  # latency may be known of few
    found: list[Effect] = []
    for rung, metric in measures:
        values = {trial.slot: value for trial in own if (value := values_at(trial, rung).get(metric)) is not None}
        known = [trial for trial in own if trial.slot in values]
        for arm in (ALL, *study.arms[1:]):
            # of equal designs the first
            designs = {trial.essence: trial for trial in reversed(known) if arm in (ALL, trial.arm)}
            rows = [({*map(_key, trial.path)}, values[trial.slot]) for trial in designs.values()]
            for kind, name in sorted({key for keys, _ in rows for key in keys if key is not None}):
                sides = [[value for keys, value in rows if ((kind, name) in keys) == has] for has in (True, False)]
                many, few = map(len, sides)
                if min(many, few) >= LEAST:
                    middle, half = welch(*sides)
                    found.append(
                        Effect(name, kind, metric, middle, middle - half, middle + half, many, few, arm, False, rung)
                    )
        for (kind, name), differences in sorted(_paired(known, values).items()):
            mean, count = mean_of(differences), len(differences)
            if count >= LEAST:
                found.append(Effect(name, kind, metric, mean.value, mean.low, mean.high, count, count, ALL, True, rung))
    return found


def _key(choice: Choice) -> Key | None:
    """What is compared of a choice; sizes and options are left out."""
    if choice.kind in ("base", "move"):
        return choice.kind, choice.name
    return ("alternative", f"{choice.name}: {choice.value}") if choice.kind == "alternative" else None


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The difference of two means, and half of its 95 % interval, for variances that may differ (Welch, 1947).

    >>> [round(value, 3) for value in welch([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])]
    [2.0, 2.267]
    """
    parts = [variance(values) / len(values) for values in (first, second)]  # of each mean
    middle, total = fmean(first) - fmean(second), sum(parts)
    if total == 0:
        return middle, 0.0
    freedom = total**2 / sum(part**2 / (len(v) - 1) for part, v in zip(parts, (first, second), strict=True))
    return middle, quantile(max(1, int(freedom + 1e-9))) * sqrt(total)  # whole, hence not too narrow


def _paired(trials: Sequence[Trial], values: Mapping[int, float]) -> dict[Key, list[float]]:
    """By move or alternative, what having it changes in mutants that differ from their parent in it alone."""
    slots = {trial.slot: trial for trial in trials}
    found: dict[Key, list[float]] = {}
    for trial in trials:
        parent = slots.get(trial.parents[0]) if trial.how == "mutate" and trial.parents else None
        if parent is not None:
            # where a move was made is left out: other moves change the name of its box
            mine, theirs = ({replace(choice, at="") for choice in one.path} for one in (trial, parent))
            differing = mine ^ theirs
            key = _key(next(iter(differing))) if len(differing) == 1 else None
            if key is not None and key[0] != "base":
                difference = values[trial.slot] - values[parent.slot]
                found.setdefault(key, []).append(difference if mine > theirs else -difference)
    return found


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


def folder(trial: Trial) -> str:
    """The name of the folder of a design of the front: `062_mhsa_delta`."""
    name = next(line.removeprefix("name:").strip() for line in trial.design.splitlines() if line.startswith("name:"))
    return f"{trial.slot:03}_{name}"
