"""Stores and trials for tests of the engine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import optuna

from tensornet_attn.search.evolve import Draft
from tensornet_attn.search.process import Identity, identity
from tensornet_attn.search.read import load
from tensornet_attn.search.store import CLAIM, RECORD, Store, open_store
from tensornet_attn.search.study import NAME, Study
from tensornet_attn.search.trial import Trial
from tensornet_attn.search.worker import Claim, claim
from tests.search import made


def opened(folder: Path, study: Study | None = None, worker: Identity | None = None, name: str = NAME) -> Store:
    """The store in a folder."""
    return open_store(f"sqlite:///{folder}/study.db", study or made.study(), name, worker or identity())


def asked(store: Store) -> optuna.Trial:
    """A trial that has begun, and that nobody gives signs of life for any more."""
    study = store.optuna  # its ask() would warn about heartbeats, and filters of warnings are not for threads
    return optuna.Trial(study, study._storage.create_new_trial(study._study_id))


def finish(store: Store, number: int, record: Trial) -> None:
    """Ends a trial as one that has reached the last rung."""
    trial = store.optuna.trials[number]
    store.optuna._storage.set_trial_user_attr(trial._trial_id, RECORD, record.as_dict())
    store.optuna.tell(number, (0.5, 1.0))


def taken(store: Store, study: Study) -> Claim | None:
    """What the next trial takes."""
    trial = asked(store)
    return claim(store, trial.number, study, load(study.space), lambda made: trial.set_user_attr(CLAIM, made))


def taken_at_once(open_store: Callable[[], Store], study: Study) -> list[int]:
    """The slots that six workers take at once, each with a store of its own."""

    def one(_: int) -> Claim | None:
        with closing(open_store()) as store:
            return taken(store, study)

    with ThreadPoolExecutor(6) as pool:
        return sorted(found.slot for found in pool.map(one, range(6)) if isinstance(found, Draft))


def dead() -> Identity:
    """A process of this machine that has ended."""
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True, check=True
    )
    return replace(identity(), pid=int(done.stdout))
