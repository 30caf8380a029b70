"""Proposals of a study: the design of a slot is a pure function of the study, the slot, and the finished trials.

Evolution starts with the bases and random designs, and continues as aging evolution. A parent wins a tournament among
the last trials. The candidates are mutants, crossovers with another parent, and random designs; the proposal is the
candidate with the largest acquisition value. Aging discards lucky measurements; because a study has only tens of
trials, the best trials of all stay among the parents.

Costs are known before training. Qualities are predicted by a Gaussian process over the evaluated designs, as the mean
plus one standard deviation (an upper confidence bound). The acquisition value is the hypervolume that the predicted
point adds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import exp, isfinite, log

from tensornet_attn.errors import InputError
from tensornet_attn.report.words import counted
from tensornet_attn.search.build import Proposal
from tensornet_attn.search.propose import Luck, cross, mutate, propose, seeds
from tensornet_attn.search.rank import EDGE, even, hypervolume, order, unit
from tensornet_attn.search.space import Path, Space
from tensornet_attn.search.study import ARMS, Study
from tensornet_attn.search.survey import FEW, every, paths_at_most
from tensornet_attn.search.trial import Trial, excess, on_rung, point, values_at, values_of, within

ATTEMPTS = 48  # attempts with one kind of proposal before the next kind
OFFSPRING = 24  # mutants and crossovers among the candidates; pricing is cheap compared with training
STRANGERS = 16  # random designs among the candidates, for the case that all parents are poor
REFUSALS = 3  # random proposals, each with many drafts, that may fail in a row
GRAIN = 0.01  # share of the range of qualities below which parents count as equal, and the cheaper one wins
_NUMBERS = 2**20  # proposal numbers per slot


class Exhausted(InputError):
    """An arm has evaluated every design of the space."""


@dataclass(frozen=True)
class Draft:
    """The proposal of a slot. `how`: seed, random, mutate or cross; `parents`: slots."""

    slot: int
    arm: str
    how: str
    proposal: Proposal
    parents: tuple[int, ...] = ()


@dataclass(frozen=True)
class Confirmation:
    """A slot in which a finalist is trained again, with a fresh seed."""

    slot: int
    of: Trial
    fresh: int


Found = tuple[str, Proposal, tuple[int, ...]]  # how, proposal, parents


def draft(
    study: Study, space: Space, slot: int, finished: Sequence[Trial], avoid: frozenset[str] = frozenset()
) -> Draft:
    """The proposal of a slot. `finished`: trials in any order; `avoid`: essences that its arm is evaluating.

    An arm uses only its own trials. Raises InputError if no design is valid and within bounds, and Exhausted if the arm
    has evaluated every design.
    """
    if not 0 <= slot < study.proposals:
        raise InputError(f"the study has no slot {slot}; choose a slot from 0 to {study.proposals - 1}.")
    arm = study.arms[slot % len(study.arms)]
    trials = sorted((trial for trial in finished if trial.arm in ARMS and trial.slot != slot), key=lambda t: t.slot)
    arm_trials = [trial for trial in trials if trial.arm == arm]
    taken = avoid | {trial.essence for trial in arm_trials}
    how, proposal, parents = _first_new(
        _Source(study, within(study, space), slot, arm_trials, bool(trials)), arm, taken
    )
    return Draft(slot, arm, how, proposal, parents)


@dataclass(frozen=True)
class _Source:
    """The generators of proposals for a slot; `arm_trials`: the finished trials of its arm, by slot."""

    study: Study
    space: Space
    slot: int
    arm_trials: Sequence[Trial]
    hopeful: bool  # an earlier proposal shows that the space is not empty

    def luck(self, purpose: str, attempt: int) -> Luck:
        return Luck(f"study/{purpose}", self.study.seed, self.slot, attempt)

    def number(self, attempt: int) -> int:
        return self.slot * _NUMBERS + attempt

    def seeds(self) -> Iterator[Found]:
        yield from (("seed", proposal, ()) for proposal in seeds(self.space))

    def random(self) -> Iterator[Found]:
        """Random proposals. Raises InputError if too many in a row are refused."""
        refused = 0
        for attempt in range(ATTEMPTS):
            try:
                proposal = propose(self.space, self.study.seed, self.number(attempt))
            except InputError:
                refused += 1
                if refused == REFUSALS or not self.hopeful:
                    raise
            else:
                refused = 0
                yield "random", proposal, ()

    def bred(self) -> Iterator[Found]:
        """The candidates of each generation by acquisition value, once there are enough trials."""
        if len(self.arm_trials) >= self.study.population:
            pool, evaluated = self.pool(), {trial.essence for trial in self.arm_trials}
            for number in range(ATTEMPTS // OFFSPRING):
                litter = [candidate for candidate in self.litter(pool, number) if candidate[1].essence not in evaluated]
                ranking = promising(self.study, self.arm_trials, [proposal for _, proposal, _ in litter])
                yield from (litter[index] for index in ranking)

    def litter(self, pool: Sequence[Trial], number: int) -> Iterator[Found]:
        """Offspring and random designs; fewer if no valid design within bounds is found."""
        mates = (partial(self.offspring, pool, number * OFFSPRING + index) for index in range(OFFSPRING))
        strangers = (partial(self.stranger, number * STRANGERS + index) for index in range(STRANGERS))
        for make in (*mates, *strangers):
            with suppress(InputError):
                yield make()

    def stranger(self, attempt: int) -> Found:
        return "random", propose(self.space, self.study.seed, self.number(ATTEMPTS + attempt)), ()

    def pool(self) -> list[Trial]:
        """The possible parents, the best first: the last trials, and the best of all trials."""
        size, qualities = (
            self.study.population,
            [trial.quality for trial in self.arm_trials if trial.quality is not None],
        )
        finite = [quality for quality in qualities if isfinite(quality)]
        grain = GRAIN * (max(finite) - min(finite)) if finite else 0.0
        young = {trial.slot for trial in self.arm_trials[-size:]}
        best = enumerate(order(self.study, self.arm_trials, grain))
        return [trial for rank, trial in best if rank < size // 4 or trial.slot in young]

    def offspring(self, pool: Sequence[Trial], attempt: int) -> Found:
        luck = self.luck("offspring", attempt)
        first = self.winner(pool, luck)
        mates = [trial for trial in pool if trial.slot != first.slot]
        if mates and luck.unit() < self.study.crossover:
            second = self.winner(mates, luck)
            child = cross(self.space, first.path, second.path, self.study.seed, self.number(attempt))
            return "cross", child, (first.slot, second.slot)
        return "mutate", mutate(self.space, first.path, self.study.seed, self.number(attempt)), (first.slot,)

    def winner(self, pool: Sequence[Trial], luck: Luck) -> Trial:
        """The winner of a tournament in a sorted pool."""
        return pool[min(int(luck.unit() * len(pool)) for _ in range(self.study.tournament))]

    def walked(self) -> Iterator[Found]:
        """All designs of a small space in a random order that depends on the slot."""
        if paths_at_most(self.space) <= FEW:
            unique = {proposal.essence: proposal for proposal in every(self.space)}
            yield from (("random", proposal, ()) for proposal in self.luck("walk", 0).shuffled(list(unique.values())))


def _first_new(source: _Source, arm: str, taken: frozenset[str]) -> Found:
    """The first proposal of the arm whose essence is not in `taken`."""
    generators = [source.seeds, source.bred] if arm == "evolution" else []
    met: set[str] = set()
    problem: InputError | None = None
    for generator in [*generators, source.random, source.walked]:
        try:
            for candidate in generator():
                if candidate[1].essence not in taken:
                    return candidate
                met.add(candidate[1].essence)
        except InputError as error:
            problem = error
    if problem is not None and not met:
        raise problem
    space, small = source.space, paths_at_most(source.space) <= FEW
    done = f"{ATTEMPTS} drafts of the space '{space.name}' gave no design that {arm} has not evaluated"
    if small:
        designs = counted(len(met), "different design")
        done = f"the space '{space.name}' has {designs} within bounds, and {arm} has evaluated all of them"
    raise Exhausted(f"{done}: lower 'trials', or add choices to the space.")


OPTIMISM = 1.0  # standard deviations above the mean, for exploration
Values = Mapping[str, float]


def promising(study: Study, trials: Sequence[Trial], candidates: Sequence[Proposal]) -> list[int]:
    """The indices of candidates, sorted by violation of bounds, hypervolume gain, predicted quality, and index."""
    evaluated = _evaluated(study, trials)
    if not evaluated or len(candidates) < 2:
        return list(range(len(candidates)))
    guesses = guess(evaluated, candidates)
    gains = _volume_gains(study, [values for _, values in evaluated if not excess(study, values)], guesses)
    hopes = [guessed.get("quality", 0.0) for guessed in guesses]
    return sorted(
        range(len(guesses)), key=lambda index: (excess(study, guesses[index]), -gains[index], -hopes[index], index)
    )


def _evaluated(study: Study, trials: Sequence[Trial]) -> list[tuple[Path, Values]]:
    """The paths of trials, and their values on the highest rung with enough trials.

    A quality that is not finite counts as the worst quality.
    """
    rungs = range(len(study.rungs), 1, -1)
    rung = next((rung for rung in rungs if len(on_rung(trials, rung)) >= study.population // 2), 1)
    values = [(trial, values_at(trial, rung)) for trial in on_rung(trials, rung)]
    worst = min((measured["quality"] for _, measured in values if "quality" in measured), default=None)
    return [] if worst is None else [(trial.path, {"quality": worst, **measured}) for trial, measured in values]


def guess(evaluated: Sequence[tuple[Path, Values]], candidates: Sequence[Proposal]) -> list[dict[str, float]]:
    """The predicted values of candidates: their costs, and optimistic quality and latency."""
    paths = [candidate.path for candidate in candidates]
    quality = [(path, values["quality"]) for path, values in evaluated if "quality" in values]
    latency = [(path, -log(values["latency"])) for path, values in evaluated if values.get("latency", 0) > 0]
    guesses: list[dict[str, float]] = [dict(values_of(candidate.price, None)) for candidate in candidates]
    for name, pairs, undo in (("quality", quality, float), ("latency", latency, lambda hope: exp(-hope))):
        for values, hope in zip(guesses, _upper_bounds(pairs, paths) if pairs else (), strict=False):
            values[name] = undo(hope)
    return guesses


def _upper_bounds(pairs: Sequence[tuple[Path, float]], paths: Sequence[Path]) -> list[float]:
    """The upper confidence bound of each path, given (path, value) pairs."""
    from tensornet_attn.search.gaussian import regressed  # importing scikit-learn takes a second

    mean, deviation = regressed([path for path, _ in pairs], [observed for _, observed in pairs], paths)
    hopes = mean + OPTIMISM * deviation
    return [round(hope, 12) for hope in hopes.tolist()]  # rounding keeps the order of equal values stable


def _volume_gains(study: Study, evaluated: Sequence[Values], guesses: Sequence[Values]) -> list[float]:
    """The hypervolume that each guess adds, with objectives scaled to 0 to 1 over known and guessed values."""
    names, edge = study.objectives, (EDGE,) * len(study.objectives)
    scaled = unit([even(point(values, names), names) for values in (*evaluated, *guesses)])
    have = scaled[: len(evaluated)]
    before = hypervolume(have, edge)
    return [round(hypervolume([*have, guessed], edge) - before, 12) for guessed in scaled[len(evaluated) :]]
