"""What all tests share: one thread a worker, the same random examples each run, and no network."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from itertools import compress
from operator import not_
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

from tests.kinds import MODERN, STAND_FOR_THEIR_KIND

# Two workers on two cores: threads of torch's own would only get in each other's way. Set before torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# C++ kernels of this machine change what `auto` plans: each run has a cache of its own, shared by its workers.
if "PYTEST_XDIST_WORKER" not in os.environ:
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="tensornet-attn-tests-")

# Derandomized: a failure seen once is seen again. No deadline: a loaded machine is no failure.
SLOW = [HealthCheck.too_slow]
settings.register_profile("house", deadline=None, derandomize=True, database=None, suppress_health_check=SLOW)
settings.load_profile("house")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--shard", metavar="K/N", help="run part K of N of the tests; names alone say what is in it")
    parser.addoption("--write-docs", action="store_true", help="write the outputs shown in README.md and docs/ again")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of a modern design for which another one stands are slow; `--shard` leaves its own tests."""
    for item in items:
        if designs_of(item) & MODERN - STAND_FOR_THEIR_KIND and item.path.parent.name != "convert":
            item.add_marker(pytest.mark.slow)
    if shard := config.getoption("shard"):
        place, count = map(int, shard.split("/"))
        own = [crc32(item.nodeid.partition("[")[0].encode()) % count == place % count for item in items]
        config.hook.pytest_deselected(items=list(compress(items, map(not_, own))))
        items[:] = compress(items, own)


def designs_of(item: pytest.Item) -> set[str]:
    """The texts among the parameters of a test: a design's name is one of them."""
    values = item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
    return {value for value in values if isinstance(value, str)}


def pytest_collection() -> None:
    """Of the objects that collecting makes, few are garbage: no search for it while they become more."""
    gc.disable()


def pytest_unconfigure() -> None:
    """Removes the cache of this run, where it ends last."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["XDG_CACHE_HOME"], ignore_errors=True)


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """From now on no search for garbage goes through tests and imported modules, and there are fewer of them."""
    gc.set_threshold(10_000)
    gc.freeze()
    gc.enable()


@pytest.fixture
def in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls with gradients run in blocks, however small they are; small ones of users keep their maps."""
    from tensornet_attn.runtime import blockwise

    monkeypatch.setattr(blockwise, "KEEP", 1 << 40)


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
