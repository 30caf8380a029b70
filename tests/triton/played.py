"""A GPU that is played, with a clock of the test's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def play(monkeypatch: pytest.MonkeyPatch, clock: Callable[[], float]) -> None:
    """From now on there is a GPU called "played", whose events are at the milliseconds of the clock."""

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self) -> None:
            self.at = clock()

        def synchronize(self) -> None: ...

        def elapsed_time(self, end: Event) -> float:
            return end.at - self.at

    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "played")
    monkeypatch.setattr("torch.cuda.Event", Event)
