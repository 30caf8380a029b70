"""The store of a study: an Optuna storage in a SQLite file or on a database server.

Two features are added to Optuna's: SQLite has one writer at a time, and new trials have a worker and a heartbeat at
once.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from threading import Lock
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import event, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.search.process import Identity
from tensornet_attn.search.study import NAME, Study, check_same, decisive
from tensornet_attn.search.trial import Trial, larger, trial_from

WORKER, CLAIM, RUNG, RECORD, STUDY, EXHAUSTED = "worker", "claim", "rung", "trial", "study", "exhausted"
HEARTBEAT = 5  # seconds between heartbeats
STALE = 30  # seconds without a heartbeat after which a worker is considered dead
_PATIENCE = 60  # seconds that SQLite waits for other processes
_TRIES = 5  # if two processes create the same tables at once, one fails and must retry
_BEGIN: ContextVar[str] = ContextVar("begin", default="BEGIN IMMEDIATE")  # the statement that starts a transaction


@contextmanager
def _reading() -> Iterator[None]:
    """Makes SQLite transactions in this context read-only, so that they neither wait nor block."""
    before = _BEGIN.set("BEGIN")
    try:
        yield
    finally:
        _BEGIN.reset(before)


class Storage(_CachedStorage):
    """Optuna's cached storage; new trials have the identity of their worker and a first heartbeat.

    Optuna never fails a trial without a heartbeat, so a worker killed right after `ask` would keep its trial forever.
    """

    def __init__(self, backend: RDBStorage, worker: Identity | None):
        super().__init__(backend)
        self.worker = worker

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        if template_trial is None and self.worker is not None:
            template_trial = create_trial(state=TrialState.RUNNING, user_attrs={WORKER: asdict(self.worker)})
        trial_id = super().create_new_trial(study_id, template_trial)
        self.record_heartbeat(trial_id)
        return trial_id

    @_reading()
    def get_all_trials(self, *arguments: Any, **named: Any) -> list[FrozenTrial]:
        return super().get_all_trials(*arguments, **named)

    @_reading()
    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return super().get_study_user_attrs(study_id)

    @_reading()
    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        return super()._get_stale_trial_ids(study_id)


@dataclass(frozen=True)
class Running:
    """A running trial; `claim` is None until it has a slot. `seconds`: time since its start, by wall clocks."""

    number: int
    worker: Identity | None
    claim: Mapping[str, Any] | None
    rung: int
    seconds: float


@dataclass
class Store:
    """An Optuna study and the meaning of its trials.

    COMPLETE: the trial reached the last rung. PRUNED: the trial ended before, because it was not promoted or failed.
    Both are finished and hold a Trial as JSON. FAIL: ignored; the worker was lost, or no slot was open. A change of
    state is atomic in every database, so each slot is finished exactly once.
    """

    optuna: optuna.Study
    storage: Storage
    shown: str
    trials: dict[int, Trial] = field(default_factory=dict)

    def look(self) -> tuple[list[Trial], list[Running]]:
        """The finished trials by slot, and the running trials by number."""
        by_slot: dict[int, Trial] = {}
        running = []
        for trial in self.optuna.get_trials(deepcopy=False):
            if trial.state in (TrialState.COMPLETE, TrialState.PRUNED) and RECORD in trial.user_attrs:
                if trial.number not in self.trials:
                    self.trials[trial.number] = trial_from(trial.user_attrs[RECORD])
                by_slot.setdefault(self.trials[trial.number].slot, self.trials[trial.number])
            elif trial.state == TrialState.RUNNING:
                running.append(_running(trial))
        return [by_slot[slot] for slot in sorted(by_slot)], running

    def runs(self, number: int) -> bool:
        """Whether a trial is still running, and not marked as lost."""
        return any(active.number == number for active in self.look()[1])

    def fail(self, number: int) -> None:
        """Marks a running trial as lost, which frees its slot; ignores a finished trial."""
        try:
            self.optuna.tell(number, state=TrialState.FAIL, skip_if_finished=True)
        except (UpdateFinishedTrialError, ValueError):
            return  # another process has just finished or failed it

    def fail_stale(self) -> None:
        """Marks the trials of workers without a recent heartbeat as lost."""
        with _quiet():
            optuna.storages.fail_stale_trials(self.optuna)

    @property
    def exhausted(self) -> dict[str, int]:
        """By arm, the first slot for which no design is left."""
        attributes = self.optuna.user_attrs
        return {key.partition("/")[2]: slot for key, slot in attributes.items() if key.startswith(f"{EXHAUSTED}/")}

    def exhaust(self, arm: str, slot: int) -> None:
        self.optuna.set_user_attr(f"{EXHAUSTED}/{arm}", min(slot, self.exhausted.get(arm, slot)))

    def close(self) -> None:
        self.storage.remove_session()
        self.storage._backend.engine.dispose()


def _running(trial: FrozenTrial) -> Running:
    attributes = trial.user_attrs
    worker = Identity(**attributes[WORKER]) if WORKER in attributes else None
    began = trial.datetime_start.timestamp() if trial.datetime_start is not None else 0.0
    rung, seconds = attributes.get(RUNG, 0), max(0.0, time.time() - began)
    return Running(trial.number, worker, attributes.get(CLAIM), rung, seconds)


def open_store(url: str, study: Study, name: str = NAME, worker: Identity | None = None) -> Store:
    """Opens or creates the store at a URL. `worker`: the identity for new trials.

    Raises MissingPartError if a driver is missing, and InputError if the storage is unreachable or has another study.
    """
    where = _shown(url)
    try:
        with reached(where), _quiet():
            storage = _database(url, where, worker)
            optuna_study = _study(storage, study, name)
            stored = optuna_study.user_attrs[STUDY]
    except (NoSuchModuleError, ArgumentError) as error:
        raise InputError(f"the storage '{where}' is not a known URL: give e.g. postgresql://HOST/NAME.") from error
    store = Store(optuna_study, storage, where)
    try:
        check_same(study, stored, f"the storage '{where}'", "choose another --out, or another --name for the study")
    except InputError:
        store.close()
        raise
    return store


def _shown(url: str) -> str:
    """A URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url


def _study(storage: Storage, study: Study, name: str) -> optuna.Study:
    """Opens or creates the study of a name."""
    directions: list[Any] = ["maximize" if larger(objective) else "minimize" for objective in study.objectives]
    sampler = optuna.samplers.RandomSampler(seed=0)  # unused: `evolve` makes the proposals
    optuna_study = optuna.create_study(
        storage=storage, study_name=name, directions=directions, sampler=sampler, load_if_exists=True
    )
    if STUDY not in optuna_study.user_attrs:
        optuna_study.set_user_attr(STUDY, decisive(study))
        optuna_study.set_metric_names(list(study.objectives))
    return optuna_study


def _database(url: str, where: str, worker: Identity | None) -> Storage:
    """The storage at a URL. Raises the errors of SQLAlchemy and Optuna, and MissingPartError if a driver is missing."""
    lite = url.startswith("sqlite")
    options: dict[str, Any] = {"connect_args": {"timeout": _PATIENCE}} if lite else {"pool_pre_ping": True}
    plain = url.replace("{", "{{").replace("}", "}}")  # Optuna formats the URL as a template
    try:
        _patiently(lambda: RDBStorage(plain, {**options, "poolclass": NullPool}))  # keeps no connection if it fails
        backend = _patiently(lambda: RDBStorage(plain, options, heartbeat_interval=HEARTBEAT, grace_period=STALE))
    except ImportError as error:
        raise MissingPartError(
            f"the driver for '{where}' is missing: pip install 'tensornet-attn[postgres]'."
        ) from error
    if lite:
        _one_writer(backend)
    return Storage(backend, worker)


def _patiently(make: Callable[[], RDBStorage]) -> RDBStorage:
    """Creates missing tables, and retries if another process creates them at the same time."""
    for tried in range(1, _TRIES):
        try:
            return make()
        except (SQLAlchemyError, StorageInternalError) as error:
            message = f"{error} {error.__cause__}"
            if not isinstance(error, IntegrityError) and "exist" not in message and "locked" not in message:
                raise
        time.sleep(0.2 * tried)
    return make()


def _one_writer(backend: RDBStorage) -> None:
    """Makes writers lock the SQLite file at the start of a transaction, so that their reads stay valid."""

    @event.listens_for(backend.engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # otherwise the driver begins transactions itself
        connection.execute("PRAGMA journal_mode = WAL")  # readers do not wait for the writer

    @event.listens_for(backend.engine, "begin")
    def _begun(connection: Any) -> None:
        connection.exec_driver_sql(_BEGIN.get())

    backend.engine.dispose()  # closes earlier connections


@contextmanager
def reached(where: str) -> Iterator[None]:
    """Converts the errors of an unreachable storage to InputError."""
    try:
        yield
    except (NoSuchModuleError, ArgumentError):
        raise
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ is not None else error
        reason = " ".join(str(getattr(cause, "orig", None) or cause).split("\n", 1)[0].split()).rstrip(".")
        raise InputError(
            f"the storage '{where}' cannot be reached: {reason}; check the URL, and that the server is running."
        ) from error


_LOCK = Lock()  # warning filters belong to the process, so one thread at a time changes them


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses Optuna's warning that heartbeats are experimental, and its log of new studies."""
    with _LOCK, warnings.catch_warnings():
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            yield
        finally:
            optuna.logging.set_verbosity(before)
