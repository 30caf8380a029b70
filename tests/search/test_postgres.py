"""The same with a real PostgreSQL server: a store, claims at once, and workers that are killed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from tensornet_attn.search.process import Identity, identity
from tensornet_attn.search.store import Store, open_store
from tensornet_attn.search.worker import free_dead
from tests.refusals import refusal
from tests.search import made, postgres
from tests.search.engine import asked, finish, taken_at_once
from tests.search.kills import command, done_once, kill_workers, quick
from tests.search.kills import finish as ended

MISSING = postgres.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with postgres.server() as found:
        yield found


def opened(url: str, name: str, worker: Identity | None = None, **study: object) -> Store:
    return open_store(url, made.study(**study), name, worker or identity())


def test_a_store(url: str) -> None:
    store = opened(url, "a store")
    trial = asked(store)
    assert refusal(opened, url, "a store", seed=1) == (
        f"the storage '{store.shown}' belongs to another study: 'seed' is 0 there and 1 here; choose another --out, or "
        "another --name for the study."
    )
    record = made.trial(0)
    finish(store, 0, record)
    other = opened(url, "a store")
    assert other.look() == ([record], [])
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        trial.set_user_attr("late", 1)
    third = opened(url, "another store", seed=1)
    assert third.look() == ([], [])
    for one in (store, other, third):
        one.close()


def test_many_at_once(url: str) -> None:
    """Each takes another slot, also where all make the tables and the study at the same time."""
    study = made.study(trials=3)
    assert taken_at_once(lambda: opened(url, "at once", trials=3), study) == list(range(6))


def test_heartbeats_that_have_stopped(url: str) -> None:
    from sqlalchemy import text

    far = opened(url, "far", replace(identity(), host="elsewhere"))
    asked(far)
    store = opened(url, "far")
    free_dead(store)
    assert len(store.look()[1]) == 1
    with store.storage._backend.engine.begin() as connection:
        connection.execute(text("update trial_heartbeats set heartbeat = heartbeat - interval '31 seconds'"))
    free_dead(store)
    assert store.look()[1] == []
    for one in (far, store):
        one.close()


@pytest.mark.slow
def test_workers_that_are_killed(url: str, tmp_path: Path) -> None:
    """Two commands, as on two machines, with one database and a folder each."""
    study = quick(trials=3)
    searches = [command(tmp_path / name, study, 2, url) for name in ("here", "there")]
    assert kill_workers(searches[0], 2, seed=5) == 2
    assert [ended(search)[0] for search in searches] == [0, 0]
    assert done_once(tmp_path / "here", url) == done_once(tmp_path / "there", url)


@pytest.mark.slow
def test_workers_that_are_killed_twelve_times(url: str, tmp_path: Path) -> None:
    study = quick(trials=20, finalists=2, seed=8)
    search = command(tmp_path / "out", study, 4, f"{url}", name="twelve")
    assert kill_workers(search, 12, seed=6) == 12
    assert ended(search)[0] == 0
    assert len(done_once(tmp_path / "out", url, "twelve")) >= 50
