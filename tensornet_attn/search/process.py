"""Processes as they are known beyond their own machine, and whether one of this machine is still there."""

from __future__ import annotations

import os
import platform
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

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
