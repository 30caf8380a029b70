"""Several cases prepared at once, each in a process of its own."""

from __future__ import annotations

import tensornet_attn as ta
from tensornet_attn.bench.bench import Options, in_batches
from tensornet_attn.bench.case import FORWARD, PASSES, Case

QUICK = {"repeats": 3, "seconds": 0.0}


def case_of(n: int) -> Case:
    return Case(ta.load("mhsa", legs={"f": 8, "h": 2}), n, 2)


def test_results_come_in_order_and_processes_say_what_they_do() -> None:
    said: list[str] = []
    found = list(in_batches([(Options(("eager",), **QUICK), case_of(n)) for n in (4, 6)], 2, None, said.append))
    assert [(place, result.n, result.kind) for place, result in found] == [
        (place, n, kind) for place, n in enumerate((4, 6)) for kind in PASSES
    ]
    assert {entry.status for _, result in found for entry in result.entries} == {"measured"}
    assert all(result.entry("eager").ratio is not None for _, result in found)
    timed = [place for place, text in enumerate(said) if "timing" in text]
    assert len(said) == 8
    assert timed == [4, 5, 6, 7]  # only after all have been compared


def test_a_process_that_dies_fails_its_case_alone() -> None:
    options = Options(("eager",), passes=(FORWARD,), **QUICK)
    work = [(options, case_of(4)), (options, Killed(ta.load("mhsa", legs={"f": 8, "h": 2}), 6, 2))]
    (_, first), (_, second) = in_batches(work, 2, None, lambda text: None)
    assert {entry.status for entry in first.entries} == {"measured"}
    assert [(entry.status, entry.reason) for entry in second.entries] == [
        ("failed", "its process ended with exit code -9.")
    ] * 2
    assert (first.runs, second.runs) == (True, False)


class Killed(Case):
    """A case whose process is killed, as for lack of memory."""

    def at(self, n: int) -> Case:
        import os
        import signal

        os.kill(os.getpid(), signal.SIGKILL)
        return self
