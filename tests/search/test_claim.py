"""Slots and designs are taken one after the other, whoever is suspended or gone."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import pytest

from tensornet_attn.search import worker as claims
from tensornet_attn.search.evolve import Draft, draft
from tensornet_attn.search.process import identity
from tensornet_attn.search.read import load
from tensornet_attn.search.store import CLAIM
from tensornet_attn.search.trial import Trial
from tensornet_attn.search.worker import awaited, claim, complete, free_dead, still_open
from tests.search import made
from tests.search.engine import asked, dead, finish, opened, taken, taken_at_once


def test_slots_in_order_and_no_design_twice(tmp_path: Path) -> None:
    study = made.study(trials=4)
    store = opened(tmp_path, study)
    found = [taken(store, study) for _ in range(9)]
    assert found[8] is None
    drafts = [one for one in found if isinstance(one, Draft)]
    assert [one.slot for one in drafts] == list(range(8))
    for arm in study.arms:
        assert len({one.proposal.essence for one in drafts if one.arm == arm}) == 4


def test_many_at_once(tmp_path: Path) -> None:
    study = made.study(trials=3)
    opened(tmp_path, study)
    assert taken_at_once(lambda: opened(tmp_path, study), study) == list(range(6))


def test_who_has_a_higher_number_waits(tmp_path: Path) -> None:
    study = made.study(trials=4)
    store, other = opened(tmp_path, study), opened(tmp_path, study)
    first, late = asked(store), []
    thread = threading.Thread(target=lambda: late.append(taken(other, study)))
    thread.start()
    thread.join(0.5)
    assert late == []
    chosen = claim(store, first.number, study, load(study.space), lambda made: first.set_user_attr(CLAIM, made))
    thread.join(20)
    assert [one.slot for one in (chosen, *late)] == [0, 1]


def test_a_dead_worker_is_not_waited_for(tmp_path: Path) -> None:
    study = made.study(trials=4)
    lost = [opened(tmp_path, study, dead()) for _ in range(2)]
    assert taken(lost[0], study).slot == 0
    asked(lost[1])  # dead before it has chosen
    store = opened(tmp_path, study)
    free_dead(store)
    assert store.look()[1] == []
    assert taken(store, study).slot == 0


def test_a_number_of_a_process_that_another_one_has_now(tmp_path: Path) -> None:
    assert not identity().gone
    assert replace(identity(), began="1").gone
    assert not replace(identity(), host="elsewhere", pid=2**22 + 1).gone


def test_silence_of_a_machine_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = made.study(trials=4)
    far = opened(tmp_path, study, replace(identity(), host="elsewhere"))
    asked(far)
    store = opened(tmp_path, study)
    free_dead(store)
    assert len(store.look()[1]) == 1
    monkeypatch.setattr(claims, "MUTE", -1.0)
    free_dead(store)
    assert store.look()[1] == []


def test_heartbeats_that_have_stopped(tmp_path: Path) -> None:
    from sqlalchemy import text

    study = made.study(trials=4)
    far = opened(tmp_path, study, replace(identity(), host="elsewhere"))
    assert taken(far, study).slot == 0
    store = opened(tmp_path, study)
    free_dead(store)
    assert len(store.look()[1]) == 1
    with store.optuna._storage._backend.engine.begin() as connection:
        connection.execute(text("update trial_heartbeats set heartbeat = datetime(heartbeat, '-31 seconds')"))
    free_dead(store)
    assert store.look()[1] == []


def test_a_small_space_ends_early(tmp_path: Path) -> None:
    """Two designs, and each arm has both; what is left over belongs to nobody."""
    study = made.study(space={"space": 1, "base": "mhsa", "legs": {"f": 8, "h": [2, 4]}}, trials=10, finalists=1)
    store = opened(tmp_path, study)
    found = [taken(store, study) for _ in range(5)]
    assert [one and one.slot for one in found] == [0, 1, 2, 3, None]
    assert store.exhausted == {"evolution": 4, "random": 5}
    for number, one in enumerate(found[:4]):
        assert isinstance(one, Draft)
        finish(store, number, made.trial(one.slot, essence=one.proposal.essence, quality=one.slot / 10))
    finished = store.look()[0]
    assert not complete(study, finished, store.exhausted)
    confirmations = [one for one in still_open(study, finished, [], store.exhausted).values() if one is not None]
    assert len(confirmations) in (5, 10)
    done = [made.trial(one.slot, arm="confirm", of=one.of.slot, fresh=one.fresh) for one in confirmations]
    assert complete(study, [*finished, *done], store.exhausted)


def test_equal_designs_of_both_arms(tmp_path: Path) -> None:
    """Random search has drawn what evolution evaluates now: it waits, and takes over what is found."""
    study = made.study(space={"space": 1, "base": "mhsa", "legs": {"f": 8, "h": 4}}, trials=1)
    store = opened(tmp_path, study)
    first, second = taken(store, study), taken(store, study)
    assert isinstance(first, Draft)
    assert isinstance(second, Draft)
    assert first.proposal.essence == second.proposal.essence
    assert awaited(store, 0, first) is None
    late: list[Trial | None] = []
    thread = threading.Thread(target=lambda: late.append(awaited(opened(tmp_path, study), 1, second)))
    thread.start()
    thread.join(0.5)
    assert late == []
    record = made.trial(0, essence=first.proposal.essence)
    finish(store, 0, record)
    thread.join(20)
    assert late == [record]


def test_who_dies_is_not_awaited(tmp_path: Path) -> None:
    study = made.study(space={"space": 1, "base": "mhsa", "legs": {"f": 8, "h": 4}}, trials=1)
    taken(opened(tmp_path, study, dead()), study)
    store = opened(tmp_path, study)
    trial = asked(store)
    second = Draft(1, "random", "random", draft(study, load(study.space), 0, ()).proposal)
    assert awaited(store, trial.number, second) is None
