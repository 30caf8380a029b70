"""Processes: how they are known beyond their machine, whether one is still there, and children that may fail or die."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tensornet_attn.errors import TensornetError
from tensornet_attn.search.job import CLIMB, Job, NotFiniteError
from tensornet_attn.search.study_file import callable_task
from tensornet_attn.search.trial import COMPLETE, DIVERGED, FAILED, LATE, MEMORY

PAUSE = 0.3  # seconds between two looks
GRACE = 10.0  # seconds that a process has to end when it is asked to


@dataclass(frozen=True)
class Identity:
    """A process: its machine, since it was started and with its own process numbers, its number, and when it began."""

    host: str
    pid: int
    began: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def name(self) -> str:
        """`host:pid`, for people."""
        return f"{self.host.partition('/')[0]}:{self.pid}"

    @property
    def here(self) -> bool:
        """Whether it is or was a process of this machine, so that it can be seen whether it is gone."""
        return self.host == host()

    @property
    def gone(self) -> bool:
        """Whether it has certainly ended; a process elsewhere may have."""
        return self.here and _began(self.pid) != self.began


def identity() -> Identity:
    """This process."""
    return Identity(host(), os.getpid(), _began(os.getpid()) or "")


@cache
def host() -> str:
    """A name of this machine; another one in each container and after each start, where Linux tells them apart."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{platform.node()}/{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _began(pid: int) -> str | None:
    """When a process began, as its machine counts; empty where that is not told, None where there is no such process.

    One that has ended and that its parent has not yet asked about is gone.
    """
    try:
        told = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() else _there(pid)
    state, *rest = told.rpartition(")")[2].split()  # a name may hold anything, brackets too
    return None if state in "ZX" else rest[18]


def _there(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass  # it is there, and somebody else's
    return ""


def resident(pid: int) -> int:
    """The bytes of main memory that a process has; 0 for one that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        if Path("/proc/self/statm").exists():
            return 0
    told = subprocess.run(["ps", "-o", "rss=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return int(told.stdout or 0) * 1024


def end_with(gone: Callable[[], bool], end: Callable[[], None]) -> None:
    """Calls `end` from a thread, once, when `gone` is true: a process that nobody waits for any more stops."""

    def watch() -> None:
        while not gone():
            time.sleep(PAUSE)
        end()

    threading.Thread(target=watch, daemon=True, name="end_with").start()


def kill_group(pid: int) -> None:
    """Kills a process, and with it what it has started, where it leads a group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# Imported once by the process that children are forked from: each of them would need seconds for it.
TRAINING = (
    "tensornet_attn.search.training",
    "lightning_fabric",
    "safetensors.torch",
    "matplotlib.backends.backend_svg",
)
FUNCTIONS = ("tensornet_attn.search.job", "tensornet_attn.search.process")
_LOOK = 0.1  # seconds between looks at a child
_GIB = 2**30
_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")  # as torch says it


class LostError(Exception):
    """The trial is not ours any more: its worker was taken for dead."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended: what it gave, or a state other than complete and a sentence."""

    state: str
    value: Any = None
    reason: str = ""


@dataclass(frozen=True)
class Bound:
    """What a child may take: until when, by `time.monotonic`, and GiB of memory; `lost`: nobody wants it any more."""

    end: float
    seconds: float
    gibibytes: float | None = None
    lost: Callable[[], bool] = lambda: False


class Nursery:
    """Starts children, each forked from one process that has imported what they need."""

    def __init__(self, modules: tuple[str, ...] = TRAINING):
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(list(modules))

    def run(self, job: Job, log: Path, bound: Bound) -> Outcome:
        """Does a job in a child. Raises LostError; whatever else happens to the child is in the outcome."""
        receive, send = self.context.Pipe(duplex=False)
        child = self.context.Process(target=main, args=(send, job, str(log), identity()), daemon=True)
        child.start()
        send.close()
        pid = child.pid
        assert pid is not None  # it has been started
        try:
            return _watched(child, receive, log, bound)
        finally:
            kill_group(pid)
            child.join()
            receive.close()


def _watched(child: Any, receive: Connection, log: Path, bound: Bound) -> Outcome:
    """What the child says, or what is to be said of it."""
    looked = time.monotonic()
    while not wait([receive, child.sentinel], timeout=_LOOK):
        if time.monotonic() > bound.end:
            told = f"it took longer than {bound.seconds:g} s: raise 'seconds', or train for fewer steps"
            return Outcome(LATE, reason=f"{told}.")
        used = resident(child.pid) / _GIB
        if bound.gibibytes is not None and used > bound.gibibytes:
            return Outcome(MEMORY, reason=f"it took {used:.3g} GiB, and may take {bound.gibibytes:g}.")
        if time.monotonic() - looked > 1:
            looked = time.monotonic()
            if bound.lost():
                raise LostError
    try:
        found = receive.recv() if receive.poll() else None
    except EOFError:
        found = None
    if isinstance(found, Outcome):
        return found
    child.join()
    return _ended(child.exitcode, log)


def _ended(code: int, log: Path) -> Outcome:
    """The outcome of a child that ended without a word."""
    last = last_line(log)
    said = f"; the last line of '{log}': {last}" if last else f"; '{log}' has no more"
    if code == -signal.SIGKILL:
        return Outcome(MEMORY, reason=f"its process was killed, most likely for want of memory{said}")
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return Outcome(FAILED, reason=f"its process {how}{said}")


def last_line(log: Path) -> str:
    """The last line of a log that says something."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def main(send: Connection, job: Job, log: str, worker: Identity) -> None:
    """The child: does the job and sends its outcome. It ends when its worker does."""
    os.setpgrp()
    _write_to(log)
    end_with(lambda: worker.gone, lambda: kill_group(os.getpid()))
    send.send(_done(job))
    send.close()


def _write_to(log: str) -> None:
    """What is printed, by Python or by a library, goes to the log."""
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def _done(job: Job) -> Outcome:
    try:
        return Outcome(COMPLETE, _computed(job))
    except Exception as error:  # whatever it is, it is this trial's
        traceback.print_exc()
        return Outcome(state_of(error), reason=sentence(error))


def _computed(job: Job) -> Any:
    """What the job gives; torch is imported where it trains."""
    if job.kind == CLIMB and callable_task(job.study.rungs[job.rung - 1].task):
        from tensornet_attn.search.job import called

        return called(job)
    from tensornet_attn.search.training import compute

    return compute(job)


def state_of(error: Exception) -> str:
    """The state of a trial that an error has ended."""
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY):
        return MEMORY
    return DIVERGED if isinstance(error, NotFiniteError) else FAILED


def sentence(error: Exception) -> str:
    """The first line of an error; with its type, where it is none of ours."""
    first = (str(error).strip() or type(error).__name__).split("\n", 1)[0][:300]
    return first if isinstance(error, TensornetError) else f"{type(error).__name__}: {first}"
