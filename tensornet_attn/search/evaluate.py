"""From a claim to a finished trial: rung after rung, as long as it is promoted, within bounds, and whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from tensornet_attn.search.claim import Confirmation
from tensornet_attn.search.evolve import Draft
from tensornet_attn.search.job import CLIMB, LATENCY, STATIC, Job
from tensornet_attn.search.process import Bound, Nursery
from tensornet_attn.search.rank import CONFIRM, promoted
from tensornet_attn.search.study import Study, log_of
from tensornet_attn.search.study_file import trained
from tensornet_attn.search.trial import BOUND, COMPLETE, DIVERGED, Result, Trial, broken, values_of


class EndedError(Exception):
    """A trial has come to its end before its time: its state, and why."""

    def __init__(self, state: str, reason: str):
        super().__init__(reason)
        self.state, self.reason = state, reason


@dataclass
class Evaluation:
    """One trial on its way. `finished`: gives the trials that are finished by now; `tell`: hears of each rung.

    `lost`: whether the trial was taken from us. `seeds`: of the learning rates, by their place.
    """

    study: Study
    out: Path
    nursery: Nursery
    finished: Callable[[], Sequence[Trial]]
    tell: Callable[[int], None] = lambda rung: None
    lost: Callable[[], bool] = lambda: False
    design: str = ""
    slot: int = 0
    seeds: Callable[[int], int] = lambda place: 0
    end: float = inf

    def proposal(self, draft: Draft, other: Trial | None, worker: str = "") -> Trial:
        """The finished trial of a draft; what `other`, a trial of the same design, has measured is taken over."""
        made = draft.proposal
        trial = Trial(
            draft.slot, draft.arm, draft.how, made.path, made.hash, made.essence, made.design.to_yaml(), made.price,
            values=values_of(made.price, None), parents=draft.parents, worker=worker,
        )  # fmt: skip
        design = trial.design
        if other is not None:
            trial, design = replace(trial, same_as=other.slot), other.design
            if other.state != COMPLETE:
                found = {name: getattr(other, name) for name in ("results", "values", "state", "reason")}
                return replace(trial, **found)
        return self._ended(trial, design, partial(self.study.seed_of, made.essence), self._climb(trial, other))

    def confirmation(self, confirmed: Confirmation, worker: str = "") -> Trial:
        """The finished trial of a confirmation: the last rung at the learning rate that was best, with a fresh seed."""
        of, fresh, rung = confirmed.of, confirmed.fresh, len(self.study.rungs)
        trial = replace(
            of, slot=confirmed.slot, arm=CONFIRM, how=CONFIRM, of=of.slot, fresh=fresh, worker=worker,
            parents=(), same_as=None, results=(), state=COMPLETE, reason="",
        )  # fmt: skip
        designs = {one.slot: one.design for one in self.finished()}
        design = of.design if of.same_as is None else designs[of.same_as]  # of equal ones, the first was trained

        def climb() -> Iterator[Trial]:
            self.tell(rung)
            rate = of.results[-1].rate
            assert rate is not None  # or it would not be on the front
            result = self.runs(rung, (rate,))
            yield _after(trial, result)
            if result.counts is None:
                raise EndedError(DIVERGED, f"with seed {fresh} loss or gradient are not finite.")

        return self._ended(trial, design, lambda place: fresh, climb())

    def _ended(self, trial: Trial, design: str, seeds: Callable[[int], int], climb: Iterator[Trial]) -> Trial:
        """A trial when it has come to its end; `climb` gives it after each step, and may raise EndedError."""
        start, last = time.monotonic(), trial
        self.design, self.slot, self.seeds, self.end = design, trial.slot, seeds, start + self.study.seconds
        try:
            for one in climb:
                last = one
        except EndedError as ended:
            last = replace(last, state=ended.state, reason=ended.reason)
        return replace(last, seconds=time.monotonic() - start)

    def _climb(self, trial: Trial, other: Trial | None) -> Iterator[Trial]:
        """A trial after its latency, where that is asked for, and after each rung that it reaches."""
        study, known = self.study, {result.rung: result for result in other.results} if other is not None else {}
        if "latency" in (*study.objectives, *study.bounds):
            seconds = (other.values or {}).get("latency") if other is not None else None
            latency = {"latency": self.done(LATENCY) if seconds is None else seconds}
            self.check(latency)
            trial = replace(trial, values={**(trial.values or {}), **latency})
            yield trial
        first = 0 if next(trained(study), None) is not None else 1  # the static rung, where there is a model to check
        for rung in range(first, len(study.rungs) + 1):
            self.tell(rung)
            result = known.get(rung) or (self.runs(rung, study.rungs[rung - 1].rates) if rung else self.static())
            trial = _after(trial, result)
            yield trial
            if result.counts is None:
                task, rates = study.rungs[rung - 1].task, study.rungs[rung - 1].rates
                many = "every learning rate" if len(rates) > 1 else f"the learning rate {rates[0]:g}"
                raise EndedError(DIVERGED, f"on '{task}' loss or gradient are not finite with {many}.")
            if rung < len(study.rungs) and not promoted(study, trial, self.finished()):
                return
        self.check(trial.values or {})

    def check(self, values: Mapping[str, float]) -> None:
        """Raises EndedError where values break a bound."""
        reason = broken(self.study, values)
        if reason is not None:
            raise EndedError(BOUND, f"{reason}.")

    def static(self) -> Result:
        """The loss of the first model that is trained, before its first step."""
        start = time.monotonic()
        place, first = next(trained(self.study))
        loss = self.done(STATIC, rung=place, rates=first.rates[:1])
        return Result(0, (-loss,), (0.0,), time.monotonic() - start)

    def runs(self, rung: int, rates: tuple[float, ...]) -> Result:
        """The learning rates of the `best` share a seed, so that nothing but they decides; of a `mean` none do."""
        start, score = time.monotonic(), self.study.rungs[rung - 1].score
        seeds = tuple(self.seeds(place if score == "mean" else 0) for place in range(len(rates)))
        found = self.done(CLIMB, rung=rung, rates=rates, seeds=seeds)
        quality, folders = zip(*found, strict=True)
        return Result(rung, quality, rates[: len(found)], time.monotonic() - start, tuple(filter(None, folders)), score)

    def done(self, kind: str, **given: Any) -> Any:
        """What a job gives. Raises EndedError where it gives nothing."""
        bound = Bound(self.end, self.study.seconds, self.study.gibibytes, self.lost)
        job = Job(kind, self.study, self.design, str(self.out), **{"seeds": (self.seeds(0),), **given})
        outcome = self.nursery.run(job, log_of(self.out, self.slot), bound)
        if outcome.state != COMPLETE:
            raise EndedError(outcome.state, outcome.reason)
        return outcome.value


def _after(trial: Trial, result: Result) -> Trial:
    """A trial with one more result, and its quality where that is not of the static rung."""
    trial = replace(trial, results=(*trial.results, result))
    quality = {"quality": trial.quality} if trial.rung > 0 and trial.quality is not None else {}
    return replace(trial, values={**(trial.values or {}), **quality})
