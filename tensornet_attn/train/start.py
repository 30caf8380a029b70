"""From a configuration and a folder to a finished run: begun, gone on with, or found finished, step after step."""

from __future__ import annotations

import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Unpack

import torch

from tensornet_attn.errors import InputError
from tensornet_attn.tasks import task_named
from tensornet_attn.tasks.task import Task
from tensornet_attn.train import metrics, summary
from tensornet_attn.train.config import Run, RunKeys, Source, read
from tensornet_attn.train.feed import eval_line, judge
from tensornet_attn.train.folder import CHECKPOINTS, check_same, checkpoints, clean, locked, resume, save, write_config
from tensornet_attn.train.metrics import Tell, board, progress, say
from tensornet_attn.train.model import resolved, spec_of
from tensornet_attn.train.session import Session, begin, fabric_of, need_parts
from tensornet_attn.train.step import Diverged, optimise
from tensornet_attn.train.summary import peak_bytes


def train(
    config: Source = None, *, out: str | os.PathLike[str], command: str | None = None, **options: Unpack[RunKeys]
) -> dict[str, Any]:
    """Trains what a run file, or a mapping, and options say, and gives what `OUT/summary.json` holds; nothing on
    processes other than the first.

    `options` are the keys of a run file and win over it; `command` is noted in the summary. Called again with the same
    arguments a run goes on from its last checkpoint, whatever ended it, and a finished one is left as it is. On the
    CPU its losses are, bit by bit, those of a run that nothing has ended. Progress goes to standard error.

    Raises TypeError for another key, DesignError and InputError for what is wrong with the run, task, model or folder,
    and where loss or gradient stop being finite; MissingPartError; KeyboardInterrupt after a checkpoint.
    """
    run = read(config, options)
    need_parts(run)
    task = task_of(run)
    spec = spec_of(run, task)
    run, out = resolved(run, spec, task), Path(out)
    check_same(run, out)
    done = finished(run, out)
    if done is not None:
        say(f"'{out}' is finished: {done['steps']} steps.")
        return done
    fabric = fabric_of(run)
    with _settings(run, fabric.device), _reporting(out):
        fabric.launch()
        return _trained(begin(run, task, spec, fabric), out, command or shlex.join(sys.argv))


def task_of(run: Run) -> Task:
    """The task of a run, its samples drawn with the run's seed. Raises InputError."""
    task = task_named(run.task, seed=run.seed, cache=run.cache, **run.options)
    if run.task_version not in (None, task.recipe.version):
        raise InputError(
            f"the run is on version {run.task_version} of task '{run.task}'; this package has version "
            f"{task.recipe.version}."
        )
    return task


def finished(run: Run, out: Path) -> dict[str, Any] | None:
    """The summary of a run that has taken all its steps."""
    path = out / summary.SUMMARY
    found = json.loads(path.read_bytes()) if path.exists() else None
    return found if found is not None and found["steps"] >= run.steps else None


def _trained(session: Session, out: Path, command: str) -> dict[str, Any]:
    run, first = session.run, session.first
    with locked(out, first):
        if first:  # what killed processes have left is removed, and what this run is written down
            for path in out.glob(".*.*"):  # files that were being written
                path.unlink()
            (out / summary.SUMMARY).unlink(missing_ok=True)
            clean(out / CHECKPOINTS)
            write_config(run, out)
        session.fabric.barrier()
        saved = checkpoints(out / CHECKPOINTS)
        if saved:
            resume(session, saved[-1])
        if first:
            metrics.cut(out / metrics.FILE, session.step)
        with (
            progress(session.spec.name, run.steps, session.step, first) as bar,
            board(out / "tensorboard", session.step, run.tensorboard and first) as events,
        ):
            loop(session, out, (bar, events))
        return summary.finish(session, out, command)


def loop(session: Session, out: Path, tells: tuple[Tell, ...]) -> None:
    """Takes all steps that are left.

    Ctrl-C ends the step, writes a checkpoint and raises KeyboardInterrupt; a second one does not wait. Raises
    InputError where loss or gradient are not finite, and OSError where the disk is full.
    """
    run, saved_at = session.run, time.monotonic()

    def tell(line: Mapping[str, Any]) -> None:
        if session.first:
            metrics.append(out / metrics.FILE, line)
            for each in tells:
                each(line)

    with _interrupts() as stop:
        while session.step < run.steps:
            late = session.first and time.monotonic() - saved_at > run.save_seconds
            asked_to_save, asked_to_stop = _step(session, tell, (late, stop.is_set()))
            if session.step % run.eval_every == 0 or session.step == run.steps:
                batches = session.task.batches("validation", run.batch)
                found = judge(session.fabric, session.model, session.module, session.task, batches, run.eval_samples)
                tell({"step": session.step, **eval_line(found)})
            if asked_to_save or asked_to_stop or session.step % run.save_every == 0 or session.step == run.steps:
                metrics.force(out / metrics.FILE)
                save(session, out)
                saved_at = time.monotonic()
            if asked_to_stop:
                raise KeyboardInterrupt


def _step(session: Session, tell: Callable[[Mapping[str, Any]], None], wishes: tuple[bool, ...]) -> tuple[int, ...]:
    """One step and its line; the wishes that some process has had."""
    start = time.perf_counter()
    measured = optimise(session, wishes)
    seconds = time.perf_counter() - start
    session.seconds += seconds
    session.peak = max(session.peak, peak_bytes(session.fabric.device))
    losses = {f"loss/{name}": value for name, value in measured.losses.items()}
    line = {"step": session.step, "loss": measured.loss, "lr": measured.lr, "grad_norm": measured.grad_norm}
    speed = session.run.batch * session.task.length / seconds
    tell({**line, **losses, "tokens_per_second": round(speed, 1), "seconds": round(session.seconds, 4)})
    return measured.wishes


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """The first Ctrl-C is kept until a step has ended; the next one interrupts as ever."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.getsignal(signal.SIGINT)

    def note(_number: int, _frame: Any) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, note)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _settings(run: Run, device: torch.device) -> Iterator[None]:
    """Threads as the run says, and on the CPU sums in a fixed order; as they were when this ends."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warns, fills = (
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        torch.utils.deterministic.fill_uninitialized_memory = fills


@contextmanager
def _reporting(out: Path) -> Iterator[None]:
    """Whatever ends a run early, says which checkpoint it can go on from."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {_last(out)}; the same command goes on.") from None
    except Diverged as error:
        raise InputError(f"{error}; {_last(out)}.") from error
    except OSError as error:
        where = error.filename or out
        raise InputError(f"'{where}': {error.strerror or error}; {_last(out)}.") from error


def _last(out: Path) -> str:
    saved = checkpoints(out / CHECKPOINTS)
    return f"the last checkpoint is '{saved[-1].path}'" if saved else "there is no checkpoint yet"
