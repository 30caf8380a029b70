"""NaN in C++ kernels."""

from __future__ import annotations

import pytest

from tensornet_attn.runtime.cpp import CPP_MORE
from tensornet_attn.tiles.cpp import source
from tests.not_a_number import DESIGNS, MAPS, check, mapped
from tests.tiles.test_cpp import needs_compiler, on_cpp

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "BLOCKS", ((4, 8),))
    monkeypatch.setenv(CPP_MORE, "-O0")


@pytest.mark.parametrize("name", ["a biased sum of exponentials", "a maximum", "a logarithm of a sum"])
def test_what_reduces_scores(name: str) -> None:
    test_softmax(name)


@pytest.mark.parametrize("name", DESIGNS)
def test_softmax(name: str) -> None:
    assert on_cpp(check(DESIGNS[name], "cpp"))


@pytest.mark.parametrize("text", MAPS)
def test_maps(text: str) -> None:
    assert on_cpp(check(mapped(text), "cpp", 4, 5))
