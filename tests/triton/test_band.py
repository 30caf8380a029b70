"""Softmax within a band in Triton, in the interpreter: no kernel of its own, but blocks beyond the band left out."""

from __future__ import annotations

import re

import pytest
import torch

import tensornet_attn as ta
from tests.plan.blockwise_cases import design
from tests.triton.agreement import SIZES
from tests.triton.regions import draw, on_triton, pair, same

REACHES = [(0, 0), (4, 0), (9, 9), (17, 2), (4, -2), (-1, 3), (300, 300)]
LENGTHS = [(1, 1), (17, 17), (5, 40), (40, 5), (70, 70)]
ROUGH = {torch.float64: 1e-10, torch.float32: 1e-4, torch.float16: 2e-2}


def banded(left: int, right: int, **legs: int):
    """A design whose queries see from `left` keys ahead of them to `right` past them."""
    return ta.load(design(box={"mask": [f"window({left}, {right})"]}), legs=legs)


@pytest.mark.parametrize(("left", "right"), REACHES)
@pytest.mark.parametrize(("n", "m"), LENGTHS)
def test_values_and_gradients(n: int, m: int, left: int, right: int) -> None:
    ours, oracle = pair(banded(left, right))
    assert on_triton(ours)
    same(ours, oracle, [draw(2, n, 6), draw(2, m, 6, seed=1)])


@pytest.mark.parametrize(("left", "right"), [(9, 9), (40, 0)])
def test_many_blocks(left: int, right: int) -> None:
    ours, oracle = pair(banded(left, right, d=16))
    same(ours, oracle, [draw(1, 130, 6), draw(1, 130, 6, seed=1)])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ROUGH)
@pytest.mark.parametrize(("n", "d", "e"), SIZES)
def test_every_size(n: int, d: int, e: int, dtype: torch.dtype) -> None:
    ours, oracle = pair("band", dtype, legs={"f": e + 1, "h": 2, "d": d}, settings={"k": 2 * (n % 3) * 8 + 5})
    same(ours, oracle, [draw(1, n, e + 1)], ROUGH[dtype])


def test_masks_of_the_call_are_read_by_the_kernels() -> None:
    ours, oracle = pair(banded(4, 1))
    inputs = [draw(2, 20, 6), draw(2, 20, 6, seed=1)]
    keep = draw(2, 20, seed=2) > 0
    for mask in (keep, torch.zeros_like(keep)):
        same(ours, oracle, inputs, key_mask=mask)
    same(ours, oracle, inputs, mask=draw(20, 20, seed=3) > 0)


def test_loops_begin_at_the_band() -> None:
    """Where the first key that is seen stands, and not where the block it would be in begins."""
    source = ta.emit_source(banded(4, 1), backend="triton")
    found = re.findall(r"tl\.maximum\(first [+-] \(m_end - n_end\) - \d+, 0\),", source)
    assert len(found) == 3  # forward, rows, keys


def test_what_has_no_tiles_is_banded_by_torch() -> None:
    """Kernels need the name 'lead' for something else than a leg."""
    spelt = ta.load("band", legs={"f": 6, "h": 2}).to_yaml()
    ours, oracle = pair(re.sub(r"\bd\b", "lead", spelt))
    told = next(region for region in ours.plan.regions if region.name == "A.o")
    assert (told.backend, told.chosen[:16]) == ("torch", "banded attention")
    same(ours, oracle, [draw(2, 90, 6)])
