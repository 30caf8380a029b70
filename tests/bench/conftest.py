"""Command lines run in this process, as in tests/cli; measurements are short."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from tensornet_attn.bench import machine, measure, rates
from tests.cli.conftest import run

__all__ = ["run"]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rates are those of small products, and no search for garbage goes through what earlier tests have left."""
    monkeypatch.setattr(measure, "gc", SimpleNamespace(collect=lambda: 0, disable=gc.disable, enable=gc.enable))
    monkeypatch.setitem(machine.SECONDS, "cpu", 0.01)
    monkeypatch.setitem(rates.WORK, "cpu", 2**18)
