"""Rows that a bias absorbs, on Triton in the interpreter: whole, and with keys divided among programs."""

from __future__ import annotations

import pytest

from tests.huge_biases import DESIGNS, HUGE, LEAST, check
from tests.triton.regions import on_triton, small_blocks


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", DESIGNS)
def test_values_and_gradients(name: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    small_blocks(monkeypatch, parts)
    assert on_triton(check(name, "triton", LEAST if parts == 1 else HUGE))


def test_values_and_gradients_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    test_values_and_gradients("one pass", 2, monkeypatch)
