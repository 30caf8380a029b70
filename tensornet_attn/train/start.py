"""`train` and its loop, with the summary and the curves of a run."""

from __future__ import annotations

import io
import json
import os
import platform
import resource
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from itertools import accumulate
from pathlib import Path
from typing import Any, get_args

import torch

from tensornet_attn import compiler
from tensornet_attn.analyse.plots import BLUE, GREY, INK, blank, label
from tensornet_attn.errors import InputError
from tensornet_attn.files import remove_torn, write_whole
from tensornet_attn.tasks import task_named
from tensornet_attn.tasks.recipe import Measure
from tensornet_attn.tasks.task import Task
from tensornet_attn.train import metrics
from tensornet_attn.train.config import Run, RunKeys, Source, read, resolved, spec_of
from tensornet_attn.train.folder import CHECKPOINTS, checkpoints, clean, locked, resume, same_run, save, write_config
from tensornet_attn.train.metrics import Line, Tell, board, median_speed, progress, say
from tensornet_attn.train.session import Session, begin, eval_line, fabric_of, judge, need_parts
from tensornet_attn.train.step import Diverged, optimise
from tensornet_attn.version import __version__


def train(
    config: Source = None, *, out: str | os.PathLike[str], command: str | None = None, **options: RunKeys
) -> dict[str, Any]:
    """Trains a model on a task and returns the content of `OUT/summary.json`.

    `config` is a run file or a mapping, and `options` are keys that override it. The summary records `command`. A
    second call with the same arguments resumes from the last checkpoint, and does nothing if the run is finished. On a
    CPU, the losses of a resumed run equal those of an uninterrupted run bit by bit. Processes other than the first
    return an empty dict. Progress goes to standard error.

    Raises TypeError for an unknown key; DesignError and InputError for problems of run, task, model or folder;
    InputError if loss or gradient stop being finite; MissingPartError if a package is missing; KeyboardInterrupt on
    Ctrl-C, after a checkpoint.
    """
    run = read(config, options)
    need_parts(run)
    task = task_of(run)
    spec = spec_of(run, task)
    out = Path(out)
    run = same_run(resolved(run, spec, task), out)
    done = finished(run, out)
    if done is not None:
        say(f"'{out}' is finished: {done['steps']} steps.")
        return done
    fabric = fabric_of(run)
    with _settings(run, fabric.device), _reporting(out):
        fabric.launch()
        return _trained(begin(run, task, spec, fabric), out, command or shlex.join(sys.argv))


def task_of(run: Run) -> Task:
    """The task of a run, with the run's seed. Raises InputError for an unknown task, and for one that has changed."""
    task = task_named(run.task, seed=run.seed, cache=run.cache, **run.options)
    if run.task_version not in (None, task.recipe.version):
        where = "its module" if ":" in run.task else "this package"
        raise InputError(
            f"the run needs version {run.task_version} of task '{run.task}'; {where} has version {task.recipe.version}."
        )
    if run.task_samples not in (None, task.samples_hash):
        raise InputError(
            f"task '{run.task}' makes other samples than in the run, so its recipe has changed: restore it, or train "
            "again with another --out."
        )
    return task


def finished(run: Run, out: Path) -> dict[str, Any] | None:
    """The summary of a finished run; None if the run is not finished."""
    path = out / SUMMARY
    summary = json.loads(path.read_bytes()) if path.exists() else None
    return summary if summary is not None and summary["steps"] >= run.steps else None


def _trained(session: Session, out: Path, command: str) -> dict[str, Any]:
    run, first = session.run, session.first
    with locked(out, first):
        if first:
            remove_torn(out)
            (out / SUMMARY).unlink(missing_ok=True)
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
        return finish(session, out, command)


def loop(session: Session, out: Path, tells: tuple[Tell, ...]) -> None:
    """Takes all remaining steps.

    Ctrl-C finishes the step, writes a checkpoint and raises KeyboardInterrupt; a second Ctrl-C interrupts at once.
    Raises InputError if loss or gradient are not finite, and OSError if the disk is full.
    """
    run, saved_at = session.run, time.monotonic()

    def tell(line: Mapping[str, Any]) -> None:
        if session.first:
            metrics.append(out / metrics.FILE, line)
            for report in tells:
                report(line)

    with _interrupts() as stop:
        while session.step < run.steps:
            late = session.first and time.monotonic() - saved_at > run.save_seconds
            asked_to_save, asked_to_stop = _step(session, tell, (late, stop.is_set()))
            if session.step % run.eval_every == 0 or session.step == run.steps:
                batches = session.task.batches("validation", run.batch)
                score = judge(session.fabric, session.model, session.module, session.task, batches, run.eval_samples)
                tell({"step": session.step, **eval_line(score)})
            if asked_to_save or asked_to_stop or session.step % run.save_every == 0 or session.step == run.steps:
                metrics.force(out / metrics.FILE)
                save(session, out)
                saved_at = time.monotonic()
            if asked_to_stop:
                raise KeyboardInterrupt


def _step(session: Session, tell: Callable[[Mapping[str, Any]], None], wishes: tuple[bool, ...]) -> tuple[int, ...]:
    """Takes one step and reports its metrics; returns how many processes made each request of `wishes`."""
    start = time.perf_counter()
    measured = optimise(session, wishes)
    seconds = time.perf_counter() - start
    session.seconds += seconds
    session.peak = max(session.peak, peak_bytes(session.fabric.device))
    losses = {f"loss/{name}": loss for name, loss in measured.losses.items()}
    line = {"step": session.step, "loss": measured.loss, "lr": measured.lr, "grad_norm": measured.grad_norm}
    speed = session.run.batch * session.task.length / seconds
    tell({**line, **losses, "tokens_per_second": round(speed, 1), "seconds": round(session.seconds, 4)})
    return measured.wishes


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """Sets an event at the first Ctrl-C; the second Ctrl-C interrupts at once."""
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
    """Sets the run's torch threads, and deterministic algorithms on the CPU, and restores both at the end."""
    threads, strict = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    deterministic: Any = torch.utils.deterministic  # has its attribute at run time only
    fills = deterministic.fill_uninitialized_memory
    if run.threads is not None:
        torch.set_num_threads(run.threads)
    if device.type == "cpu":
        torch.use_deterministic_algorithms(True)
        deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(strict, warn_only=warns)
        deterministic.fill_uninitialized_memory = fills


@contextmanager
def _reporting(out: Path) -> Iterator[None]:
    """Adds the last checkpoint, from which the run can resume, to the message of an error."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"interrupted; {_last_checkpoint(out)}; the same command resumes the run.") from None
    except Diverged as error:
        raise InputError(f"{error}; {_last_checkpoint(out)}.") from error
    except OSError as error:
        where = error.filename or out
        raise InputError(f"'{where}': {error.strerror or error}; {_last_checkpoint(out)}.") from error


def _last_checkpoint(out: Path) -> str:
    saved = checkpoints(out / CHECKPOINTS)
    return f"the last checkpoint is '{saved[-1].path}'" if saved else "there is no checkpoint yet"


SUMMARY, CURVES = "summary.json", "curves.svg"
_SPAN = 50  # maximum steps of the moving average, which is a fiftieth of the run


def finish(session: Session, out: Path, command: str) -> dict[str, Any]:
    """Writes the summary and the curves on the first process and returns the summary; others return an empty dict."""
    summary: dict[str, Any] = {}
    if session.first:
        lines = metrics.read(out / metrics.FILE)
        summary = summary_of(session, lines, command)
        draw(lines, f"{session.spec.name} on {session.task.name}", out / CURVES)
        write_whole(out / SUMMARY, json.dumps(summary, indent=2, ensure_ascii=False).encode() + b"\n")
    session.fabric.barrier()
    return summary


def summary_of(session: Session, lines: list[Line], command: str) -> dict[str, Any]:
    """The summary: final validation, parameters, MACs per token, speed, memory, device, command and versions."""
    task, spec = session.task, session.spec
    judged = [line for line in lines if "eval_loss" in line]
    fitted_designs = (fitted for blocks in spec.stacks.values() for block in blocks for fitted in block.values())
    designs = {fitted.design.name: compiler.hash_of(fitted.design, fitted.causal) for fitted in fitted_designs}
    packages = {name: metadata.version(name) for name in ("torch", "lightning-fabric")}
    return {
        "task": session.run.task,
        "options": session.run.options,
        "model": spec.name,
        "designs": list(designs),
        "design_hashes": designs,
        "seed": session.run.seed,
        "steps": session.step,
        "parameters": sum(parameter.numel() for parameter in session.model.parameters() if parameter.requires_grad),
        "macs_per_token": spec.cost(n=task.length).macs / task.length,  # as planned, forward
        "peak_memory_bytes": session.peak,
        "tokens_per_second": median_speed(lines),
        "seconds": session.seconds,
        "eval": {name: metric for name, metric in judged[-1].items() if name.startswith("eval_")},
        "processes": session.share.world,
        "device": str(session.fabric.device),
        "command": command,
        "versions": {"tensornet-attn": __version__, "python": platform.python_version(), **packages},
    }


def peak_bytes(device: torch.device) -> int:
    """Peak memory in bytes: of the CUDA allocator on a GPU, otherwise of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def draw(lines: list[Line], title: str, path: Path) -> None:
    """Writes an SVG with curves of loss and validation loss, validation accuracies, and perplexity or bits."""
    rates = sorted({name for line in lines for name in line if name.startswith("eval_accuracy")})
    units = sorted({f"eval_{unit}" for unit in get_args(Measure)} & {name for line in lines for name in line})
    panels = (
        ["loss, nats"]
        + ["validation accuracy"] * bool(rates)
        + [unit.removeprefix("eval_").replace("_", " ") for unit in units]
    )
    figure = blank(1 + 3.5 * len(panels) if rates else 5, 3.2)
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    steps, losses = _points(lines, "loss")
    axes[0].plot(steps, losses, color=GREY, linewidth=0.6, alpha=0.6, label="training")
    axes[0].plot(steps, _smooth(losses), color=INK, linewidth=1.4, label="training, running mean")
    axes[0].plot(*_points(lines, "eval_loss"), color=BLUE, marker="o", markersize=3, label="validation")
    for rate in rates:
        name = rate.removeprefix("eval_")
        axes[1].plot(*_points(lines, rate), color=BLUE if name == "accuracy" else None, marker="o", ms=3, label=name)
    for axis, unit in zip(reversed(axes), reversed(units), strict=False):
        axis.plot(*_points(lines, unit), color=BLUE, marker="o", markersize=3, label="validation")
    for axis, what in zip(axes, panels, strict=True):
        label(axis, "", "step", what)
        axis.spines[["top", "right"]].set_visible(False)
        axis.legend(fontsize=7, frameon=False)
    figure.suptitle(title, fontsize=10, color=INK)
    picture = io.BytesIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    write_whole(path, picture.getvalue())


def _points(lines: list[Line], name: str) -> tuple[list[int], list[float]]:
    points = [(line["step"], line[name]) for line in lines if line.get(name) is not None]
    return [step for step, _ in points], [number for _, number in points]


def _smooth(values: list[float]) -> list[float]:
    """The moving average over each value and those before it."""
    span = max(1, min(_SPAN, len(values) // 50))
    sums = list(accumulate(values, initial=0.0))
    starts = [max(0, index + 1 - span) for index in range(len(values))]
    return [(sums[index + 1] - sums[start]) / (index + 1 - start) for index, start in enumerate(starts)]
