"""The findings of a study for its report, with the effects of choices on quality and costs and their 95 % intervals."""

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
from tensornet_attn.search.trial import BOUND, COMPLETE, Trial, values_at

LEAST = 2  # minimum number of values on each side of an effect
ALL = "all"  # trials of all arms


@dataclass(frozen=True)
class Effect:
    """The mean of `metric` in trials with a choice minus the mean without it, and its 95 % interval.

    `move`: the choice, which is a move, a base or `STEP: ALTERNATIVE`, by `kind`. `with_`, `without`: numbers of
    trials. `arm`: random, or all arms. `paired`: the effect is over `with_` pairs of mutant and parent that differ only
    in this choice. `rung`: the rung of the qualities; 0 for costs.
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
    """The effects of all choices on quality and the other objectives, with at least two trials on either side.

    Qualities are compared on each rung separately, among all trials of the rung; costs among all proposals. A design of
    both arms counts once. Unpaired effects over all arms are confounded, because evolution adds moves to good designs:
    prefer the random arm and pairs.
    """
    proposals = sorted((trial for trial in trials if trial.arm in ARMS), key=lambda trial: trial.slot)
    measures = [(rung, "quality") for rung in range(len(study.rungs), 0, -1)]
    measures += [(0, name) for name in study.objectives if name != "quality"]  # latency may be known of few
    effects: list[Effect] = []
    for rung, metric in measures:
        values = {trial.slot: value for trial in proposals if (value := values_at(trial, rung).get(metric)) is not None}
        measured = [trial for trial in proposals if trial.slot in values]
        for arm in (ALL, *study.arms[1:]):
            # the first trial of each design
            designs = {trial.essence: trial for trial in reversed(measured) if arm in (ALL, trial.arm)}
            rows = [({*map(_choice_key, trial.path)}, values[trial.slot]) for trial in designs.values()]
            for kind, name in sorted({key for keys, _ in rows for key in keys if key is not None}):
                sides = [[value for keys, value in rows if ((kind, name) in keys) == has] for has in (True, False)]
                many, few = map(len, sides)
                if min(many, few) >= LEAST:
                    middle, half = welch(*sides)
                    effects.append(
                        Effect(name, kind, metric, middle, middle - half, middle + half, many, few, arm, False, rung)
                    )
        for (kind, name), differences in sorted(_paired_differences(measured, values).items()):
            mean, count = mean_of(differences), len(differences)
            if count >= LEAST:
                effects.append(
                    Effect(name, kind, metric, mean.value, mean.low, mean.high, count, count, ALL, True, rung)
                )
    return effects


def _choice_key(choice: Choice) -> Key | None:
    """The key of a choice for effects; None for sizes and settings, and options are ignored."""
    if choice.kind in ("base", "move"):
        return choice.kind, choice.name
    return ("alternative", f"{choice.name}: {choice.value}") if choice.kind == "alternative" else None


def welch(first: Sequence[float], second: Sequence[float]) -> tuple[float, float]:
    """The difference of two means, and half its 95 % interval, for unequal variances (Welch, 1947).

    >>> [round(value, 3) for value in welch([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])]
    [2.0, 2.267]
    """
    mean_variances = [variance(values) / len(values) for values in (first, second)]  # of each mean
    middle, total = fmean(first) - fmean(second), sum(mean_variances)
    if total == 0:
        return middle, 0.0
    freedom = total**2 / sum(
        mean_variance**2 / (len(values) - 1)
        for mean_variance, values in zip(mean_variances, (first, second), strict=True)
    )
    return middle, quantile(max(1, int(freedom + 1e-9))) * sqrt(total)  # rounding down widens


def _paired_differences(trials: Sequence[Trial], values: Mapping[int, float]) -> dict[Key, list[float]]:
    """By move or alternative, the differences between mutants and parents that differ only in this choice."""
    slots = {trial.slot: trial for trial in trials}
    by_choice: dict[Key, list[float]] = {}
    for trial in trials:
        parent = slots.get(trial.parents[0]) if trial.how == "mutate" and trial.parents else None
        if parent is not None:
            # positions of moves are ignored, because other moves rename boxes
            mine, theirs = ({replace(choice, at="") for choice in side.path} for side in (trial, parent))
            differing = mine ^ theirs
            key = _choice_key(next(iter(differing))) if len(differing) == 1 else None
            if key is not None and key[0] != "base":
                difference = values[trial.slot] - values[parent.slot]
                by_choice.setdefault(key, []).append(difference if mine > theirs else -difference)
    return by_choice


ARM_NAMES = {"evolution": "evolution", "random": "random search"}
MEANINGS = {  # of objectives
    "macs": "multiply-adds of a forward call",
    "parameters": "parameters",
    "activations": "floats saved for backward",
    "decoding_state": "floats of the decoding cache",
    "latency": "seconds of forward and backward",
}


@dataclass(frozen=True)
class Findings:
    """A study with its trials, its `proposals` by slot, and their `front`, the best in the first objective first."""

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
        """The essences of the front."""
        return frozenset(trial.essence for trial in self.front)

    @cached_property
    def again(self) -> Mapping[int, Confirmed]:
        """The confirmations by slot of the finalist."""
        return {finalist.of: finalist for finalist in self.confirmed}

    @cached_property
    def costs(self) -> Sequence[str]:
        """The names of known costs."""
        latency = any("latency" in (trial.values or {}) for trial in self.proposals)
        return [*COSTS, *(["latency"] if latency else [])]

    @cached_property
    def chosen(self) -> Sequence[Trial]:
        """The front, then the other finalists, the highest mean first."""
        other_finalists = (self.slots[finalist.of] for finalist in self.confirmed)
        return (*self.front, *(trial for trial in other_finalists if trial.essence not in self.members))

    @cached_property
    def ratings(self) -> Mapping[str, Confirmed]:
        """The confirmations by essence."""
        return {self.slots[finalist.of].essence: finalist for finalist in self.confirmed}

    @cached_property
    def failed(self) -> tuple[Trial, ...]:
        """All trials, including confirmations, that ended neither complete nor out of bounds."""
        return tuple(trial for trial in self.trials if trial.state not in (COMPLETE, BOUND))

    @property
    def shown(self) -> tuple[str, ...]:
        """The objectives on the horizontal axes of plots: the study's costs, or multiply-adds if it has none."""
        return tuple(name for name in self.study.objectives if name != "quality") or ("macs",)

    @cached_property
    def volumes(self) -> Mapping[str, Sequence[float]]:
        """The hypervolume of each arm after each of its evaluations."""
        return {arm: hypervolumes(self.study, self.proposals, arm) for arm in self.study.arms}

    @cached_property
    def effects(self) -> Sequence[Effect]:
        return effects(self.study, self.proposals)


def find(study: Study, space: Space, trials: Iterable[Trial]) -> Findings:
    """The findings of a study; the trials can be in any order."""
    in_order = tuple(sorted(trials, key=lambda trial: trial.slot))
    proposals = tuple(trial for trial in in_order if trial.arm in ARMS)
    return Findings(study, space, in_order, proposals, tuple(front(study, in_order)), tuple(confirmed(study, in_order)))


def task(rung: Rung) -> str:
    """The task of a rung with its options.

    >>> task(Rung(task="mqar", options={"length": 64, "pairs": 4}))
    'mqar (length 64, pairs 4)'
    """
    options = ", ".join(f"{name} {value}" for name, value in rung.options.items())
    return f"{rung.task} ({options})" if options else rung.task


def measure(rung: Rung) -> str:
    """The name of the quality of a rung; larger is better."""
    if rung.calls:
        return "quality"
    return "accuracy" if rung.measure == "accuracy" else "minus the loss, nats"


def folder(trial: Trial) -> str:
    """The folder name of a design of the front, such as `062_mhsa_delta`."""
    name = next(line.removeprefix("name:").strip() for line in trial.design.splitlines() if line.startswith("name:"))
    return f"{trial.slot:03}_{name}"
