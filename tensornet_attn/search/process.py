"""Processes: identities that are unique over machines, and children that run jobs and may fail or die."""

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

from tensornet_attn.named import sentence
from tensornet_attn.search.study import CLIMB, Job, NotFiniteError, called
from tensornet_attn.search.trial import COMPLETE, DIVERGED, FAILED, LATE, MEMORY

GRACE = 10.0  # seconds between SIGTERM and SIGKILL


@dataclass(frozen=True)
class Identity:
    """A process, identified by its host (with boot and PID namespace), process ID and start time."""

    host: str
    pid: int
    began: str

    @property
    def name(self) -> str:
        """`host:pid`, for display."""
        return f"{self.host.partition('/')[0]}:{self.pid}"

    @property
    def gone(self) -> bool:
        """Whether the process has ended; always False for processes of other machines, which are not visible here."""
        return self.host == host() and _began(self.pid) != self.began


def identity() -> Identity:
    return Identity(host(), os.getpid(), _began(os.getpid()) or "")


@cache
def host() -> str:
    """A name of this machine; on Linux, it differs between containers and between boots."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{platform.node()}/{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return platform.node()


def _began(pid: int) -> str | None:
    """The start time of a process in clock ticks; empty if unknown, None if there is no such process, or a zombie."""
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None if Path("/proc/self/stat").exists() or not _from_ps(pid, "pid") else ""
    state, *rest = line.rpartition(")")[2].split()  # the name may contain brackets
    return None if state in "ZX" else rest[18]


def resident(pid: int) -> int:
    """The resident memory of a process in bytes; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0 if Path("/proc/self/statm").exists() else int(_from_ps(pid, "rss") or 0) * 1024


def _from_ps(pid: int, what: str) -> str:
    """A field of `ps`, for systems without /proc; empty if the process has ended."""
    return subprocess.run(["ps", "-o", f"{what}=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout


def kill_group(pid: int) -> None:
    """Kills a process, and its children if it leads a process group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


# Imported once in the process from which children are forked, because the imports take seconds.
TRAINING = "tensornet_attn.search.training", "lightning_fabric", "safetensors.torch", "matplotlib.backends.backend_svg"
FUNCTIONS = ("tensornet_attn.search.process",)
_LOOK = 0.1  # seconds between checks of a child
_GIB = 2**30
_NO_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")  # in torch's messages


class LostError(Exception):
    """The trial was marked as lost because its worker was considered dead."""


@dataclass(frozen=True)
class JobOutcome:
    """The outcome of a job: its value, or a state other than complete and a reason."""

    state: str
    value: Any = None
    reason: str = ""


@dataclass(frozen=True)
class Bound:
    """The limits of a child: end by `time.monotonic`, GiB of memory, and `lost`, whether its trial is lost."""

    end: float
    seconds: float
    gibibytes: float | None = None
    lost: Callable[[], bool] = lambda: False


class Nursery:
    """Starts children by forking a process that has imported all modules."""

    def __init__(self, modules: tuple[str, ...] = TRAINING):
        self.context = get_context("forkserver")
        self.context.set_forkserver_preload(list(modules))

    def run(self, job: Job, log: Path, bound: Bound) -> JobOutcome:
        """Runs a job in a child and returns its outcome, whatever happens to the child. Raises LostError."""
        receive, send = self.context.Pipe(duplex=False)
        child = self.context.Process(target=main, args=(send, job, str(log)), daemon=True)
        child.start()
        send.close()
        pid = child.pid
        assert pid is not None
        looked = time.monotonic()
        try:
            while not wait([receive, child.sentinel], timeout=_LOOK):
                if time.monotonic() > bound.end:
                    reason = f"it took longer than {bound.seconds:g} s: raise 'seconds', or train for fewer steps"
                    return JobOutcome(LATE, reason=f"{reason}.")
                resident_gib = resident(pid) / _GIB
                if bound.gibibytes is not None and resident_gib > bound.gibibytes:
                    return JobOutcome(
                        MEMORY, reason=f"it used {resident_gib:.3g} GiB, more than {bound.gibibytes:g} GiB."
                    )
                if time.monotonic() - looked > 1:
                    looked = time.monotonic()
                    if bound.lost():
                        raise LostError
            with suppress(EOFError):
                if receive.poll():
                    return cast(JobOutcome, receive.recv())
            child.join()
            return _ended_by_itself(child.exitcode or 0, log)
        finally:
            kill_group(pid)
            child.join()
            receive.close()


def _ended_by_itself(code: int, log: Path) -> JobOutcome:
    """The outcome of a child that ended without sending one."""
    last = last_line(log)
    log_hint = f"; the last line of '{log}': {last}" if last else f"; '{log}' is empty"
    if code == -signal.SIGKILL:
        return JobOutcome(MEMORY, reason=f"its process was killed, probably because memory was full{log_hint}")
    how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
    return JobOutcome(FAILED, reason=f"its process {how}{log_hint}")


def last_line(log: Path) -> str:
    """The last line of a log that is not empty."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 4096))
            lines = file.read().decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip()[:300] for line in reversed(lines) if line.strip()), "")


def main(send: Connection, job: Job, log: str) -> None:
    """The child: runs the job and sends its outcome; its output goes to the log. It ends with its worker."""
    os.setpgrp()
    sys.stdout.flush()
    sys.stderr.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for stream in (1, 2):
        os.dup2(file, stream)
    os.close(file)
    threading.Thread(target=_end_with_the_worker, daemon=True).start()
    try:
        if job.kind == CLIMB and job.study.rungs[job.rung - 1].calls:
            outcome = JobOutcome(COMPLETE, called(job))
        else:
            from tensornet_attn.search.training import compute  # imports torch, which user functions may not need

            outcome = JobOutcome(COMPLETE, compute(job))
    except Exception as error:  # any error ends this trial only
        traceback.print_exc()
        outcome = JobOutcome(state_of(error), reason=sentence(error))
    send.send(outcome)
    send.close()


def _end_with_the_worker() -> None:
    worker = parent_process()
    assert worker is not None  # set in each child of multiprocessing
    worker.join()
    kill_group(os.getpid())


def state_of(error: Exception) -> str:
    """The state of a trial that ended with an error."""
    if isinstance(error, MemoryError) or any(words in str(error).lower() for words in _NO_MEMORY):
        return MEMORY
    return DIVERGED if isinstance(error, NotFiniteError) else FAILED
