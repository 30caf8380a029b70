"""Command lines run in this process, as in tests/cli."""

from __future__ import annotations

from tests.cli.conftest import run

__all__ = ["run"]
