"""What all tests share: one thread a worker, the same random examples each run, and no network."""

from __future__ import annotations

import gc
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

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
    parser.addoption("--write-docs", action="store_true", help="write the outputs shown in README.md and docs/ again")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    """Tests of a modern design for which another one stands are slow; a model to convert is another thing."""
    for item in items:
        values = (
            item.callspec.params.values() if isinstance(item, pytest.Function) and hasattr(item, "callspec") else ()
        )
        designs = MODERN.intersection(value for value in values if isinstance(value, str))
        if designs - STAND_FOR_THEIR_KIND and item.path.parent.name != "convert":
            item.add_marker(pytest.mark.slow)


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
