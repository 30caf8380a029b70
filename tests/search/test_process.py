"""Jobs in processes of their own: whatever happens to them is a state and a sentence."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tensornet_attn.search.process import FUNCTIONS, Bound, LostError, Nursery, Outcome, state_of
from tensornet_attn.search.study import CLIMB, Job, NotFiniteError, Rung, Study, function_named, name_of
from tensornet_attn.search.trial import COMPLETE, DIVERGED, FAILED, LATE, MEMORY
from tests.refusals import refusal
from tests.search import functions, made

FAR = time.monotonic() + 1e6
RULE = "give module:function, with a module in the working directory or on PYTHONPATH."


@pytest.fixture(scope="module")
def nursery() -> Nursery:
    return Nursery(FUNCTIONS)


def job(task: str, folder: Path, **rest: object) -> Job:
    study = Study(space=made.SPACE, rungs=(Rung(task=task),))
    return Job(CLIMB, study, "mhsa", str(folder), **{"rates": (1e-3, 2e-3, 4e-3), "seeds": (0, 0, 0), **rest})  # type: ignore[arg-type]


def outcome(nursery: Nursery, name: str, folder: Path, bound: Bound | None = None) -> Outcome:
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
    assert outcome(nursery, "raises", tmp_path) == Outcome(FAILED, reason="RuntimeError: the lights went out")
    assert "raise RuntimeError" in log.read_text()
    reason = "the task 'tests.search.functions:text' returned 'good'; return a number, larger is better."
    assert outcome(nursery, "text", tmp_path) == Outcome(FAILED, reason=reason)
    reason = f"its process was ended by SIGSEGV; the last line of '{log}': about to fall"
    assert outcome(nursery, "dies", tmp_path) == Outcome(FAILED, reason=reason)
    log.unlink()
    reason = f"its process was killed, probably because memory was full; '{log}' is empty"
    assert outcome(nursery, "killed", tmp_path) == Outcome(MEMORY, reason=reason)


def test_too_long(nursery: Nursery, tmp_path: Path) -> None:
    found = outcome(nursery, "sleeps", tmp_path, Bound(time.monotonic() + 0.5, 0.5))
    reason = "it took longer than 0.5 s: raise 'seconds', or train for fewer steps."
    assert found == Outcome(LATE, reason=reason)


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


def test_names_of_functions() -> None:
    def inside() -> float:
        return 0.0

    assert name_of(functions.quality) == "tests.search.functions:quality"
    assert function_named("tests.search.functions:quality") is functions.quality
    for wrong, text in ((inside, f"{__name__}:test_names_of_functions.<locals>.inside"), (print, "builtins:print")):
        if wrong is print:
            assert name_of(print) == text
            continue
        told = f"the processes of trials cannot import the task '{text}': move it to a module; {RULE}"
        assert refusal(name_of, wrong) == told


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nowhere:f", "cannot be imported (No module named 'nowhere')"),
        ("os:nothing", "cannot be imported (module 'os' has no attribute 'nothing')"),
        (":f", "cannot be imported (Empty module name)"),
        ("os:sep", "is not a function"),
    ],
)
def test_no_function(name: str, words: str) -> None:
    assert refusal(function_named, name) == f"the task '{name}' {words}: {RULE}"
