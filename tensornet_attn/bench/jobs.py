"""Prepares several cases at once, each in a process of its own, and times them one after another.

Compilation and the comparison with the reference take most of a benchmark. Times are taken while no other process of
the run works: all processes of a batch are ready before the first of them is timed.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import torch

from tensornet_attn.bench.bench import Bench, Options, Say, Work, blank
from tensornet_attn.bench.case import Case
from tensornet_attn.bench.machine import Rates, select, tidy
from tensornet_attn.bench.results import FAILED, Entry, Result

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

SAID, READY, DONE = "said", "ready", "done"


def in_batches(work: Sequence[Work], jobs: int, rates: Rates | None, say: Say) -> Iterator[tuple[int, Result]]:
    """Yields the results of each case with its place. A process measures all passes of a case; `jobs` work at once."""
    for start in range(0, len(work), jobs):
        batch = list[_Worker]()
        try:
            for one in work[start : start + jobs]:
                batch.append(_Worker(one, rates, say))
            for worker in batch:
                worker.wait(READY)
            for place, worker in enumerate(batch, start):
                yield from ((place, result) for result in worker.timed())
        finally:
            for worker in batch:
                worker.process.kill()


class _Worker:
    """A process that prepares a case, waits for its turn, and times it."""

    def __init__(self, work: Work, rates: Rates | None, say: Say):
        self.work, self.say = work, say
        context = multiprocessing.get_context("spawn")  # a fork could not use the GPU
        self.link, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(
            target=_measure, args=(*work, rates, torch.get_num_threads(), theirs), daemon=True
        )
        self.process.start()
        theirs.close()  # otherwise the end of the process would not close the pipe

    def wait(self, wanted: str) -> list[Result]:
        """Repeats what the process says until it is ready, or done with these results. Results say why if it died."""
        try:
            while True:
                kind, value = self.link.recv()
                if kind == wanted:
                    return value
                self.say(value)
        except (EOFError, OSError):
            return self.died()

    def timed(self) -> list[Result]:
        try:
            self.link.send(None)
        except OSError:  # it died while it was prepared
            return self.died()
        return self.wait(DONE)

    def died(self) -> list[Result]:
        self.process.join()
        reason = f"its process ended with exit code {self.process.exitcode}."
        options, case = self.work
        found = [blank(case, kind, options.backends[0]) for kind in options.passes]
        for result in found:
            result.entries = [Entry(name, FAILED, reason) for name in options.names]
        return found


def _measure(options: Options, case: Case, rates: Rates | None, threads: int, link: Connection) -> None:
    torch.set_num_threads(threads)
    select(case.device)
    bench = Bench(options, lambda text: link.send((SAID, text)), rates)
    prepared = [bench.prepared(case, kind) for kind in options.passes]
    for each in prepared:
        bench.warm(each)
    tidy(case.device)
    link.send((READY, []))
    try:
        link.recv()
    except EOFError:  # the run has ended
        return
    for each in prepared:
        bench.again(each)
        bench.time(each)
    link.send((DONE, [each.result for each in prepared]))
