"""Processes of a benchmark end when it is killed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.search.kills import below, line_of, wait_for


@pytest.mark.parametrize(
    "options", [("--regret", "--n", "2048"), ("--jobs", "2", "--against", "eager", "--n", "2048,4096")]
)
def test_workers_end_with_a_killed_benchmark(options: tuple[str, ...]) -> None:
    line = [sys.executable, "-m", "tensornet_attn.cli", "bench", "thsa", "--batch", "1", *options]
    bench = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_for(lambda: bool(workers_below(bench.pid)))
        started = workers_below(bench.pid)
    finally:
        bench.kill()
        bench.wait()
    wait_for(lambda: not any(line_of(pid) for pid in started))


def workers_below(pid: int) -> list[int]:
    return [child for child in below(pid) if b"multiprocessing" in line_of(child)]
