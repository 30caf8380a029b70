"""NaN in Triton kernels, in the interpreter."""

from __future__ import annotations

import pytest

from tests.not_a_number import DESIGNS, MAPS, check, mapped
from tests.triton.regions import on_triton, small_blocks

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, in the interpreter


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", DESIGNS)
def test_softmax(name: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, parts)
    assert on_triton(check(DESIGNS[name], "triton", 3, 20))


def test_a_maximum(monkeypatch: pytest.MonkeyPatch) -> None:
    test_softmax("a maximum", 2, monkeypatch)


@pytest.mark.parametrize("text", MAPS)
def test_maps(text: str) -> None:
    assert on_triton(check(mapped(text), "triton", 3, 4))
