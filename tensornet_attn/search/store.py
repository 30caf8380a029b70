"""The store of a study: Optuna's, in one SQLite file or a database server; opened, checked, read and written."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from threading import Lock
from typing import TYPE_CHECKING, Any

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.search.process import Identity
from tensornet_attn.search.study import Study, check_same, decisive
from tensornet_attn.search.trial import Trial, larger, trial_from

if TYPE_CHECKING:
    import optuna
    from optuna.trial import FrozenTrial

    from tensornet_attn.search.database import Storage

NAME = "search"
WORKER, CLAIM, RUNG, RECORD, STUDY, EXHAUSTED = "worker", "claim", "rung", "trial", "study", "exhausted"
HEARTBEAT = 5  # seconds between signs of life
STALE = 30  # seconds without one, after which a worker is taken for dead
_PATIENCE = 60  # seconds that SQLite waits for other processes


@dataclass(frozen=True)
class Running:
    """A trial that somebody says is being evaluated; `claim` is None as long as it has no slot."""

    number: int
    worker: Identity | None
    claim: Mapping[str, Any] | None
    rung: int
    began: float  # seconds since 1970, by its own clock


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
        from optuna.trial import TrialState

        found: dict[int, Trial] = {}
        running = []
        for one in self.optuna.get_trials(deepcopy=False):
            if one.state in (TrialState.COMPLETE, TrialState.PRUNED) and RECORD in one.user_attrs:
                trial = self._read(one)
                found.setdefault(trial.slot, trial)
            elif one.state == TrialState.RUNNING:
                running.append(_running(one))
        return sorted(found.values(), key=lambda trial: trial.slot), running

    def _read(self, one: FrozenTrial) -> Trial:
        if one.number not in self.known:
            self.known[one.number] = trial_from(one.user_attrs[RECORD])
        return self.known[one.number]

    def runs(self, number: int) -> bool:
        """Whether a trial is still running; not, where its worker was taken for dead."""
        return any(one.number == number for one in self.look()[1])

    def fail(self, number: int) -> None:
        """Marks a running trial as lost: its slot is free. Nothing is done to one that has just ended."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        try:
            self.optuna.tell(number, state=TrialState.FAIL, skip_if_finished=True)
        except (UpdateFinishedTrialError, ValueError):
            return  # somebody else has told it between our look and our word

    def fail_stale(self) -> None:
        """Marks as lost the trials of workers that have given no sign of life."""
        import optuna

        with _QUIET:
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
        self.storage.close()


def _running(one: FrozenTrial) -> Running:
    attributes, began = one.user_attrs, one.datetime_start
    worker = Identity(**attributes[WORKER]) if WORKER in attributes else None
    rung = attributes.get(RUNG, 0)
    return Running(one.number, worker, attributes.get(CLAIM), rung, began.timestamp() if began is not None else 0.0)


def open_store(url: str, study: Study, name: str = NAME, worker: Identity | None = None) -> Store:
    """The store at a URL, made where there is none. `worker`: who begins trials with it.

    Raises MissingPartError, and InputError where it cannot be reached or holds another study.
    """
    need_parts()
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    from tensornet_attn.search.database import database, shown

    where = shown(url)
    try:
        with reached(where), _QUIET:
            storage = database(url, _PATIENCE, HEARTBEAT, STALE, worker)
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


def _study(storage: Storage, study: Study, name: str) -> optuna.Study:
    """The study of a name, made where there is none."""
    import optuna

    directions: list[Any] = ["maximize" if larger(one) else "minimize" for one in study.objectives]
    sampler = optuna.samplers.RandomSampler(seed=0)  # of nothing: proposals are ours
    own = optuna.create_study(
        storage=storage, study_name=name, directions=directions, sampler=sampler, load_if_exists=True
    )
    if STUDY not in own.user_attrs:
        own.set_user_attr(STUDY, decisive(study))
        own.set_metric_names(list(study.objectives))
    return own


@contextmanager
def reached(where: str) -> Iterator[None]:
    """Raises InputError, one sentence, where the storage does not answer."""
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError, SQLAlchemyError

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


def need_parts() -> None:
    """Raises MissingPartError."""
    for module, name in (("optuna", "optuna"), ("moocore", "moocore"), ("sklearn", "scikit-learn")):
        if find_spec(module) is None:
            raise MissingPartError(f"a search needs {name}: pip install 'tensornet-attn[search]'.")


class _Quiet:
    """Optuna says nothing about heartbeats being experimental, nor that a study was made.

    Filters of warnings belong to the process: of several threads the first sets them, and the last puts them back.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._undo = ExitStack()

    def __enter__(self) -> None:
        import optuna

        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._undo.callback(optuna.logging.set_verbosity, optuna.logging.get_verbosity())
                self._undo.enter_context(warnings.catch_warnings())
                optuna.logging.set_verbosity(optuna.logging.ERROR)
                warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._undo.close()


_QUIET = _Quiet()
