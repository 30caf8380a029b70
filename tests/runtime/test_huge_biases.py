"""Gradients of rows that a bias absorbs, on a CPU: by blocks of queries and by C++."""

from __future__ import annotations

import pytest

from tensornet_attn.runtime.cpp import CPP_MORE
from tensornet_attn.tiles.cpp import source
from tests.huge_biases import DESIGNS, HUGE, LEAST, check
from tests.tiles.test_cpp import needs_compiler, on_cpp


@pytest.mark.parametrize("name", [name for name in DESIGNS if name != "a sum of exponentials"])  # a fused call
def test_blocks_of_queries(name: str) -> None:
    check(name, "torch", HUGE, LEAST)


@needs_compiler
@pytest.mark.parametrize("name", DESIGNS)
def test_cpp(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BLOCKS", ((4, 8),))
    monkeypatch.setenv(CPP_MORE, "-O0")
    assert on_cpp(check(name, "cpp", HUGE, LEAST))


@needs_compiler
@pytest.mark.parametrize(
    "name", ["a maximum", *(pytest.param(name, marks=pytest.mark.slow) for name in DESIGNS if name != "a maximum")]
)
def test_cpp_as_it_is_compiled_for_use(name: str) -> None:
    """Optimised code rounds the same scores in the forward and the backward: it adds in the order that is written."""
    assert on_cpp(check(name, "cpp", HUGE, LEAST))
