"""Rows that a bias absorbs, on Triton in the interpreter: whole, and with keys divided among programs."""

from __future__ import annotations

import pytest

from tensornet_attn.runtime.triton.kernels import region_launch
from tests.huge_biases import DESIGNS, HUGE, LEAST, check
from tests.triton.regions import on_triton


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("name", DESIGNS)
def test_values_and_gradients(name: str, parts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_launch, "blocks_for", lambda cores, target: ((16, 16, 4, 1, 160, 1),))
    monkeypatch.setattr(region_launch, "CONFIGS", {})
    monkeypatch.setattr(region_launch, "parts_for", lambda programs, blocks, processors: parts)
    assert on_triton(check(name, "triton", LEAST if parts == 1 else HUGE))


def test_values_and_gradients_of_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    test_values_and_gradients("one pass", 2, monkeypatch)
