"""The worker processes of one command: started, restarted if killed, and stopped with the command.

Standard error shows the progress of the study, as a live table in a terminal, otherwise as lines.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from tensornet_attn.errors import InputError, MissingPartError
from tensornet_attn.search.process import GRACE, kill_group, last_line
from tensornet_attn.search.rank import CONFIRM, confirmations
from tensornet_attn.search.space import to_text
from tensornet_attn.search.store import Running, Store
from tensornet_attn.search.study import ARMS, LOGS, Study
from tensornet_attn.search.trial import BOUND, COMPLETE, Trial
from tensornet_attn.search.worker import check_hope, complete, wanted
from tensornet_attn.train.metrics import clock, say

SECONDS = 10.0  # between lines of progress
BAR = 40  # width of the bar in characters
Show = Callable[[Sequence[Trial], Sequence[Running]], None]


@contextmanager
def table(study: Study, workers: int) -> Iterator[Show]:
    """Yields a callback that shows finished and running trials."""
    if sys.stderr.isatty():
        with Live(console=Console(stderr=True), refresh_per_second=4) as live:
            yield lambda trials, running: live.update(picture(study, trials, running, workers))
        return
    last, known = -SECONDS, -1

    def show(trials: Sequence[Trial], running: Sequence[Running]) -> None:
        nonlocal last, known
        now = time.monotonic()
        if len(trials) != known and (now - last >= SECONDS or not running):
            last, known = now, len(trials)
            say("  ".join(words(study, trials, running, workers)))

    yield show


def picture(study: Study, trials: Sequence[Trial], running: Sequence[Running], workers: int) -> Group:
    """The table for a terminal: progress, running trials, the best trial of each arm, and failures."""
    running_table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in ("slot", "arm", "rung", "time", "design"):
        running_table.add_column(
            name, no_wrap=True, overflow="ellipsis", justify="right" if name in ("slot", "time") else "left"
        )
    claims = sorted(
        ((active.claim, active) for active in running if active.claim is not None), key=lambda pair: pair[0]["slot"]
    )
    for claim, active in claims:
        slot = str(claim["slot"]) if claim["slot"] >= 0 else "again"
        rung = f"{active.rung}: {study.rungs[active.rung - 1].task}" if active.rung > 0 else "checks"
        running_table.add_row(slot, claim["arm"], rung, clock(active.seconds), claim["text"])
    head, *rest = words(study, trials, running, workers)
    first = Table.grid(padding=(0, 2))
    first.add_row(ProgressBar(total=slots(study, trials), completed=len(trials), width=BAR), head, rest.pop())
    return Group(first, running_table, *(Text(line, overflow="ellipsis", no_wrap=True) for line in rest))


def words(study: Study, trials: Sequence[Trial], running: Sequence[Running], workers: int) -> list[str]:
    """The progress of a study, the best trial of each arm, failures by state, and the time left, as short texts."""
    texts = [f"{len(trials)}/{slots(study, trials)} trials"]
    for arm in study.arms:
        arm_trials = [
            trial for trial in trials if trial.arm == arm and trial.state == COMPLETE and trial.quality is not None
        ]
        for best in sorted(arm_trials, key=lambda trial: (-trial.rung, -(trial.quality or 0.0)))[:1]:
            rung = f" on rung {best.rung}" if len(study.rungs) > 1 else ""
            texts.append(f"{arm}: {best.quality:.4f}{rung}, {to_text(best.path)}")
    failed = Counter(trial.state for trial in trials if trial.state not in (COMPLETE, BOUND))
    texts += [f"failed: {', '.join(f'{state} {count}' for state, count in failed.most_common())}"] if failed else []
    seconds = left(study, trials, running, workers)
    return [*texts, "time left unknown" if seconds is None else f"{clock(seconds)} left"]


def slots(study: Study, trials: Sequence[Trial]) -> int:
    """The total number of trials; until all proposals are finished, with the maximum number of confirmations."""
    proposals = [trial for trial in trials if trial.arm in ARMS]
    if len(proposals) >= study.proposals or len(proposals) < len(trials):  # a small space may have fewer
        return len(proposals) + len(confirmations(study, proposals))
    return study.proposals + study.finalists * len(study.arms) * study.fresh_seeds


def left(study: Study, trials: Sequence[Trial], running: Sequence[Running], workers: int) -> float | None:
    """The remaining seconds, from the median time of finished trials; None if no trial is finished."""
    times = [trial.seconds for trial in trials if trial.arm in ARMS]
    if not times:
        return None
    first = (result for trial in trials if trial.same_as is None for result in trial.results)
    runs = [r.seconds / len(r.rates) for r in first if r.rung == len(study.rungs)]  # as long as a confirmation
    confirm_times = [trial.seconds for trial in trials if trial.arm == CONFIRM] or runs or times
    total = slots(study, trials)
    proposals = max(0, min(study.proposals, total) - len(times)) if len(times) == len(trials) else 0
    rest = max(0, total - len(trials) - proposals)
    work = proposals * median(times) + rest * median(confirm_times)
    done = sum(active.seconds for active in running if active.claim is not None)
    return max(0.0, work - done) / max(1, workers)


PAUSE = 0.5  # seconds between reads of the store
DEATHS = 5  # deaths per worker in a row, without a finished trial in between, before the search fails


@dataclass
class Team:
    """The worker processes of a study. `finished`: number of finished trials when a worker last died."""

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
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the workers
            )
        settings = {"out": str(self.out), "storage": self.storage, "name": self.name}
        assert worker.stdin is not None  # command-line arguments would show the password to other users
        worker.stdin.write(json.dumps(settings).encode() + b"\n")
        worker.stdin.flush()  # the pipe stays open until this process ends, which ends the workers
        return worker

    @property
    def _log(self) -> Path:
        return self.out / LOGS / "workers.log"

    def works(self, finished: int) -> bool:
        """Whether workers are running; restarts killed workers.

        Raises the error of a worker, and InputError if workers die again and again.
        """
        for worker in list(self.members):
            code = worker.poll()
            if code is None:
                continue
            self.members.remove(worker)
            last = _last_output(worker)
            if code > 0:
                raise self._error(code, last)
            if code < 0:
                self.deaths = self.deaths + 1 if finished == self.finished else 1
                self.finished = finished
                if self.deaths > DEATHS * self.size:
                    raise InputError(
                        f"{self.deaths} workers died in a row without a finished trial, the last by signal {-code}: "
                        f"see '{self._log}', or use fewer --workers, which need less memory."
                    )
                self.members.append(self._worker())
        return bool(self.members)

    def _error(self, code: int, output: str) -> Exception:
        try:
            report = json.loads(output)
            return (MissingPartError if report["missing"] else InputError)(report["error"])
        except (ValueError, TypeError, KeyError):
            last = last_line(self._log)
            return InputError(f"a worker ended with code {code}; the last line of '{self._log}': {last}")

    def stop(self) -> None:
        """Terminates all workers, and kills those that do not end in time."""
        for worker in self.members:
            worker.terminate()
        end = time.monotonic() + GRACE
        for worker in self.members:
            try:
                worker.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                kill_group(worker.pid)
                worker.wait()
            _last_output(worker)
        self.members.clear()


def _last_output(worker: subprocess.Popen[bytes]) -> str:
    """The last line on standard output of a worker that has ended."""
    return worker.communicate()[0].decode(errors="replace").strip().split("\n")[-1]


def ended(store: Store, study: Study, team: Team) -> Sequence[Trial]:
    """Runs the team until all slots of the study are finished, and returns all trials.

    Raises the errors of workers, and KeyboardInterrupt with the progress after all workers have ended.
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
            finished, _ = store.look()  # includes trials that finished after the last read
            show(finished, ())
    except KeyboardInterrupt:
        team.stop()
        done, total = len(store.look()[0]), len(wanted(study, finished, store.exhausted))
        message = f"interrupted: {done} of {total} trials are finished; the same command resumes the study."
        raise KeyboardInterrupt(message) from None
    finally:
        team.stop()
    return finished
