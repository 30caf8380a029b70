"""Jobs in processes of their own: whatever happens to them is a state and a sentence."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tensornet_attn.search.process import FUNCTIONS, Bound, JobOutcome, LostError, Nursery, state_of
from tensornet_attn.search.study import CLIMB, Job, NotFiniteError, Rung, Study
from tensornet_attn.search.trial import COMPLETE, DIVERGED, FAILED, LATE, MEMORY
from tests.search import functions, made

FAR = time.monotonic() + 1e6


@pytest.fixture(scope="module")
def nursery() -> Nursery:
    return Nursery(FUNCTIONS)


def job(task: str, folder: Path, **rest: object) -> Job:
    study = Study(space=made.SPACE, rungs=(Rung(task=task),))
    return Job(CLIMB, study, "mhsa", str(folder), **{"rates": (1e-3, 2e-3, 4e-3), "seeds": (0, 0, 0), **rest})  # type: ignore[arg-type]


def outcome(nursery: Nursery, name: str, folder: Path, bound: Bound | None = None) -> JobOutcome:
    bound = bound or Bound(FAR, 1e6)
    return nursery.run(job(f"tests.search.functions:{name}", folder), folder / "log", bound)


def test_what_a_function_gives(nursery: Nursery, tmp_path: Path) -> None:
    import tensornet_attn as ta

    assert outcome(nursery, "quality", tmp_path).value == [(functions.quality(ta.load("mhsa")), "")]
    assert outcome(nursery, "by_rate", tmp_path).value == [(0.999, ""), (1.0, ""), (None, "")]
    found = outcome(nursery, "unhurried", tmp_path)
    assert (tmp_path / found.value[0][1] / "calls").read_text() == "x"


def test_what_goes_wrong(nursery: Nursery, tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert outcome(nursery, "raises", tmp_path) == JobOutcome(FAILED, reason=functions.RAISED)
    assert "raise RuntimeError" in log.read_text()
    reason = "the task 'tests.search.functions:text' returned 'good'; return a number, larger is better."
    assert outcome(nursery, "text", tmp_path) == JobOutcome(FAILED, reason=reason)
    reason = f"its process was ended by SIGSEGV; the last line of '{log}': about to fall"
    assert outcome(nursery, "dies", tmp_path) == JobOutcome(FAILED, reason=reason)
    log.unlink()
    reason = f"its process was killed, probably because memory was full; '{log}' is empty"
    assert outcome(nursery, "killed", tmp_path) == JobOutcome(MEMORY, reason=reason)


def test_too_long(nursery: Nursery, tmp_path: Path) -> None:
    found = outcome(nursery, "sleeps", tmp_path, Bound(time.monotonic() + 0.5, 0.5))
    reason = "it took longer than 0.5 s: raise 'seconds', or train for fewer steps."
    assert found == JobOutcome(LATE, reason=reason)


def test_too_large(nursery: Nursery, tmp_path: Path) -> None:
    found = outcome(nursery, "grows", tmp_path, Bound(FAR, 1e6, gibibytes=0.5))
    assert found.state == MEMORY
    assert found.reason.startswith("it used 0.5")
    assert found.reason.endswith(" GiB, more than 0.5 GiB.")


def test_a_trial_that_is_not_ours_any_more(nursery: Nursery, tmp_path: Path) -> None:
    with pytest.raises(LostError):
        outcome(nursery, "sleeps", tmp_path, Bound(FAR, 1e6, lost=lambda: True))


def test_states() -> None:
    assert state_of(MemoryError()) == MEMORY
    assert state_of(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")) == MEMORY
    assert state_of(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")) == MEMORY
    assert state_of(NotFiniteError("step 1: the loss is nan")) == DIVERGED
    assert state_of(KeyError("x")) == FAILED
    assert COMPLETE == "complete"
