"""One compiled text for all dtypes and masks of a layer."""

from __future__ import annotations

from functools import partial
from itertools import product

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.nn import runs
from tests.refusals import refusal

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
MASKS = (
    {},
    {"key_mask": torch.arange(5) < torch.tensor([[3], [5]])},
    {"mask": torch.ones(5, 5).tril() > 0},
    {"mask": torch.ones(5, 5).tril()},
)


@pytest.fixture(autouse=True)
def _eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Traces without the compiler behind it, which takes seconds for each call."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


def layer(backend: str, dtype: torch.dtype) -> ta.CompiledDesign:
    torch.manual_seed(0)
    return ta.compile(ta.load("mhsa", legs={"f": 8, "h": 2}), backend, dtype=dtype)


@pytest.mark.filterwarnings("ignore:.*holds only 0 and 1")
def test_three_dtypes_with_all_kinds_of_masks() -> None:
    for dtype, options in product(DTYPES, MASKS):
        x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
        options = {name: mask.to(dtype) if mask.is_floating_point() else mask for name, mask in options.items()}
        y, wanted = (layer(backend, dtype)(x, **options) for backend in ("inductor", "torch"))
        torch.testing.assert_close(y, wanted)


def test_too_many_kinds_of_calls_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "COMPILATIONS", 2)
    for dtype in DTYPES[:2]:
        layer("inductor", dtype)(torch.zeros(2, 5, 8, dtype=dtype))
    assert refusal(layer("inductor", DTYPES[2]), torch.zeros(2, 5, 8, dtype=DTYPES[2])) == (
        "mhsa: torch.compile has compiled this layer too often: give calls fewer dtypes, kinds of masks and numbers of "
        "batch dimensions, or compile with backend='torch'."
    )
