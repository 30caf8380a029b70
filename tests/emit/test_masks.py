"""The masks of emitted code: made once for boxes that see the same, apart for boxes that do not."""

from __future__ import annotations

import re
from typing import Any
from unittest.mock import patch

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.runtime import softmax
from tests.agreement import modules
from tests.random_call import F64

DESIGN: dict[str, Any] = {
    "tensornet": 1,
    "name": "one",
    "legs": {"n": "query", "m": "key", "f": 4},
    "inputs": {"x": "n f", "z": "m f"},
    "output": "y",
}


def masks_of(source: str) -> list[str]:
    """The lines that make masks, in order; the backward of a block makes those of its forward again."""
    forward = source.partition("@block_gradient(")[0]
    return re.findall(r"^ +(\w+, \w+ = visible\(.*\))$", forward, re.MULTILINE)


def compare(diagram: dict[str, Any], **options: torch.Tensor) -> str:
    module, _ = modules = [
        ta.compile(DESIGN | {"diagram": diagram}, backend, dtype=F64) for backend in ("torch", "reference")
    ]
    x, z = torch.randn(2, 5, 4, dtype=F64), torch.randn(2, 5, 4, dtype=F64)
    torch.testing.assert_close(*(each(x, z, **options) for each in modules))
    return module.source


def test_boxes_that_see_the_same_share_a_mask() -> None:
    diagram = {
        "A": {"softmax": "m", "mask": ["band(2)"], "of": "x[n f] z[m f] -> n m"},
        "B": {"normalize": "m", "of": {"map": "exp", "of": "A"}, "mask": "band(2)"},
        "C": {"keep": "m", "of": "B"},
        "y": "C[n m] z[m f] -> n f",
    }
    assert masks_of(compare(diagram, mask=torch.rand(5, 5) < 0.5)) == [
        "keep, bias = visible(band_rows(rows, 2), mask, key_mask, len(rows.batch), 0)",
        "keep_2, _ = visible(None, mask, key_mask, len(rows.batch), 0)",
    ]


def test_beside_fast_weights_only_key_masks_act_and_rows_differ_from_matrices() -> None:
    diagram = {
        "A": {"softmax": "m", "of": "x[n f] z[m f] -> n m"},
        "B": {"mean": "m", "of": {"keep": "m", "of": "A"}},
        "C": {"mean": "m", "of": {"mean": "f", "of": "z"}},
        "D": {
            "delta_rule": "m",
            "query": "x",
            "key": "z",
            "value": {"max": "f", "of": "z"},
            "rate": {"mean": "f", "of": "z"},
        },
        "y": "x[n f] B[n] C[] D[n] -> n f",
    }
    source = compare(diagram, key_mask=torch.tensor([[True, True, False, True, False]] * 2))
    assert "def forward(self, x: Tensor, z: Tensor, *, key_mask: Tensor | None = None) -> Tensor:" in source
    assert masks_of(source) == [
        "keep, _ = visible(None, None, key_mask, max(x.ndim, z.ndim) - 2, 0, False)",
        "keep, bias = visible(None, mask, key_mask, len(rows.batch), 0)",  # of a block, which is given no mask
    ]


def test_weights_alone_become_batched_under_a_mask() -> None:
    diagram = {"A": {"softmax": "m", "of": "W[n m]"}, "y": "A[n m] z[m f] + x[n f] -> n f"}
    legs = {"n": "query 9", "m": "key 9", "f": 4}
    data = DESIGN | {"diagram": diagram, "legs": legs, "weights": {"W": "n m"}}
    oracle, module = modules(data)
    x, z = torch.randn(2, 5, 4, dtype=F64), torch.randn(2, 7, 4, dtype=F64)
    keys = torch.rand(2, 7) < 0.6
    torch.testing.assert_close(module(x, z, key_mask=keys), oracle(x, z, key_mask=keys))


def test_inputs_of_different_numbers_of_legs_broadcast_their_batches() -> None:
    data = DESIGN | {"inputs": {"x": "n f", "b": "m", "z": "m f"}, "legs": {"n": "query", "m": "key", "f": 32}}
    data["diagram"] = {"A": {"softmax": "m", "of": "x[n f] z[m f] + b[m] -> n m"}, "y": "A[n m] z[m f] -> n f"}
    module, oracle = (ta.compile(data, backend, dtype=F64) for backend in ("torch", "reference"))
    assert "max(max(x.ndim, z.ndim) - 2, b.ndim - 1)" in module.source
    mask = torch.rand(3, 2, 5, 6) < 0.6
    for batches in (((3, 2), (2,), ()), ((2,), (3, 2), (1, 1))):
        shapes = zip(batches, ((5, 32), (6,), (6, 32)), strict=True)
        inputs = [torch.randn(*batch, *legs, dtype=F64) for batch, legs in shapes]
        torch.testing.assert_close(module(*inputs, mask=mask), oracle(*inputs, mask=mask))


@pytest.mark.parametrize(("mask", "longest"), [("window(3, 0)", 4), (["causal", "band(2)"], 3), ("window(3, 1)", 0)])
def test_a_window_that_a_call_fits_into_is_causal_attention(mask: Any, longest: int) -> None:
    diagram = {"A": {"softmax": "m", "mask": mask, "of": "x[n f] z[m f] -> n m"}, "y": "A[n m] z[m f] -> n f"}
    module = ta.compile(DESIGN | {"diagram": diagram}, "torch", dtype=F64, n=4)
    other = ta.reference(DESIGN | {"diagram": diagram}).double()
    for n, m in ((1, 4), (2, 2), (3, 3), (4, 4), (2, 4), (5, 3), (5, 5), (6, 9)):
        x, z = (torch.randn(2, rows, 4, dtype=F64, requires_grad=True) for rows in (n, m))
        for key_mask in (None, torch.rand(2, m) < 0.7):
            with patch.object(softmax, "fused_attention", wraps=softmax.fused_attention) as call:
                y = module(x, z, key_mask=key_mask)
            if key_mask is None and n == m > 1:
                *_, mask_given, _, _, causal, _, _ = call.call_args.args
                assert (mask_given is None) == causal == (m <= longest)
            wanted = other(x, z, key_mask=key_mask)
            torch.testing.assert_close(y, wanted)
            torch.testing.assert_close(*(torch.autograd.grad(one.square().sum(), (x, z)) for one in (y, wanted)))
