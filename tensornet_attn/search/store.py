"""The store of a study: Optuna's, in one SQLite file or a database server; opened, checked, read and written.

Two things are ours: SQLite has one writer at a time, and every new trial has its worker's name and a sign of life.
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
HEARTBEAT = 5  # seconds between signs of life
STALE = 30  # seconds without one, after which a worker is taken for dead
_PATIENCE = 60  # seconds that SQLite waits for other processes
_TRIES = 5  # two processes that make the same tables at once: one of them fails, and finds them next time
_BEGIN: ContextVar[str] = ContextVar("begin", default="BEGIN IMMEDIATE")  # how a transaction of SQLite starts


@contextmanager
def _reading() -> Iterator[None]:
    """Transactions of SQLite in this context only read: they wait for nobody, and nobody for them."""
    before = _BEGIN.set("BEGIN")
    try:
        yield
    finally:
        _BEGIN.reset(before)


class Storage(_CachedStorage):
    """Optuna's cached storage, in which a trial has its worker's name from its first moment, and a sign of life.

    Optuna takes no trial for dead that has never given one, so a worker that is killed right after `ask` would keep its
    trial for ever.
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
    def get_all_trials(self, *given: Any, **named: Any) -> list[FrozenTrial]:
        return super().get_all_trials(*given, **named)

    @_reading()
    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        return super().get_study_user_attrs(study_id)

    @_reading()
    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        return super()._get_stale_trial_ids(study_id)


@dataclass(frozen=True)
class Running:
    """A trial that somebody says is being evaluated; `claim` is None as long as it has no slot.

    `seconds`: since it began, by the clocks of both machines.
    """

    number: int
    worker: Identity | None
    claim: Mapping[str, Any] | None
    rung: int
    seconds: float


@dataclass
class Store:
    """A study of Optuna, and what its trials mean.

    A trial of Optuna that is COMPLETE has reached the last rung; one that is PRUNED has ended before: it was not
    promoted, or it failed. Both are finished, and hold a Trial as JSON. One that is FAIL counts for nothing: its
    worker was lost, or there was no slot for it. Only such a change of state is one step in every database, so each
    slot is finished once.
    """

    optuna: optuna.Study
    storage: Storage
    shown: str
    known: dict[int, Trial] = field(default_factory=dict)

    def look(self) -> tuple[list[Trial], list[Running]]:
        """The finished trials by slot, and those that are running by number."""
        found: dict[int, Trial] = {}
        running = []
        for one in self.optuna.get_trials(deepcopy=False):
            if one.state in (TrialState.COMPLETE, TrialState.PRUNED) and RECORD in one.user_attrs:
                if one.number not in self.known:
                    self.known[one.number] = trial_from(one.user_attrs[RECORD])
                found.setdefault(self.known[one.number].slot, self.known[one.number])
            elif one.state == TrialState.RUNNING:
                running.append(_running(one))
        return [found[slot] for slot in sorted(found)], running

    def runs(self, number: int) -> bool:
        """Whether a trial is still running; not, where its worker was taken for dead."""
        return any(one.number == number for one in self.look()[1])

    def fail(self, number: int) -> None:
        """Marks a running trial as lost: its slot is free. Nothing is done to one that has just ended."""
        try:
            self.optuna.tell(number, state=TrialState.FAIL, skip_if_finished=True)
        except (UpdateFinishedTrialError, ValueError):
            return  # somebody else has told it between our look and our word

    def fail_stale(self) -> None:
        """Marks as lost the trials of workers that have given no sign of life."""
        with _quiet():
            optuna.storages.fail_stale_trials(self.optuna)

    @property
    def exhausted(self) -> dict[str, int]:
        """By arm, the slot from which on there are no designs left."""
        attributes = self.optuna.user_attrs
        return {key.partition("/")[2]: slot for key, slot in attributes.items() if key.startswith(f"{EXHAUSTED}/")}

    def exhaust(self, arm: str, slot: int) -> None:
        self.optuna.set_user_attr(f"{EXHAUSTED}/{arm}", min(slot, self.exhausted.get(arm, slot)))

    def close(self) -> None:
        """Lets go of all connections."""
        self.storage.remove_session()
        self.storage._backend.engine.dispose()


def _running(one: FrozenTrial) -> Running:
    attributes = one.user_attrs
    worker = Identity(**attributes[WORKER]) if WORKER in attributes else None
    began = one.datetime_start.timestamp() if one.datetime_start is not None else 0.0
    rung, seconds = attributes.get(RUNG, 0), max(0.0, time.time() - began)
    return Running(one.number, worker, attributes.get(CLAIM), rung, seconds)


def open_store(url: str, study: Study, name: str = NAME, worker: Identity | None = None) -> Store:
    """The store at a URL, made where there is none. `worker`: who begins trials with it.

    Raises MissingPartError where a driver is missing, InputError where it cannot be reached or holds another study.
    """
    where = _shown(url)
    try:
        with reached(where), _quiet():
            storage = _database(url, where, worker)
            own = _study(storage, study, name)
            there = own.user_attrs[STUDY]
    except (NoSuchModuleError, ArgumentError) as error:
        raise InputError(f"the storage '{where}' is of no kind that is known: e.g. postgresql://HOST/NAME.") from error
    store = Store(own, storage, where)
    try:
        check_same(study, there, f"the storage '{where}'", "choose another --out, or another --name for the study")
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
    """The study of a name, made where there is none."""
    ways: list[Any] = ["maximize" if larger(one) else "minimize" for one in study.objectives]
    sampler = optuna.samplers.RandomSampler(seed=0)  # of nothing: proposals are ours
    own = optuna.create_study(storage=storage, study_name=name, directions=ways, sampler=sampler, load_if_exists=True)
    if STUDY not in own.user_attrs:
        own.set_user_attr(STUDY, decisive(study))
        own.set_metric_names(list(study.objectives))
    return own


def _database(url: str, where: str, worker: Identity | None) -> Storage:
    """The storage at a URL. Raises what SQLAlchemy and Optuna raise, and MissingPartError where a driver is missing."""
    lite = url.startswith("sqlite")
    options: dict[str, Any] = {"connect_args": {"timeout": _PATIENCE}} if lite else {"pool_pre_ping": True}
    plain = url.replace("{", "{{").replace("}", "}}")  # Optuna takes a URL for a template
    try:
        _patiently(lambda: RDBStorage(plain, {**options, "poolclass": NullPool}))  # closed after each use, if it fails
        backend = _patiently(lambda: RDBStorage(plain, options, heartbeat_interval=HEARTBEAT, grace_period=STALE))
    except ImportError as error:
        raise MissingPartError(
            f"the driver for '{where}' is missing: pip install 'tensornet-attn[postgres]'."
        ) from error
    if lite:
        _one_writer(backend)
    return Storage(backend, worker)


def _patiently(make: Callable[[], RDBStorage]) -> RDBStorage:
    """Makes the tables that are not there, again where another process makes them too."""
    for tried in range(1, _TRIES):
        try:
            return make()
        except (SQLAlchemyError, StorageInternalError) as error:
            told = f"{error} {error.__cause__}"
            if not isinstance(error, IntegrityError) and "exist" not in told and "locked" not in told:
                raise
        time.sleep(0.2 * tried)
    return make()


def _one_writer(backend: RDBStorage) -> None:
    """Who writes to SQLite has the file from the beginning of the transaction: what it has read is still so then."""

    @event.listens_for(backend.engine, "connect")
    def _connected(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # or the driver would begin transactions of its own
        connection.execute("PRAGMA journal_mode = WAL")  # readers need not wait for the writer

    @event.listens_for(backend.engine, "begin")
    def _begun(connection: Any) -> None:
        connection.exec_driver_sql(_BEGIN.get())

    backend.engine.dispose()  # connections from before


@contextmanager
def reached(where: str) -> Iterator[None]:
    """Raises InputError, one sentence, where the storage does not answer."""
    try:
        yield
    except (NoSuchModuleError, ArgumentError):
        raise
    except (SQLAlchemyError, StorageInternalError) as error:
        cause = error.__cause__ if isinstance(error, StorageInternalError) and error.__cause__ is not None else error
        told = " ".join(str(getattr(cause, "orig", None) or cause).split("\n", 1)[0].split()).rstrip(".")
        raise InputError(
            f"the storage '{where}' cannot be reached: {told}; check the address, and whether it is running."
        ) from error


_LOCK = Lock()  # filters of warnings belong to the process: one thread at a time changes them


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna says nothing about heartbeats being experimental, nor that a study was made."""
    with _LOCK, warnings.catch_warnings():
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            yield
        finally:
            optuna.logging.set_verbosity(before)
