"""A worker: claims a slot, evaluates it, writes down what it found, and again, until nothing is left.

Trials take slots and designs one after the other, in the order of their numbers. A trial chooses when all running ones
of a lower number have chosen. What it sees of them cannot change any more, and those of a higher number wait for it, so
no slot and no design is taken twice, whatever is killed meanwhile.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError

from tensornet_attn.errors import InputError, MissingPartError, TensornetError
from tensornet_attn.search.evolve import Confirmation, Draft, Exhausted, draft
from tensornet_attn.search.process import FUNCTIONS, TRAINING, Bound, LostError, Nursery, identity
from tensornet_attn.search.rank import CONFIRM, confirmations, promoted
from tensornet_attn.search.read import load
from tensornet_attn.search.space import Space, to_text
from tensornet_attn.search.store import CLAIM, RECORD, RUNG, STALE, Running, Store, open_store, reached
from tensornet_attn.search.study import CLIMB, CONFIG, LATENCY, STATIC, Job, Study, log_of, read_study
from tensornet_attn.search.study_file import callable_task, trained
from tensornet_attn.search.trial import BOUND, COMPLETE, DIVERGED, HINTS, Result, Trial, broken, values_of

PAUSE = 0.5  # seconds between looks, where there is nothing to take
HOPELESS = 8  # trials that may fail, all that there are, before the search ends
FINE, WRONG, INTERRUPTED = 0, 1, 130
REST = 0.05  # seconds between two looks at those that choose
LOOK = 10  # rests from one look for workers that are gone to the next
MUTE = 20 * STALE  # seconds after which a trial that has not chosen is lost, even if it never gave a sign of life
Claim = Draft | Confirmation
Note = Callable[[dict[str, object]], None]


def wanted(study: Study, finished: Sequence[Trial], exhausted: Mapping[str, int]) -> dict[int, Confirmation | None]:
    """Every slot that there will be, in order, and what it confirms, None for a proposal; as far as is known.

    An arm that has every design of a small space ends early. Confirmations are known when all proposals are finished.
    """
    by_slot, arms = {trial.slot: trial for trial in finished}, study.arms
    every = range(study.proposals)
    found: dict[int, Confirmation | None] = dict.fromkeys(
        slot for slot in every if slot < exhausted.get(arms[slot % len(arms)], study.proposals)
    )
    if by_slot.keys() >= found.keys():
        found |= {slot: Confirmation(slot, by_slot[of], fresh) for slot, of, fresh in confirmations(study, finished)}
    return found


def still_open(
    study: Study, finished: Sequence[Trial], running: Sequence[Running], exhausted: Mapping[str, int]
) -> dict[int, Confirmation | None]:
    """The wanted slots that nobody has filled or fills."""
    taken = {trial.slot for trial in finished} | {one.claim["slot"] for one in running if one.claim is not None}
    return {slot: of for slot, of in wanted(study, finished, exhausted).items() if slot not in taken}


def complete(study: Study, finished: Sequence[Trial], exhausted: Mapping[str, int]) -> bool:
    """Whether there is nothing left to do."""
    return not still_open(study, finished, (), exhausted)


def free_dead(store: Store) -> None:
    """Marks as lost the trials of workers that are gone: those of this machine at once, others by their silence."""
    for one in store.look()[1]:
        mute = one.claim is None and one.seconds > MUTE
        if mute or (one.worker is not None and one.worker.gone):
            store.fail(one.number)
    store.fail_stale()


def wait(store: Store) -> None:
    """A moment's rest; now and then with a look for workers that are gone."""
    if int(time.monotonic() / REST) % LOOK == 0:
        free_dead(store)
    time.sleep(REST)


def claim(store: Store, number: int, study: Study, space: Space, note: Note) -> Claim | None:
    """What the trial of a number evaluates, written down by `note`; None where nothing is left to take.

    Raises InputError where the space gives nothing.
    """
    while True:
        finished, running = store.look()
        before = [one for one in running if one.number < number]
        if all(one.claim is not None for one in before):
            break
        wait(store)
    chosen = _chosen(store, study, space, finished, before)
    if chosen is not None:
        note(as_data(chosen))
    return chosen


def _chosen(
    store: Store, study: Study, space: Space, finished: Sequence[Trial], running: Sequence[Running]
) -> Claim | None:
    while left := still_open(study, finished, running, store.exhausted):
        slot, confirmation = next(iter(left.items()))
        if confirmation is not None:
            return confirmation
        arm = study.arms[slot % len(study.arms)]
        busy = (one.claim for one in running if one.claim is not None and one.claim["arm"] == arm)
        try:
            return draft(study, space, slot, finished, frozenset(str(one["essence"]) for one in busy))
        except Exhausted:
            if slot < len(study.arms):
                raise  # not one design
            store.exhaust(arm, slot)
    return None


def as_data(chosen: Claim) -> dict[str, object]:
    """What others must know of a claim."""
    if isinstance(chosen, Draft):
        arm, how, essence, path = chosen.arm, chosen.how, chosen.proposal.essence, chosen.proposal.path
    else:
        arm, how, essence, path = CONFIRM, CONFIRM, chosen.of.essence, chosen.of.path
    return {"slot": chosen.slot, "arm": arm, "how": how, "essence": essence, "text": to_text(path)}


def awaited(store: Store, number: int, chosen: Draft) -> Trial | None:
    """The trial of another arm that has a draft's design; waited for, where one of a lower number evaluates it now."""
    essence = chosen.proposal.essence
    while True:
        finished, running = store.look()
        for trial in finished:
            if trial.slot >= 0 and trial.essence == essence and trial.arm != chosen.arm:
                return trial
        claims = (one.claim for one in running if one.number < number and one.claim is not None)
        if not any(one["essence"] == essence and one["arm"] not in (chosen.arm, CONFIRM) for one in claims):
            return None
        wait(store)


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


class NoSlotError(Exception):
    """There was no slot left for a trial."""


@dataclass
class Worker:
    """What one process does for a study."""

    store: Store
    study: Study
    space: Space
    out: Path
    nursery: Nursery = field(default_factory=Nursery)

    def work(self) -> None:
        """Evaluates slots until all are finished. Raises InputError where the space gives nothing, or all fail."""
        while True:
            free_dead(self.store)
            finished, running = self.store.look()
            check_hope(self.study, finished)
            exhausted = self.store.exhausted
            if complete(self.study, finished, exhausted):
                return
            if still_open(self.study, finished, running, exhausted):
                self.attempt()
            else:
                time.sleep(PAUSE)  # others are at work on the rest, and may die

    def attempt(self) -> None:
        """One trial of Optuna. One that was taken for dead meanwhile is given up."""
        try:
            self.store.optuna.optimize(self.objective, n_trials=1, catch=(NoSlotError, LostError))
        except TensornetError:
            raise
        except (UpdateFinishedTrialError, ValueError):
            own = identity()
            if any(one.worker == own for one in self.store.look()[1]):
                raise

    def objective(self, trial: optuna.Trial) -> tuple[float, ...]:
        """Evaluates what is claimed, and gives the values of a trial that has reached the last rung."""
        found = self.evaluated(trial)
        trial.set_user_attr(RECORD, found.as_dict())
        trial.set_user_attr("state", found.state)
        if found.reason:
            trial.set_user_attr("reason", found.reason)
        if found.state != COMPLETE or found.rung < len(self.study.rungs):
            raise optuna.TrialPruned(found.reason or f"not promoted after rung {found.rung}")
        return tuple((found.values or {})[name] for name in self.study.objectives)

    def evaluated(self, trial: optuna.Trial) -> Trial:
        """The finished trial of what this one claims. Raises NoSlotError where nothing is left."""
        store, number, name = self.store, trial.number, identity().name
        chosen = claim(store, number, self.study, self.space, lambda made: trial.set_user_attr(CLAIM, made))
        if chosen is None:
            raise NoSlotError
        own = Evaluation(
            self.study,
            self.out,
            self.nursery,
            finished=lambda: store.look()[0],
            tell=lambda rung: trial.set_user_attr(RUNG, rung),
            lost=lambda: not store.runs(number),
        )
        if isinstance(chosen, Confirmation):
            return own.confirmation(chosen, name)
        return own.proposal(chosen, awaited(store, number, chosen), name)


def check_hope(study: Study, finished: Sequence[Trial]) -> None:
    """Raises InputError where the first trials have all failed: nothing says that the next ones will not."""
    proposals = [trial for trial in finished if trial.slot >= 0]
    if len(proposals) < min(HOPELESS, study.proposals) or any(trial.state == COMPLETE for trial in proposals):
        return
    reason, count = Counter(trial.reason for trial in proposals).most_common(1)[0]
    state = next(trial.state for trial in proposals if trial.reason == reason)
    raise InputError(
        f"all {len(proposals)} trials failed, {count} of them so: {reason.rstrip('.')}; {HINTS[state]}, and begin "
        "again in another --out."
    )


def serve(out: str, storage: str, name: str) -> int:
    """Works for the study of a folder until it is finished, or standard input ends; the exit status."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent tells us
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    try:
        study = read_study(Path(out) / CONFIG)
        store = open_store(storage, study, name, identity())
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        functions = (rung.task.partition(":")[0] for rung in study.rungs if callable_task(rung.task))
        modules = (*(TRAINING if next(trained(study), None) is not None else FUNCTIONS), *functions)
        with reached(store.shown):
            Worker(store, study, load(study.space), Path(out), Nursery(modules)).work()
    except KeyboardInterrupt:
        return INTERRUPTED
    except TensornetError as error:
        sys.stdout.write(json.dumps({"error": str(error), "missing": isinstance(error, MissingPartError)}) + "\n")
        sys.stdout.flush()
        return WRONG
    return FINE


def _stop(_number: int, _frame: Any) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_the_command() -> None:
    """Ends this process when nobody holds the other end of its standard input any more."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
