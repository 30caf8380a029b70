"""A worker: takes a slot, evaluates it, writes down what it found, and again, until nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError

from tensornet_attn.errors import InputError, MissingPartError, TensornetError
from tensornet_attn.search.claim import Confirmation, awaited, claim, complete, free_dead, still_open
from tensornet_attn.search.evaluate import Evaluation
from tensornet_attn.search.process import FUNCTIONS, TRAINING, LostError, Nursery, identity
from tensornet_attn.search.read import load
from tensornet_attn.search.space import Space
from tensornet_attn.search.store import CLAIM, RECORD, RUNG, Store, open_store, reached
from tensornet_attn.search.study import CONFIG, Study, read_study
from tensornet_attn.search.study_file import callable_task, trained
from tensornet_attn.search.trial import BOUND, COMPLETE, DIVERGED, FAILED, LATE, MEMORY, Trial

PAUSE = 0.5  # seconds between looks, where there is nothing to take
HOPELESS = 8  # trials that may fail, all that there are, before the search ends
FINE, WRONG, INTERRUPTED = 0, 1, 130


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


HINTS = {
    FAILED: "mend that",
    DIVERGED: "give lower learning rates",
    MEMORY: "raise 'gibibytes', or let smaller designs vary",
    LATE: "raise 'seconds', or train for fewer steps",
    BOUND: "widen that bound",
}


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
