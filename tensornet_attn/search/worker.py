"""Workers: each claims a slot, evaluates it, and records the result, until all slots are finished.

Trials claim slots and designs in the order of their numbers: a trial chooses after all running trials with a lower
number have chosen, and before all trials with a higher number. So no slot and no design is claimed twice, even if
workers are killed.
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
from tensornet_attn.search.study_file import trained
from tensornet_attn.search.trial import BOUND, COMPLETE, DIVERGED, HINTS, RungResult, Trial, broken, values_of

PAUSE = 0.5  # seconds between polls while there is no open slot
HOPELESS = 8  # the search ends if the first trials, this many, all fail
FINE, WRONG, INTERRUPTED = 0, 1, 130
REST = 0.05  # seconds between polls while earlier trials choose
LOOK = 10  # polls between two checks for dead workers
MUTE = 20 * STALE  # seconds after which a trial without a claim is lost, even without a heartbeat
Claim = Draft | Confirmation
Note = Callable[[dict[str, object]], None]


def wanted(study: Study, finished: Sequence[Trial], exhausted: Mapping[str, int]) -> dict[int, Confirmation | None]:
    """All slots of the study, in order; the value is the Confirmation, or None for a proposal.

    An arm that has evaluated every design of a small space ends early. Confirmations are added when all proposals are
    finished.
    """
    by_slot, arms = {trial.slot: trial for trial in finished}, study.arms
    proposals = range(study.proposals)
    slots: dict[int, Confirmation | None] = dict.fromkeys(
        slot for slot in proposals if slot < exhausted.get(arms[slot % len(arms)], study.proposals)
    )
    if by_slot.keys() >= slots.keys():
        slots |= {slot: Confirmation(slot, by_slot[of], fresh) for slot, of, fresh in confirmations(study, finished)}
    return slots


def still_open(
    study: Study, finished: Sequence[Trial], running: Sequence[Running], exhausted: Mapping[str, int]
) -> dict[int, Confirmation | None]:
    """The wanted slots that are neither finished nor claimed."""
    taken = {trial.slot for trial in finished} | {
        active.claim["slot"] for active in running if active.claim is not None
    }
    return {slot: of for slot, of in wanted(study, finished, exhausted).items() if slot not in taken}


def complete(study: Study, finished: Sequence[Trial], exhausted: Mapping[str, int]) -> bool:
    return not still_open(study, finished, (), exhausted)


def free_dead(store: Store) -> None:
    """Marks the trials of dead workers as lost: at once on this machine, after missing heartbeats on others."""
    for active in store.look()[1]:
        mute = active.claim is None and active.seconds > MUTE
        if mute or (active.worker is not None and active.worker.gone):
            store.fail(active.number)
    store.fail_stale()


def wait(store: Store) -> None:
    """Sleeps for a moment, and sometimes frees the trials of dead workers."""
    if int(time.monotonic() / REST) % LOOK == 0:
        free_dead(store)
    time.sleep(REST)


def claim(store: Store, number: int, study: Study, space: Space, note: Note) -> Claim | None:
    """Claims a slot for trial `number` and records it with `note`; returns None if no slot is open.

    Raises InputError if the space has no valid design.
    """
    while True:
        finished, running = store.look()
        before = [active for active in running if active.number < number]
        if all(active.claim is not None for active in before):
            break
        wait(store)
    chosen = _next_claim(store, study, space, finished, before)
    if chosen is not None:
        note(as_data(chosen))
    return chosen


def _next_claim(
    store: Store, study: Study, space: Space, finished: Sequence[Trial], running: Sequence[Running]
) -> Claim | None:
    while open_slots := still_open(study, finished, running, store.exhausted):
        slot, confirmation = next(iter(open_slots.items()))
        if confirmation is not None:
            return confirmation
        arm = study.arms[slot % len(study.arms)]
        busy = (active.claim for active in running if active.claim is not None and active.claim["arm"] == arm)
        try:
            return draft(study, space, slot, finished, frozenset(str(busy_claim["essence"]) for busy_claim in busy))
        except Exhausted:
            if slot < len(study.arms):
                raise  # the space has no design at all
            store.exhaust(arm, slot)
    return None


def as_data(chosen: Claim) -> dict[str, object]:
    """A claim as data for other workers."""
    if isinstance(chosen, Draft):
        arm, how, essence, path = chosen.arm, chosen.how, chosen.proposal.essence, chosen.proposal.path
    else:
        arm, how, essence, path = CONFIRM, CONFIRM, chosen.of.essence, chosen.of.path
    return {"slot": chosen.slot, "arm": arm, "how": how, "essence": essence, "text": to_text(path)}


def awaited(store: Store, number: int, chosen: Draft) -> Trial | None:
    """The trial of another arm with the same design, or None. Waits for such a trial with a lower number to finish."""
    essence = chosen.proposal.essence
    while True:
        finished, running = store.look()
        for trial in finished:
            if trial.slot >= 0 and trial.essence == essence and trial.arm != chosen.arm:
                return trial
        claims = (active.claim for active in running if active.number < number and active.claim is not None)
        if not any(
            other_claim["essence"] == essence and other_claim["arm"] not in (chosen.arm, CONFIRM)
            for other_claim in claims
        ):
            return None
        wait(store)


class EndedError(Exception):
    """A trial ended early; it has the state and the reason."""

    def __init__(self, state: str, reason: str):
        super().__init__(reason)
        self.state, self.reason = state, reason


@dataclass
class Evaluation:
    """The evaluation of one trial. `finished` returns the finished trials; `tell` is called with each rung.

    `lost` returns whether the trial was marked as lost. `seeds` returns the seed of a learning rate by its index.
    """

    study: Study
    out: Path
    nursery: Nursery
    finished: Callable[[], Sequence[Trial]]
    tell: Callable[[int], None] = lambda rung: None
    lost: Callable[[], bool] = lambda: False
    design: str = ""
    slot: int = 0
    seeds: Callable[[int], int] = lambda index: 0
    end: float = inf

    def proposal(self, draft: Draft, twin: Trial | None, worker: str = "") -> Trial:
        """Evaluates a draft and returns its trial; reuses the results of `twin`, a trial of the same design."""
        proposal = draft.proposal
        trial = Trial(
            draft.slot, draft.arm, draft.how, proposal.path, proposal.hash, proposal.essence,
            proposal.design.to_yaml(), proposal.price,
            values=values_of(proposal.price, None), parents=draft.parents, worker=worker,
        )  # fmt: skip
        design = trial.design
        if twin is not None:
            trial, design = replace(trial, same_as=twin.slot), twin.design
            if twin.state != COMPLETE:
                copied = {name: getattr(twin, name) for name in ("results", "values", "state", "reason")}
                return replace(trial, **copied)
        return self._ended(trial, design, partial(self.study.seed_of, proposal.essence), self._climb(trial, twin))

    def confirmation(self, confirmed: Confirmation, worker: str = "") -> Trial:
        """Evaluates a confirmation: the last rung with the best learning rate and a fresh seed."""
        of, fresh, rung = confirmed.of, confirmed.fresh, len(self.study.rungs)
        trial = replace(
            of, slot=confirmed.slot, arm=CONFIRM, how=CONFIRM, of=of.slot, fresh=fresh, worker=worker,
            parents=(), same_as=None, results=(), state=COMPLETE, reason="",
        )  # fmt: skip
        designs = {earlier.slot: earlier.design for earlier in self.finished()}
        design = of.design if of.same_as is None else designs[of.same_as]  # the one of equal designs that was trained

        def climb() -> Iterator[Trial]:
            self.tell(rung)
            rate = of.results[-1].rate
            assert rate is not None  # finalists have a quality
            result = self.runs(rung, (rate,))
            yield _with_result(trial, result)
            if result.counts is None:
                raise EndedError(DIVERGED, f"loss or gradient are not finite with seed {fresh}.")

        return self._ended(trial, design, lambda index: fresh, climb())

    def _ended(self, trial: Trial, design: str, seeds: Callable[[int], int], climb: Iterator[Trial]) -> Trial:
        """Runs `climb`, which yields the trial after each step, and returns the final trial."""
        start, last = time.monotonic(), trial
        self.design, self.slot, self.seeds, self.end = design, trial.slot, seeds, start + self.study.seconds
        try:
            for updated in climb:
                last = updated
        except EndedError as ended:
            last = replace(last, state=ended.state, reason=ended.reason)
        return replace(last, seconds=time.monotonic() - start)

    def _climb(self, trial: Trial, twin: Trial | None) -> Iterator[Trial]:
        """Yields the trial after the latency measurement, if the study needs it, and after each rung."""
        study, reusable = self.study, {result.rung: result for result in twin.results} if twin is not None else {}
        if "latency" in (*study.objectives, *study.bounds):
            seconds = (twin.values or {}).get("latency") if twin is not None else None
            latency = {"latency": self.done(LATENCY) if seconds is None else seconds}
            self.check(latency)
            trial = replace(trial, values={**(trial.values or {}), **latency})
            yield trial
        first = 0 if next(trained(study), None) is not None else 1  # the static check needs a model
        for rung in range(first, len(study.rungs) + 1):
            self.tell(rung)
            result = reusable.get(rung) or (self.runs(rung, study.rungs[rung - 1].rates) if rung else self.static())
            trial = _with_result(trial, result)
            yield trial
            if result.counts is None:
                task, rates = study.rungs[rung - 1].task, study.rungs[rung - 1].rates
                rates_text = "every learning rate" if len(rates) > 1 else f"the learning rate {rates[0]:g}"
                raise EndedError(DIVERGED, f"loss or gradient are not finite on '{task}' with {rates_text}.")
            if rung < len(study.rungs) and not promoted(study, trial, self.finished()):
                return
        self.check(trial.values or {})

    def check(self, values: Mapping[str, float]) -> None:
        """Raises EndedError if values violate a bound."""
        reason = broken(self.study, values)
        if reason is not None:
            raise EndedError(BOUND, f"{reason}.")

    def static(self) -> RungResult:
        """The static check: the loss of the first rung's model before its first step."""
        start = time.monotonic()
        rung, first = next(trained(self.study))
        loss = self.done(STATIC, rung=rung, rates=first.rates[:1])
        return RungResult(0, (-loss,), (0.0,), time.monotonic() - start)

    def runs(self, rung: int, rates: tuple[float, ...]) -> RungResult:
        """Trains with each learning rate: with one seed for the score `best`, with different seeds for `mean`."""
        start, score = time.monotonic(), self.study.rungs[rung - 1].score
        seeds = tuple(self.seeds(index if score == "mean" else 0) for index in range(len(rates)))
        outcomes = self.done(CLIMB, rung=rung, rates=rates, seeds=seeds)
        quality, folders = zip(*outcomes, strict=True)
        return RungResult(
            rung, quality, rates[: len(outcomes)], time.monotonic() - start, tuple(filter(None, folders)), score
        )

    def done(self, kind: str, **fields: Any) -> Any:
        """Runs a job and returns its value. Raises EndedError if it fails."""
        bound = Bound(self.end, self.study.seconds, self.study.gibibytes, self.lost)
        job = Job(kind, self.study, self.design, str(self.out), **{"seeds": (self.seeds(0),), **fields})
        outcome = self.nursery.run(job, log_of(self.out, self.slot), bound)
        if outcome.state != COMPLETE:
            raise EndedError(outcome.state, outcome.reason)
        return outcome.value


def _with_result(trial: Trial, result: RungResult) -> Trial:
    """The trial with another result, and with its quality above the static check."""
    trial = replace(trial, results=(*trial.results, result))
    quality = {"quality": trial.quality} if trial.rung > 0 and trial.quality is not None else {}
    return replace(trial, values={**(trial.values or {}), **quality})


class NoSlotError(Exception):
    """No slot is open for a trial."""


@dataclass
class Worker:
    """One worker process of a study."""

    store: Store
    study: Study
    space: Space
    out: Path
    nursery: Nursery = field(default_factory=Nursery)

    def work(self) -> None:
        """Evaluates slots until all are finished. Raises InputError if the space is empty or all trials fail."""
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
                time.sleep(PAUSE)  # other workers have claimed the rest, and may die

    def attempt(self) -> None:
        """Runs one trial of Optuna; abandons it if it was marked as lost meanwhile."""
        try:
            self.store.optuna.optimize(self.objective, n_trials=1, catch=(NoSlotError, LostError))
        except TensornetError:
            raise
        except (UpdateFinishedTrialError, ValueError):
            worker = identity()
            if any(active.worker == worker for active in self.store.look()[1]):
                raise

    def objective(self, trial: optuna.Trial) -> tuple[float, ...]:
        """Evaluates a claim and returns its objectives; raises TrialPruned if it did not reach the last rung."""
        finished_trial = self.evaluated(trial)
        trial.set_user_attr(RECORD, finished_trial.as_dict())
        trial.set_user_attr("state", finished_trial.state)
        if finished_trial.reason:
            trial.set_user_attr("reason", finished_trial.reason)
        if finished_trial.state != COMPLETE or finished_trial.rung < len(self.study.rungs):
            raise optuna.TrialPruned(finished_trial.reason or f"not promoted after rung {finished_trial.rung}")
        return tuple((finished_trial.values or {})[name] for name in self.study.objectives)

    def evaluated(self, trial: optuna.Trial) -> Trial:
        """Claims a slot and returns its finished trial. Raises NoSlotError if no slot is open."""
        store, number, name = self.store, trial.number, identity().name
        chosen = claim(store, number, self.study, self.space, lambda claimed: trial.set_user_attr(CLAIM, claimed))
        if chosen is None:
            raise NoSlotError
        evaluation = Evaluation(
            self.study,
            self.out,
            self.nursery,
            finished=lambda: store.look()[0],
            tell=lambda rung: trial.set_user_attr(RUNG, rung),
            lost=lambda: not store.runs(number),
        )
        if isinstance(chosen, Confirmation):
            return evaluation.confirmation(chosen, name)
        return evaluation.proposal(chosen, awaited(store, number, chosen), name)


def check_hope(study: Study, finished: Sequence[Trial]) -> None:
    """Raises InputError if the first trials have all failed."""
    proposals = [trial for trial in finished if trial.slot >= 0]
    if len(proposals) < min(HOPELESS, study.proposals) or any(trial.state == COMPLETE for trial in proposals):
        return
    reason, count = Counter(trial.reason for trial in proposals).most_common(1)[0]
    state = next(trial.state for trial in proposals if trial.reason == reason)
    raise InputError(
        f"all {len(proposals)} trials failed, {count} with this reason: {reason.rstrip('.')}; {HINTS[state]}, and "
        "restart with another --out."
    )


def serve(out: str, storage: str, name: str) -> int:
    """Works on the study of a folder until it is finished or standard input is closed; returns the exit status."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal; the parent sends SIGTERM
    threading.Thread(target=_end_with_the_command, daemon=True).start()
    try:
        study = read_study(Path(out) / CONFIG)
        store = open_store(storage, study, name, identity())
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        named = (rung.task.partition(":")[0] for rung in study.rungs if ":" in rung.task)
        modules = (*(TRAINING if next(trained(study), None) is not None else FUNCTIONS), *named)
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
    """Ends this process when its standard input is closed."""
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
