"""Studies as commands whose processes are killed at random moments, and what must be true of them in the end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from optuna.trial import TrialState

from tensornet_attn.search.store import RECORD, open_store
from tensornet_attn.search.study import CONFIG, NAME, read_study, yaml_of
from tensornet_attn.search.study_file import read
from tensornet_attn.search.trial import Trial
from tensornet_attn.search.worker import wanted
from tests.search import made

PATIENCE = 300.0  # seconds for what takes a few, on a machine that is busy


def command(
    out: Path, study: Any, workers: int, storage: str | None = None, name: str = NAME
) -> subprocess.Popen[bytes]:
    """A search as a process of its own."""
    out.mkdir(parents=True, exist_ok=True)
    config = out.parent / f"{out.name}.yaml"
    config.write_text(yaml_of(study))
    line = [sys.executable, "-m", "tensornet_attn.cli", "search", "--config", str(config), "--out", str(out)]
    line += ["--workers", str(workers), "--name", name, *(["--storage", storage] if storage is not None else [])]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    return subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def finish(search: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Waits for a search: its exit status and what it has said on standard error."""
    _, err = search.communicate(timeout=PATIENCE)
    return search.returncode, err.decode()


def below(pid: int) -> list[int]:
    """The processes that a process has started, those of theirs too."""
    told = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout
    parents = [tuple(map(int, line.split())) for line in told.splitlines()]
    found, waiting = [], [pid]
    while waiting:
        own = [child for child, parent in parents if parent in waiting]
        found += own
        waiting = own
    return found


def workers_of(pid: int) -> list[int]:
    """The workers among them."""
    return [child for child in below(pid) if b"tensornet_attn.search\0" in line_of(child)]


def line_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def wait_for(what: Callable[[], bool]) -> None:
    """Until something is true."""
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end, "nothing happened"
        time.sleep(0.05)


def wait_for_trials(search: subprocess.Popen[bytes], out: Path, count: int) -> None:
    """Until a search has finished so many trials, and goes on."""

    def found() -> bool:
        assert search.poll() is None, finish(search)
        if not (out / CONFIG).exists() or not (out / "study.db").exists():
            return False
        store = open_store(f"sqlite:///{out}/study.db", read_study(out / CONFIG))
        trials = store.look()[0]
        store.close()
        return len(trials) >= count

    wait_for(found)


def kill_workers(search: subprocess.Popen[bytes], kills: int, seed: int, longest: float = 3.0) -> int:
    """Kills a worker after at most `longest` seconds, again and again; how many before the search ended.

    A worker takes two seconds to start: in half a second after a kill, no search ends.
    """
    chance, done = random.Random(seed), 0
    while done < kills and search.poll() is None:
        time.sleep(chance.uniform(0.05, longest))
        workers = workers_of(search.pid)
        if workers:
            os.kill(chance.choice(workers), signal.SIGKILL)
            done += 1
    return done


def done_once(out: Path, storage: str | None = None, name: str = NAME) -> list[Trial]:
    """The trials of a study, after a check that each wanted slot is finished, and once."""
    study = read_study(out / CONFIG)
    store = open_store(storage or f"sqlite:///{out}/study.db", study, name)
    finished, running = store.look()
    ended = [one for one in store.optuna.trials if one.state in (TrialState.COMPLETE, TrialState.PRUNED)]
    counts = Counter(one.user_attrs[RECORD]["slot"] for one in ended)
    assert running == []
    assert counts == Counter(list(wanted(study, finished, store.exhausted)))
    for arm in (*study.arms,):
        own = [trial.essence for trial in finished if trial.arm == arm]
        assert len(own) == len(set(own)) == study.trials
    store.close()
    return finished


def proposed(trials: list[Trial]) -> Iterator[bytes]:
    """What was proposed, byte for byte, and what was found."""
    names = ("slot", "arm", "how", "path", "hash", "essence", "design", "price", "parents", "same_as", "values", "of")
    for trial in trials:
        data = trial.as_dict()
        yield json.dumps({name: data[name] for name in names}, sort_keys=True).encode()


def quick(**given: Any) -> Any:
    """A study of a function that takes 0.2 s."""
    rung = {"task": "tests.search.functions:unhurried"}
    return read({"space": made.SPACE, "rungs": (rung,), "population": 4, "finalists": 0, **given}, {})
