"""The workers of one command: started as processes of their own, again when they are killed, and stopped with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.search.process import GRACE, identity, kill_group, last_line
from tensornet_attn.search.study import LOGS

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
        told = {"out": str(self.out), "storage": self.storage, "name": self.name, "parent": identity().as_dict()}
        assert worker.stdin is not None
        with worker.stdin as stream:  # not as arguments: everybody can read those, passwords too
            stream.write(json.dumps(told).encode() + b"\n")
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
                self._mourn(code, finished)
                self.members.append(self._worker())
        return bool(self.members)

    def _mourn(self, code: int, finished: int) -> None:
        self.deaths = self.deaths + 1 if finished == self.finished else 1
        self.finished = finished
        if self.deaths > DEATHS * self.size:
            raise InputError(
                f"{self.deaths} workers died one after the other, the last by signal {-code}, and no trial was "
                f"finished: '{self._log}' may say why; fewer --workers need less memory."
            )

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
    assert worker.stdout is not None
    with worker.stdout as stream:
        return stream.read().decode(errors="replace").strip().split("\n")[-1]
