"""Optuna's storage as a study needs it: one writer at a time in SQLite, and a worker's name on every new trial."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from optuna.exceptions import StorageInternalError
from optuna.storages import RDBStorage
from optuna.storages._cached_storage import _CachedStorage
from optuna.trial import FrozenTrial, TrialState, create_trial
from sqlalchemy import event, make_url
from sqlalchemy.exc import ArgumentError, IntegrityError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from tensornet_attn.errors import MissingPartError
from tensornet_attn.search.process import Identity

_TRIES = 5  # two processes that make the same tables at once: one of them fails, and finds them next time


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
            template_trial = create_trial(state=TrialState.RUNNING, user_attrs={"worker": self.worker.as_dict()})
        trial_id = super().create_new_trial(study_id, template_trial)
        self.record_heartbeat(trial_id)
        return trial_id

    def get_all_trials(self, *given: Any, **named: Any) -> list[FrozenTrial]:
        with reading():
            return super().get_all_trials(*given, **named)

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        with reading():
            return super().get_study_user_attrs(study_id)

    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        with reading():
            return super()._get_stale_trial_ids(study_id)

    def close(self) -> None:
        """Lets go of all connections."""
        self.remove_session()
        self._backend.engine.dispose()


_BEGIN: ContextVar[str] = ContextVar("begin", default="BEGIN IMMEDIATE")


@contextmanager
def reading() -> Iterator[None]:
    """Transactions of SQLite in this context only read: they wait for nobody, and nobody for them."""
    before = _BEGIN.set("BEGIN")
    try:
        yield
    finally:
        _BEGIN.reset(before)


def database(url: str, patience: int, heartbeat: int, stale: int, worker: Identity | None) -> Storage:
    """The storage at a URL. Raises what SQLAlchemy and Optuna raise, and MissingPartError where a driver is missing."""
    lite = url.startswith("sqlite")
    options: dict[str, Any] = {"connect_args": {"timeout": patience}} if lite else {"pool_pre_ping": True}
    plain = url.replace("{", "{{").replace("}", "}}")  # Optuna takes a URL for a template
    try:
        _patiently(lambda: RDBStorage(plain, {**options, "poolclass": NullPool}))  # closed after each use, if it fails
        backend = _patiently(lambda: RDBStorage(plain, options, heartbeat_interval=heartbeat, grace_period=stale))
    except ImportError as error:
        raise MissingPartError(
            f"the driver for '{shown(url)}' is missing: pip install 'tensornet-attn[postgres]'."
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


def shown(url: str) -> str:
    """A URL without its password."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        return url
