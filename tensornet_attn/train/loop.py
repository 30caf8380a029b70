"""The loop over steps: metrics, validations, checkpoints, and an end in good order."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensornet_attn.train import metrics
from tensornet_attn.train.feed import eval_line, judge
from tensornet_attn.train.metrics import Tell
from tensornet_attn.train.save import save
from tensornet_attn.train.session import Session
from tensornet_attn.train.step import optimise
from tensornet_attn.train.summary import peak_bytes


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
