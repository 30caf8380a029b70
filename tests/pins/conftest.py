"""Pins: what today's behaviour is, as lines in `data/`; `pytest tests/pins --write-pins` writes them again."""

from __future__ import annotations

import pytest

from tests.pins.pinned import Pinned


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-pins", action="store_true", help="write tests/pins/data/ again (run with -n 0)")


@pytest.fixture(scope="session")
def pinned(request: pytest.FixtureRequest) -> Pinned:
    write = request.config.getoption("write_pins", default=False)
    if write and hasattr(request.config, "workerinput"):
        raise pytest.UsageError("workers would lose each other's pins: write them with -n 0.")
    return Pinned(write=write)
