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
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context, parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, cast

from tensornet_attn.errors import TensornetError
from tensornet_attn.search.study import CLIMB, Job, NotFiniteError, called
from tensornet_attn.search.study_file import callable_task
from tensornet_attn.search.trial import COMPLETE, DIVERGED, FAILED, LATE, MEMORY

GRACE = 10.0  # seconds that a process has to end when it is asked to


@dataclass(frozen=True)
class Identity:
    """A process: its machine, since it was started and with its own process numbers, its number, and when it began."""

    host: str
    pid: int
    began: str

    @property
    def name(self) -> str:
        """`host:pid`, for people."""
        return f"{self.host.partition('/')[0]}:{self.pid}"

    @property
    def gone(self) -> bool:
        """Whether it was of this machine and has ended; a process elsewhere may have, and nobody here can see it."""
        return self.host == host() and _began(self.pid) != self.began


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
        return None if Path("/proc/self/stat").exists() or not _told_by_ps(pid, "pid") else ""
    state, *rest = told.rpartition(")")[2].split()  # a name may hold anything, brackets too
    return None if state in "ZX" else rest[18]


def resident(pid: int) -> int:
    """The bytes of main memory that a process has; 0 for one that is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0 if Path("/proc/self/statm").exists() else int(_told_by_ps(pid, "rss") or 0) * 1024


def _told_by_ps(pid: int, what: str) -> str:
    """What `ps` says of a process where there is no /proc; nothing of one that is gone."""
    return subprocess.run(["ps", "-o", f"{what}=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout


def kill_group(pid: int) -> None:
    """Kills a process, and with it what it has started, where it leads a group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# Imported once by the process that children are forked from: each of them would need seconds for it.
TRAINING = "tensornet_attn.search.training", "lightning_fabric", "safetensors.torch", "matplotlib.backends.backend_svg"
FUNCTIONS = ("tensornet_attn.search.process",)
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
        child = self.context.Process(target=main, args=(send, job, str(log)), daemon=True)
        child.start()
        send.close()
        pid = child.pid
        assert pid is not None  # it has been started
        looked = time.monotonic()
        try:
            while not wait([receive, child.sentinel], timeout=_LOOK):
                if time.monotonic() > bound.end:
                    told = f"it took longer than {bound.seconds:g} s: raise 'seconds', or train for fewer steps"
                    return Outcome(LATE, reason=f"{told}.")
                used = resident(pid) / _GIB
                if bound.gibibytes is not None and used > bound.gibibytes:
                    return Outcome(MEMORY, reason=f"it took {used:.3g} GiB, and may take {bound.gibibytes:g}.")
                if time.monotonic() - looked > 1:
                    looked = time.monotonic()
                    if bound.lost():
                        raise LostError
            with suppress(EOFError):
                if receive.poll():
                    return cast(Outcome, receive.recv())
            child.join()
            return _ended_by_itself(child.exitcode or 0, log)
        finally:
            kill_group(pid)
            child.join()
            receive.close()


def _ended_by_itself(code: int, log: Path) -> Outcome:
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


def main(send: Connection, job: Job, log: str) -> None:
    """The child: does the job and sends its outcome; what is printed, by Python or a library, goes to the log.

    It ends when its worker does.
    """
    os.setpgrp()
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    threading.Thread(target=_end_with_the_worker, daemon=True).start()
    try:
        if job.kind == CLIMB and callable_task(job.study.rungs[job.rung - 1].task):
            outcome = Outcome(COMPLETE, called(job))
        else:
            from tensornet_attn.search.training import compute  # it brings torch, which functions need not have

            outcome = Outcome(COMPLETE, compute(job))
    except Exception as error:  # whatever it is, it is this trial's
        traceback.print_exc()
        outcome = Outcome(state_of(error), reason=sentence(error))
    send.send(outcome)
    send.close()


def _end_with_the_worker() -> None:
    worker = parent_process()
    assert worker is not None  # it is known to each child of multiprocessing
    worker.join()
    kill_group(os.getpid())


def state_of(error: Exception) -> str:
    """The state of a trial that an error has ended."""
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY):
        return MEMORY
    return DIVERGED if isinstance(error, NotFiniteError) else FAILED


def sentence(error: Exception) -> str:
    """The first line of an error; with its type, where it is none of ours."""
    first = (str(error).strip() or type(error).__name__).split("\n", 1)[0][:300]
    return first if isinstance(error, TensornetError) else f"{type(error).__name__}: {first}"
