"""The metrics of a run: metrics.jsonl, progress in the terminal, and TensorBoard's event files."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tensornet_attn.files import write_whole

Line = dict[str, Any]
FILE = "metrics.jsonl"
Tell = Callable[[Mapping[str, Any]], None]
_SECONDS = 10.0  # between lines of progress
_FIRST = 5  # steps before the first line, which measure the speed


def read(path: Path) -> list[Line]:
    """The lines of a file up to the first incomplete line."""
    lines: list[Line] = []
    for raw_line in path.read_bytes().splitlines(keepends=True) if path.exists() else ():
        try:
            line = json.loads(raw_line) if raw_line.endswith(b"\n") else None
        except ValueError:
            break
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            break
        lines.append(line)
    return lines


def cut(path: Path, step: int) -> list[Line]:
    """Removes incomplete lines and lines after `step` from the file, and returns the remaining lines."""
    left = [line for line in read(path) if line["step"] <= step]
    if path.exists():
        write_whole(path, b"".join(map(_encoded, left)))
    return left


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Appends one line. Raises OSError if the disk is full."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        encoded = _encoded(line)
        while encoded:  # a full disk accepts a part, and raises at the next write
            encoded = encoded[os.write(handle, encoded) :]
    finally:
        os.close(handle)


def force(path: Path) -> None:
    """Syncs the file to disk, before the checkpoint of its last step."""
    if path.exists():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def median_speed(lines: list[Line]) -> float:
    """The median of tokens per second over all optimiser steps."""
    speeds = sorted(line["tokens_per_second"] for line in lines if "tokens_per_second" in line)
    return speeds[len(speeds) // 2] if speeds else math.nan


def _encoded(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"


@contextmanager
def progress(name: str, steps: int, done: int, shown: bool) -> Iterator[Tell]:
    """Yields a callback for the metrics of steps and validations, which shows a bar, or lines without a terminal."""
    if not shown:
        yield lambda line: None
    elif sys.stderr.isatty():
        with _bar(name, steps, done) as tell:
            yield tell
    else:
        yield _lines(steps, done)


def _lines(steps: int, done: int) -> Tell:
    start, last = time.monotonic(), -_SECONDS

    def tell(line: Mapping[str, Any]) -> None:
        nonlocal last
        now, step = time.monotonic(), line["step"]
        judged = "eval_loss" in line
        if not judged and (now - last < _SECONDS or step - done < _FIRST) and step < steps:
            return
        last = last if judged else now
        seconds_left = (now - start) / max(1, step - done) * (steps - step)
        say(f"step {step}/{steps}  {words(line)}  {clock(seconds_left)} left")

    return tell


@contextmanager
def _bar(name: str, steps: int, done: int) -> Iterator[Tell]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task(name, total=steps, completed=done, words="")

        def tell(line: Mapping[str, Any]) -> None:
            if "eval_loss" in line:
                bar.console.print(f"step {line['step']}/{steps}  {words(line)}", highlight=False)
            else:
                bar.update(task, completed=line["step"], words=words(line))

        yield tell


def say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def words(line: Mapping[str, Any]) -> str:
    """The main metrics of a line, for the terminal.

    >>> words({"step": 3, "loss": 2.25, "tokens_per_second": 1234.5})
    'loss 2.25  1,234 tokens/s'
    """
    phrases = []
    for name, number in line.items():
        if name == "tokens_per_second":
            phrases.append(f"{number:,.0f} tokens/s")
        elif name == "loss" or name.startswith("eval_"):
            phrases.append(f"{name} {number:.4g}" if number is not None else f"{name} not finite")
    return "  ".join(phrases)


def clock(seconds: float) -> str:
    """Formats seconds as hours, minutes and seconds.

    >>> clock(3725)
    '1:02:05'
    """
    total = round(seconds)
    return f"{total // 3600}:{total // 60 % 60:02}:{total % 60:02}"


@contextmanager
def board(folder: Path, step: int, wanted: bool) -> Iterator[Tell]:
    """Yields a callback that writes metrics to TensorBoard's event files, and purges events after `step`."""
    if not wanted:
        yield lambda line: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder), purge_step=step + 1) as writer:

        def tell(line: Mapping[str, Any]) -> None:
            for name, number in line.items():
                if name != "step" and number is not None:
                    writer.add_scalar(name.replace("eval_", "eval/", 1), number, line["step"])

        yield tell
