"""The learning rate of a step, a function of its number alone."""

from __future__ import annotations

import math

from tensornet_attn.train.config import Run


def rate(run: Run, step: int) -> float:
    """The learning rate of a step, counted from 1: a straight rise, then what the schedule says.

    >>> run = Run(task="copy", design="mhsa", steps=300, warmup=100, lr=1.0)
    >>> [round(rate(run, step), 3) for step in (1, 100, 200, 300)]
    [0.01, 1.0, 0.5, 0.0]
    """
    if step <= run.warmup:
        return run.lr * step / run.warmup
    if run.schedule == "constant":
        return run.lr
    done = (step - run.warmup) / max(1, run.steps - run.warmup)
    left = (1 + math.cos(math.pi * done)) / 2 if run.schedule == "cosine" else 1 - done
    return run.min_lr + (run.lr - run.min_lr) * left
