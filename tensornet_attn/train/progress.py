"""How a run is told to whoever waits: a bar on a terminal, a line now and then elsewhere; on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

Tell = Callable[[Mapping[str, Any]], None]
_SECONDS = 10.0  # between plain lines
_FIRST = 5  # steps, so that the first line comes early and knows the speed


@contextmanager
def progress(name: str, steps: int, done: int, shown: bool) -> Iterator[Tell]:
    """What takes the metrics of each step, and each validation."""
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
        left = (now - start) / max(1, step - done) * (steps - step)
        say(f"step {step}/{steps}  {words(line)}  {clock(left)} left")

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
    """A line on standard error."""
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def words(line: Mapping[str, Any]) -> str:
    """The numbers of a line that people look at.

    >>> words({"step": 3, "loss": 2.25, "tokens_per_second": 1234.5})
    'loss 2.25  1,234 tokens/s'
    """
    found = []
    for name, value in line.items():
        if name == "tokens_per_second":
            found.append(f"{value:,.0f} tokens/s")
        elif name == "loss" or name.startswith("eval_"):
            found.append(f"{name} {value:.4g}" if value is not None else f"{name} not finite")
    return "  ".join(found)


def clock(seconds: float) -> str:
    """
    >>> clock(3725)
    '1:02:05'
    """
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
