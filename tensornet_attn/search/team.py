"""The workers of one command: started as processes of their own, again when they are killed, and stopped with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.search.claim import complete, wanted
from tensornet_attn.search.process import GRACE, kill_group, last_line
from tensornet_attn.search.store import Store
from tensornet_attn.search.study import LOGS, Study
from tensornet_attn.search.table import table
from tensornet_attn.search.trial import Trial
from tensornet_attn.search.worker import check_hope

PAUSE = 0.5  # seconds between looks at the store
DEATHS = 5  # workers that may die one after the other, each without a trial finished in between


@dataclass
class Team:
    """Processes that work for a study. `finished`: how many trials were, when a worker last died."""

    out: Path
    storage: str
    name: str
    size: int
    members: list[subprocess.Popen[bytes]] = field(default_factory=list)
    deaths: int = 0
    finished: int = 0

    def start(self) -> None:
        while len(self.members) < self.size:
            self.members.append(self._worker())

    def _worker(self) -> subprocess.Popen[bytes]:
        log = self._log
        with log.open("ab") as file:
            worker = subprocess.Popen(
                [sys.executable, "-m", "tensornet_attn.search"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
                start_new_session=True,  # Ctrl-C is ours: we tell them
            )
        told = {"out": str(self.out), "storage": self.storage, "name": self.name}
        assert worker.stdin is not None  # not as arguments: everybody can read those, passwords too
        worker.stdin.write(json.dumps(told).encode() + b"\n")
        worker.stdin.flush()  # it stays open until we end, however that comes about
        return worker

    @property
    def _log(self) -> Path:
        return self.out / LOGS / "workers.log"

    def works(self, finished: int) -> bool:
        """Whether somebody is still at work; a worker that was killed is started again.

        Raises what a worker has met, and InputError where they die again and again.
        """
        for worker in list(self.members):
            code = worker.poll()
            if code is None:
                continue
            self.members.remove(worker)
            said = _said(worker)
            if code > 0:
                raise self._error(code, said)
            if code < 0:
                self.deaths = self.deaths + 1 if finished == self.finished else 1
                self.finished = finished
                if self.deaths > DEATHS * self.size:
                    raise InputError(
                        f"{self.deaths} workers died one after the other, the last by signal {-code}, and no trial was "
                        f"finished: '{self._log}' may say why; fewer --workers need less memory."
                    )
                self.members.append(self._worker())
        return bool(self.members)

    def _error(self, code: int, said: str) -> Exception:
        try:
            told = json.loads(said)
            return (MissingPartError if told["missing"] else InputError)(told["error"])
        except (ValueError, TypeError, KeyError):
            last = last_line(self._log)
            return InputError(f"a worker ended with code {code}; the last line of '{self._log}': {last}")

    def stop(self) -> None:
        """Asks all to end, and kills those that do not."""
        for worker in self.members:
            worker.terminate()
        end = time.monotonic() + GRACE
        for worker in self.members:
            try:
                worker.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill_group(worker.pid)
                worker.wait()
            _said(worker)
        self.members.clear()


def _said(worker: subprocess.Popen[bytes]) -> str:
    """The last line of a worker that has ended."""
    return worker.communicate()[0].decode(errors="replace").strip().split("\n")[-1]


def ended(store: Store, study: Study, team: Team) -> Sequence[Trial]:
    """All trials of the study, when all its slots are finished; a team works for it where they are not.

    Raises what its workers meet; KeyboardInterrupt, with how far it has come, when all of them have ended.
    """
    finished, running = store.look()
    check_hope(study, finished)
    if complete(study, finished, store.exhausted):
        return finished
    try:
        team.start()
        with table(study, team.size) as show:
            while team.works(len(finished)):
                show(finished, running)
                time.sleep(PAUSE)
                finished, running = store.look()
            finished, _ = store.look()  # what was finished between the last look and the end of the last worker
            show(finished, ())
    except KeyboardInterrupt:
        team.stop()
        done, every = len(store.look()[0]), len(wanted(study, finished, store.exhausted))
        told = f"interrupted: {done} of {every} trials are finished; the same command goes on."
        raise KeyboardInterrupt(told) from None
    finally:
        team.stop()
    return finished
