"""Bounds on work that hold on a busy machine, too: the system ends a process at a processor's time, not at the clock's.

A test that compares seconds with a bound is red where others use the machine; a limit that is far above what a call
takes, and ends what runs away, is not.
"""

from __future__ import annotations

import atexit
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
PROCESSOR = 60  # seconds of a processor, for what takes one
MEMORY = 4 * 2**30  # bytes of addresses
HANGS = 1800.0  # seconds on the wall after which a process waits for something that never comes


def bounded(function: Callable[..., T], *arguments: object) -> T:
    """What a function of a module gives, or raises, in a process that stays for the next call.

    Raises AssertionError where the call is ended: at its time of a processor, or for lack of memory.

    >>> bounded(max, 1, 2)
    2
    """
    done: Future[T] = _process().submit(_limited, function, arguments)
    try:
        return done.result(HANGS)
    except (BrokenProcessPool, MemoryError):
        _process.cache_clear()
        raise AssertionError(f"ended: above {PROCESSOR} s of a processor or {MEMORY:,} bytes") from None


@cache
def _process() -> ProcessPoolExecutor:
    pool = ProcessPoolExecutor(1, get_context("spawn"))
    atexit.register(pool.shutdown)
    return pool


def _limited(function: Callable[..., T], arguments: tuple[object, ...]) -> T:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limit = int(used.ru_utime + used.ru_stime) + 1 + PROCESSOR
    resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    return function(*arguments)


def printed(code: str, *arguments: str | Path, processor: int = PROCESSOR) -> str:
    """What a new Python prints that runs `code`. Raises AssertionError where it is ended or fails.

    >>> printed("print(1 + 1)")
    '2\\n'
    >>> printed("print('so far', flush=True); 9 ** 9 ** 9", processor=1)
    Traceback (most recent call last):
    AssertionError: ended by SIGXCPU after printing 'so far'
    """

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (processor, processor + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))

    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, preexec_fn=limited)
    if done.returncode:
        how = (
            signal.Signals(-done.returncode).name if done.returncode < 0 else f"{done.returncode}: {done.stderr!r:.500}"
        )
        raise AssertionError(f"ended by {how} after printing {done.stdout[-500:].strip()!r}")
    return done.stdout
