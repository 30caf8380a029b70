"""From a claim to a finished trial: rung after rung, as long as it is promoted, within bounds, and whole."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from tensornet_attn.search.claim import Confirmation
from tensornet_attn.search.evolve import Draft
from tensornet_attn.search.job import CLIMB, LATENCY, STATIC, Job
from tensornet_attn.search.process import Bound, Nursery
from tensornet_attn.search.rank import promoted
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
    """One trial on its way. `finished`: gives the trials that are finished by now; `tell`: hears of each rung."""

    study: Study
    out: Path
    nursery: Nursery
    finished: Callable[[], Sequence[Trial]]
    tell: Callable[[int], None] = lambda rung: None
    lost: Callable[[], bool] = lambda: False
    design: str = ""
    slot: int = 0
    seeds: Callable[[int], int] = lambda place: 0
    end: float = field(default_factory=lambda: float("inf"))

    def proposal(self, draft: Draft, other: Trial | None, worker: str = "") -> Trial:
        """The finished trial of a draft; what `other`, a trial of the same design, has measured is taken over."""
        start = time.monotonic()
        made = draft.proposal
        own = made.design.to_yaml()
        trial = Trial(
            draft.slot, draft.arm, draft.how, made.path, made.hash, made.essence, own, made.price,
            values=values_of(made.price, None), parents=draft.parents, worker=worker,
        )  # fmt: skip
        if other is not None:
            trial = replace(trial, same_as=other.slot)
            if other.state != COMPLETE:
                found = replace(trial, results=other.results, values=other.values)
                return replace(found, state=other.state, reason=other.reason)
        self.begin(other.design if other is not None else own, draft.slot, partial(self.study.seed_of, made.essence))
        trial = self.climbed(trial, other)
        return replace(trial, seconds=time.monotonic() - start)

    def begin(self, design: str, slot: int, seeds: Callable[[int], int]) -> None:
        """`seeds`: of the learning rates, by their place."""
        self.design, self.slot, self.seeds = design, slot, seeds
        self.end = time.monotonic() + self.study.seconds

    def climbed(self, trial: Trial, other: Trial | None) -> Trial:
        """The trial after all rungs that it reaches."""
        known = {result.rung: result for result in other.results} if other is not None else {}
        try:
            trial = self.timed(trial, other)
            for rung in self.rungs():
                self.tell(rung)
                result = known.get(rung) or self.result(rung)
                trial = replace(trial, results=(*trial.results, result))
                trial = replace(trial, values={**(trial.values or {}), **_quality(trial)})
                if result.counts is None:
                    raise EndedError(DIVERGED, self.not_finite(rung))
                if rung < len(self.study.rungs) and not promoted(self.study, trial, self.finished()):
                    return trial
            self.check(trial)
        except EndedError as ended:
            return replace(trial, state=ended.state, reason=ended.reason)
        return trial

    def rungs(self) -> range:
        """From the static one on, where there is a model to check."""
        first = 0 if next(trained(self.study), None) is not None else 1
        return range(first, len(self.study.rungs) + 1)

    def timed(self, trial: Trial, other: Trial | None) -> Trial:
        """The trial with its latency, where that is asked for. Raises EndedError where it is beyond its bound."""
        if "latency" not in (*self.study.objectives, *self.study.bounds):
            return trial
        known = (other.values or {}).get("latency") if other is not None else None
        seconds = known if known is not None else self.done(LATENCY)
        trial = replace(trial, values={**(trial.values or {}), "latency": seconds})
        self.check(replace(trial, values={"latency": seconds}))
        return trial

    def check(self, trial: Trial) -> None:
        """Raises EndedError where the values of a trial break a bound."""
        reason = broken(self.study, trial.values or {})
        if reason is not None:
            raise EndedError(BOUND, f"{reason}.")

    def result(self, rung: int) -> Result:
        start = time.monotonic()
        if rung == 0:
            place, first = next(trained(self.study))
            loss = self.done(STATIC, rung=place, rates=first.rates[:1])
            return Result(0, (-loss,), (0.0,), time.monotonic() - start)
        rates = self.study.rungs[rung - 1].rates
        return self.runs(rung, rates)

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

    def not_finite(self, rung: int) -> str:
        task, rates = self.study.rungs[rung - 1].task, self.study.rungs[rung - 1].rates
        many = "every learning rate" if len(rates) > 1 else f"the learning rate {rates[0]:g}"
        return f"on '{task}' loss or gradient are not finite with {many}."

    def confirmation(self, of: Confirmation, worker: str = "") -> Trial:
        """The finished trial of a confirmation: the last rung at the learning rate that was best, with a fresh seed."""
        start = time.monotonic()
        self.begin(self.trained_design(of.of), of.slot, lambda place: of.fresh)
        own: dict[str, Any] = {"slot": of.slot, "arm": "confirm", "how": "confirm", "of": of.of.slot, "fresh": of.fresh}
        own |= {"parents": (), "same_as": None, "results": (), "state": COMPLETE, "reason": "", "worker": worker}
        trial = replace(of.of, **own)
        rung = len(self.study.rungs)
        self.tell(rung)
        try:
            rate = of.of.results[-1].rate
            assert rate is not None  # or it would not be on the front
            trial = replace(trial, results=(self.runs(rung, (rate,)),))
            trial = replace(trial, values={**(trial.values or {}), **_quality(trial)})
            if trial.results[-1].counts is None:
                raise EndedError(DIVERGED, f"with seed {of.fresh} loss or gradient are not finite.")
        except EndedError as ended:
            trial = replace(trial, state=ended.state, reason=ended.reason)
        return replace(trial, seconds=time.monotonic() - start)

    def trained_design(self, trial: Trial) -> str:
        """The text that was trained: of equal designs, that of the first one."""
        found = {one.slot: one.design for one in self.finished()}
        return trial.design if trial.same_as is None else found[trial.same_as]


def _quality(trial: Trial) -> Mapping[str, float]:
    """The quality of a trial on its highest rung, but for the static one, where it has one."""
    return {"quality": trial.quality} if trial.rung > 0 and trial.quality is not None else {}
