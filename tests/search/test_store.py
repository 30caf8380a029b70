"""The store: what its trials mean, whose it is, and sentences for what cannot be opened."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import optuna
import pytest

from tensornet_attn.search.process import identity
from tensornet_attn.search.store import RECORD, Store, open_store
from tensornet_attn.search.trial import Trial
from tests.refusals import refusal
from tests.search import made
from tests.search.engine import asked, opened


def told(store: Store, record: Trial, how: type[Exception] | None = None) -> None:
    """A trial of Optuna that writes its record and ends."""

    def objective(trial: optuna.Trial) -> tuple[float, ...]:
        trial.set_user_attr(RECORD, record.as_dict())
        if how is not None:
            raise how
        return 0.5, 1000.0

    store.optuna.optimize(objective, n_trials=1, catch=(KeyError,))


def test_what_is_finished(tmp_path: Path) -> None:
    store = opened(tmp_path)
    one, two, three = (made.trial(slot) for slot in (2, 0, 1))
    told(store, one)
    told(store, two, optuna.TrialPruned)
    told(store, three, KeyError)
    assert store.look() == ([two, one], [])
    assert opened(tmp_path).look() == ([two, one], [])


def test_several_may_make_it_at_once(tmp_path: Path) -> None:
    for place in range(3):
        folder = tmp_path / str(place)
        folder.mkdir()
        with ThreadPoolExecutor(4) as pool:
            stores = list(pool.map(lambda _, folder=folder: opened(folder).look(), range(4)))
        assert stores == [([], [])] * 4


def test_a_trial_has_its_worker_and_a_sign_of_life_from_the_beginning(tmp_path: Path) -> None:
    store = opened(tmp_path)
    trial = asked(store)
    (running,) = store.look()[1]
    assert (running.number, running.worker, running.claim) == (0, identity(), None)
    with sqlite3.connect(tmp_path / "study.db") as connection:
        assert connection.execute("select trial_id from trial_heartbeats").fetchall() == [(trial._trial_id,)]
    connection.close()


def test_who_was_taken_for_dead_writes_nothing_more(tmp_path: Path) -> None:
    store, other = opened(tmp_path), opened(tmp_path)
    trial = asked(store)
    assert other.runs(0)
    other.fail(0)
    other.fail(0)
    assert not store.runs(0)
    with pytest.raises(optuna.exceptions.UpdateFinishedTrialError):
        trial.set_user_attr(RECORD, made.trial(0).as_dict())
    assert other.look() == ([], [])


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """Somebody who has begun to write, and has only read so far, keeps other writers out, and no readers."""
    from sqlalchemy import text

    store = opened(tmp_path)
    with store.storage._backend.engine.begin() as connection:
        connection.execute(text("select * from studies")).all()
        other = sqlite3.connect(tmp_path / "study.db", timeout=0.05)
        with pytest.raises(sqlite3.OperationalError, match="database is locked"):
            other.execute("delete from trials")
        other.close()
        assert store.look() == ([], [])
    store.close()


def test_exhausted(tmp_path: Path) -> None:
    store = opened(tmp_path)
    assert store.exhausted == {}
    for slot in (9, 7, 11):
        store.exhaust("random", slot)
    assert opened(tmp_path).exhausted == {"random": 7}


def test_what_may_change(tmp_path: Path) -> None:
    opened(tmp_path)
    opened(tmp_path, made.study(trials=99, finalists=0, seconds=1.0, gibibytes=2.0, threads=2))
    opened(tmp_path, made.study(space={**made.SPACE, "name": "other", "about": "Words."}))
    opened(tmp_path, made.study(seed=1), name="second")


OTHERS = [
    ({"seed": 3}, "study: 'seed' is 0 there and 3 here"),
    ({"space": {**made.SPACE, "most": 1}}, "space: 'space.most' is not given there and 1 here"),
    ({"space": {**made.SPACE, "bounds": {"n": 8}}}, "space: 'space.bounds.n' is 16 there and 8 here"),
    ({"objectives": ("quality",)}, "study: 'objectives' is ['quality', 'macs'] there and ['quality'] here"),
]


@pytest.mark.parametrize(("change", "words"), OTHERS)
def test_another_study(tmp_path: Path, change: dict[str, object], words: str) -> None:
    opened(tmp_path)
    assert refusal(opened, tmp_path, made.study(**change)) == (
        f"the storage 'sqlite:///{tmp_path}/study.db' belongs to another {words}; choose another --out, or another "
        "--name for the study."
    )


UNREACHED = [
    ("postgresql://me:secret@127.0.0.1:1/x", "'postgresql://me:***@127.0.0.1:1/x' cannot be reached: "),
    ("sqlite:////nowhere/x.db", "'sqlite:////nowhere/x.db' cannot be reached: unable to open database file; "),
    ("nosql://x", "'nosql://x' is not a known URL: give e.g. postgresql://HOST/NAME."),
    ("study.db", "'study.db' is not a known URL: give e.g. postgresql://HOST/NAME."),
]


@pytest.mark.parametrize(("url", "words"), UNREACHED)
def test_a_storage_that_cannot_be_reached(url: str, words: str) -> None:
    message = refusal(open_store, url, made.study())
    assert message.startswith(f"the storage {words}")
    assert "secret" not in message
    assert "\n" not in message


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "study.db").write_bytes(b"no database " * 1000)
    assert refusal(opened, tmp_path) == (
        f"the storage 'sqlite:///{tmp_path}/study.db' cannot be reached: file is not a database; check the URL, and "
        "that the server is running."
    )
