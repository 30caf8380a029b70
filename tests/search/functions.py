"""Tasks for tests, as a user writes them: each gives a quality from the design alone, and some are hard to survive."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tensornet_attn.spec import Design


def quality(design: Design, seed: int = 0) -> float:
    """A number from 0 to 1 that the design's form and the seed decide."""
    return (int(design.hash[:8], 16) + 1_000_003 * seed) % 1000 / 1000


def unhurried(design: Design, seed: int, folder: Path) -> float:
    """The same after 0.2 s; each call is counted in its folder."""
    time.sleep(0.2)
    with (folder / "calls").open("a") as file:
        file.write("x")
    return quality(design, seed)


def by_rate(design: Design, rate: float) -> float:
    """Best at a learning rate of 0.002; not finite above 0.003."""
    return float("nan") if rate > 3e-3 else 1 - abs(rate - 2e-3)


def raises(design: Design) -> float:
    raise RuntimeError("the lights went out")


RAISED = f"RuntimeError: the lights went out (functions.py:{raises.__code__.co_firstlineno + 1})"


def raises_for_linear(design: Design) -> float:
    return raises(design) if design.name.startswith("linear") else quality(design)


def dies(design: Design) -> float:
    """Ends its process as a bug in a library does."""
    print("about to fall", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)
    return 0.0


def killed(design: Design) -> float:
    """Ends its process as the system does where memory runs out."""
    os.kill(os.getpid(), signal.SIGKILL)
    return 0.0


def sleeps(design: Design) -> float:
    time.sleep(600)
    return 0.0


def grows(design: Design) -> float:
    """Takes memory until it is stopped."""
    held = []
    while True:
        held.append(bytearray(1 << 24))
        time.sleep(0.01)


def text(design: Design) -> str:
    return "good"
