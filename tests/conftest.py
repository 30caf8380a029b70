"""What all tests share: one thread a worker, the same random examples each run, and no network."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Two workers on two cores: threads of torch's own would only get in each other's way. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# C++ kernels of this machine change what `auto` plans: each run has a cache of its own, shared by its workers.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="tensornet-attn-tests-")

# Of the slow tests of kernels, `make test` runs another slice each day; all workers run that of the day it began.
SLICES, LONG_SLICES = 180, {"test_region_sizes.py": 720, "test_numbers.py": 720}  # some of whose tests take a minute
PARTS = 8  # of the tests that are marked as rotated: one each day
# What is asked of every shipped design is asked of those in specs/modern on one day of as many, or, where it is rotated
# anyway, on one of four times as many. tests/parity and the tests of their words ask more of them.
MODERN = frozenset(path.stem for path in Path(__file__).resolve().parents[1].glob("specs/modern/*.yaml"))
os.environ.setdefault("TENSORNET_TEST_SLICE", str(date.today().toordinal()))

# Derandomized: a failure seen once is seen again. No deadline: a loaded machine is no failure.
SLOW = [HealthCheck.too_slow]
settings.register_profile("house", deadline=None, derandomize=True, database=None, suppress_health_check=SLOW)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--write-docs", action="store_true", help="write the outputs shown in README.md and docs/ again")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Slow tests of kernels that are in the slice of the day are not slow; rotated ones of another day are."""
    today = int(os.environ["TENSORNET_TEST_SLICE"])
    for item in items:
        slices = LONG_SLICES.get(item.path.name, SLICES)
        if item.nodeid.startswith("tests/triton/") and (zlib.crc32(item.nodeid.encode()) - today) % slices == 0:
            item.own_markers[:] = [mark for mark in item.own_markers if mark.name != "slow"]
        elif (zlib.crc32(item.nodeid.encode()) - today) % parts_of(item):
            item.add_marker(pytest.mark.slow)


def parts_of(item: pytest.Item) -> int:
    """On one day of how many `make test` runs it."""
    rotated = item.get_closest_marker("rotated") is not None
    given = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    modern = item.path.parent.name != "convert" and any(isinstance(value, str) and value in MODERN for value in given)
    if modern:
        return 4 * PARTS if rotated else PARTS
    return PARTS if rotated else 1


def pytest_collection() -> None:
    """Of the objects that collecting makes, few are garbage: no search for it while they become more."""
    gc.disable()


def pytest_unconfigure() -> None:
    """Removes the cache of this run, where it ends last."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """From now on no search for garbage goes through tests and imported modules."""
    gc.freeze()
    gc.enable()


@pytest.fixture(autouse=True, scope="session")
def _block_by_block() -> None:
    """Calls with gradients run in blocks, however small they are; `runtime/test_small_calls.py` has the others."""
    from tensornet_attn.runtime import blockwise

    blockwise.KEEP = 1 << 40


@pytest.fixture(autouse=True, scope="session")
def _no_network() -> Iterator[None]:
    connect = socket.socket.connect

    def local_only(self: socket.socket, address: Any) -> None:
        if isinstance(address, tuple) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise AssertionError(f"a test reached for the network: {address}")
        connect(self, address)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", local_only)
        yield
