"""Tiles that C++ kernels store between two passes: fewer queries or threads where memory is short, the same results."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

import tensornet_attn as ta
from tensornet_attn.runtime import native
from tests.random_call import F64, same_results
from tests.tiles.test_cpp import SINK_AND_TABLE, compared, needs_compiler
from tests.tiles.test_running import OF_MAPS

pytestmark = needs_compiler


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The threads and the queries of a block of each call."""
    found, plain = [], native.CppCall.workers

    def watched(self: native.CppCall, name: str, whole: bool) -> tuple[int, int]:
        found.append(plain(self, name, whole))
        return found[-1]

    monkeypatch.setattr(native.CppCall, "workers", watched)
    return found


def agree(oracle: nn.Module, module: nn.Module) -> None:
    x = torch.randn(2, 300, 12, generator=torch.Generator().manual_seed(1), dtype=F64)
    keep = torch.rand(2, 300, 300, generator=torch.Generator().manual_seed(2)) < 0.7
    keep[:, 3] = False
    for options in ({}, {"mask": keep}):
        same_results(module, oracle, [x], options)


@pytest.mark.parametrize("memory", ["none", "little", "much"])
def test_short_memory_takes_fewer_queries_and_threads(
    memory: str, monkeypatch: pytest.MonkeyPatch, taken: list[tuple[int, int]]
) -> None:
    monkeypatch.setattr(native, "free_memory", lambda: {"none": 0, "little": 1 << 22, "much": 1 << 40}[memory])
    monkeypatch.setattr(native, "STORED", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    agree(*compared(OF_MAPS, device_costs="generic"))
    wanted = {"none": {(1, 1)}, "little": {(1, 8), (3, 8)}, "much": {(3, 8)}}  # the forward stores fewer tiles
    assert {*taken} == wanted[memory]


def test_the_limit_of_the_plan_counts(taken: list[tuple[int, int]]) -> None:
    """A call longer than the planned one takes what the plan left."""
    oracle, module = compared(SINK_AND_TABLE, n=16, memory="200kB")
    agree(oracle, module)
    assert {threads for threads, _ in taken} == {1}
    assert min(queries for _, queries in taken) < 8


def test_unknown_memory_is_no_limit(monkeypatch: pytest.MonkeyPatch, taken: list[tuple[int, int]]) -> None:
    monkeypatch.setattr(native, "free_memory", lambda: None)
    monkeypatch.setattr(native, "STORED", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    agree(*compared(SINK_AND_TABLE))
    assert {*taken} == {(3, 8)}


def test_a_call_of_one_thread_leaves_those_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS takes one thread too, which no other Python thread can see."""
    _, module = compared(SINK_AND_TABLE, n=16, memory="200kB")
    x, every, seen = torch.zeros(300, 12, dtype=F64), torch.get_num_threads(), []

    def call(*_: object) -> None:
        module(x)
        seen.append(torch.get_num_threads())

    torch.set_num_threads(2)
    monkeypatch.setattr(torch, "set_num_threads", lambda _: pytest.fail("the number of all threads is changed"))
    try:
        threads = [threading.Thread(target=call) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        monkeypatch.undo()
        torch.set_num_threads(every)
    assert seen == [2, 2, 2]


def test_without_memory_an_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ta.compile(ta.load(SINK_AND_TABLE), "cpp", dtype=F64)
    monkeypatch.setattr(native.CppCall, "workers", lambda *_: (1, 1 << 45))
    with pytest.raises(MemoryError, match=r"no memory for the tiles of 1 threads and 70 keys; free some memory"):
        module(torch.zeros(70, 12, dtype=F64))
