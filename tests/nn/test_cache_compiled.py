"""Steps with a cache under torch.compile: one graph for all positions, planned before anything is traced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.nn.test_cache import DECODED, N, axis_of, chunk_of, close, made
from tests.regions import few_of

SEEN = 3


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_room_is_not_made_while_it_is_traced() -> None:
    """A cache with tensors from the start: no call before the compiled one."""
    module = made("mhsa")
    x, cache = chunk_of(module), module.new_cache(batch=2, max_length=64)
    counter = CompileCounterWithBackend("eager")
    step = torch.compile(module, fullgraph=True, backend=counter, dynamic=True)
    with torch.no_grad():
        found = [step(x[:, :SEEN], cache=cache), *(step(x[:, at : at + 1], cache=cache) for at in range(SEEN, N))]
        close(torch.cat(found, 1), module(x))
    assert counter.frame_count == 2


@pytest.mark.parametrize("name", few_of(DECODED))
def test_one_graph_for_all_positions(name: str) -> None:
    one_graph(name, "eager")


def one_graph(name: str, backend: str) -> None:
    module = made(name)
    x, axis, cache = chunk_of(module), axis_of(module, module._signature.inputs[0][0]), module.new_cache(max_length=64)
    counter = CompileCounterWithBackend(backend)
    step = torch.compile(module, fullgraph=True, backend=counter, dynamic=True)
    with torch.no_grad():
        module(x.narrow(axis, 0, SEEN), cache=cache)
        found = [step(x.narrow(axis, SEEN, 1), cache=cache)]
        once = counter.frame_count
        found += [step(x.narrow(axis, at, 1), cache=cache) for at in range(SEEN + 1, N)]
        over = axis_of(module, module.plan.graph.output)
        close(torch.cat(found, over), module(x).narrow(over, SEEN, N - SEEN))
    assert counter.frame_count == once
    assert once == 1 or backend == "inductor"  # which may be asked twice for the first step


@pytest.mark.parametrize("name", ["gqa", "band", "fmm_fast_weight1", "thsa"])
def test_one_graph_of_some(name: str) -> None:
    one_graph(name, "eager")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mhsa", "linear"])
def test_one_graph_by_inductor(name: str) -> None:
    one_graph(name, "inductor")
