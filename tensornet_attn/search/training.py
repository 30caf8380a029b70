"""The jobs of a trial that need torch: the static check, the runs of a rung, and the latency."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tensornet_attn import compiler
from tensornet_attn.bench.case import TRAINING, Case, runner
from tensornet_attn.bench.measure import interleaved
from tensornet_attn.errors import InputError
from tensornet_attn.search.read import load
from tensornet_attn.search.study import CLIMB, LATENCY, STATIC, Job, NotFiniteError, Rung, run_folder
from tensornet_attn.train.config import read, spec_of
from tensornet_attn.train.folder import locked
from tensornet_attn.train.metrics import say
from tensornet_attn.train.session import begin, fabric_of, need_parts
from tensornet_attn.train.start import task_of, train
from tensornet_attn.train.step import Diverged, optimise

REPEATS, SECONDS = 20, 2.0  # of latency measurements
WAIT = 60.0  # seconds to wait for a process whose worker has ended
_NEAR, _NATS = 0.25, 0.5  # tolerance of the first loss around the loss of guessing: relative, and in nats


def static(job: Job) -> float:
    """Checks one step of the trainer and returns the loss in nats before it.

    Raises InputError for wrong shapes or an implausible loss, and NotFiniteError if loss or gradient are not finite.
    """
    rung = job.study.rungs[job.rung - 1]
    run = read({}, options(job, rung, rung.rates[0], job.seeds[0]))
    need_parts(run)
    task = task_of(run)
    spec = spec_of(run, task)
    fabric = fabric_of(run)
    fabric.launch()
    try:
        loss = optimise(begin(run, task, spec, fabric), ()).loss
    except Diverged as error:
        raise NotFiniteError(f"{error}.") from error
    check_first(loss, task.classes or task.vocabulary)
    return loss


def check_first(loss: float, answers: int) -> None:
    """Raises InputError if the first loss in nats is far from the loss of guessing among `answers` answers."""
    guess = log(answers)
    if abs(loss - guess) > _NEAR * guess + _NATS:
        raise InputError(
            f"the first loss is {loss:.3g} nats, but guessing among {answers} answers gives {guess:.3g}: the design "
            "does not keep activations near unit scale; change its initialisers or scales."
        )


def options(job: Job, rung: Rung, rate: float, seed: int) -> dict[str, Any]:
    """The keys of a run file; keys of the machine come from the rung, or have economical defaults."""
    machine = {"tensorboard": False, "keep": 1, "threads": job.study.threads}
    design = compiler.load(job.design)
    return machine | rung.run | {
        "task": rung.task, "options": rung.options, "design": design, "lr": rate, "seed": seed
    }  # fmt: skip


def climb(job: Job) -> list[tuple[float | None, str]]:
    """Trains with each learning rate and returns (quality, folder of the run) of each; quality None if not finite."""
    rung, outcomes = job.study.rungs[job.rung - 1], []
    for rate, seed in zip(job.rates, job.seeds, strict=True):
        folder, quality = run_folder(job.design, job.rung, rate, seed), None
        out = Path(job.out) / folder
        _await_lock(out)
        try:
            summary = train({}, out=out, command="tensornet-attn search", **options(job, rung, rate, seed))
            quality = summary["eval"][f"eval_{rung.measure}"]
        except InputError as error:
            if not isinstance(error.__cause__, Diverged):
                raise
            say(str(error))
        outcomes.append((-quality if rung.measure == "loss" and quality is not None else quality, folder))
    return outcomes


def _await_lock(out: Path) -> None:
    """Waits for a process that still trains in `out` after its worker ended. Raises InputError after a minute."""
    end = time.monotonic() + WAIT
    while True:
        try:
            with locked(out, True):
                return
        except InputError:
            if time.monotonic() > end:
                raise
        time.sleep(0.1)


def latency(job: Job) -> float:
    """Median seconds of forward and backward of the design, at the sizes of the space's prices."""
    space = load(job.study.space)
    case = Case(compiler.load(job.design), space.bounds.n, space.bounds.batch, seed=job.seeds[0])
    case.check()
    module = compiler.compile(case.design)
    timed = interleaved({"design": runner(module, case, case.inputs(), TRAINING)}, REPEATS, SECONDS)
    if timed["design"].failed is not None:
        raise timed["design"].failed
    return median(timed["design"].seconds)


def compute(job: Job) -> Any:
    torch.set_num_threads(job.study.threads)
    return JOBS[job.kind](job)


JOBS: dict[str, Callable[[Job], Any]] = {STATIC: static, CLIMB: climb, LATENCY: latency}
