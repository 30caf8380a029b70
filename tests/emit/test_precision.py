"""Kernels read operands in the precision that they compute in, hidden ones as well."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta

DIAGRAM = {
    "u": {"map": "softplus", "of": "-1 * x[n f] Wf[f h] - bf[h] -> n h"},
    "g": "-1 * u[m h] -> m h",
    "z": "B[h n m] u[m h] -> n h",
    "y": "A[h n m] V[m h d] Wo[h d f] + z[n h] Wc[h f] -> n f",
}


@pytest.mark.parametrize("masks", [[], ["window(3, 0)"]], ids=str)
def test_attention_narrows_hidden_values_that_are_kept_wide(masks: list[str]) -> None:
    """Logarithmic decays are kept in float32 for their sums; here an attention in bfloat16 reads them as values."""
    attention = {"softmax": "m", "mask": masks, "of": "Q[n h d] K[m h d] -> h n m"}
    data = {"tensornet": 1, "name": "levels", "extends": "fox", "legs": {"f": 16, "h": "head 2"}}
    design = ta.load(data | {"weights": {"Wc": "h f"}, "diagram": {"B": attention, **DIAGRAM}})
    module = ta.compile(design, "torch", n=64).bfloat16()
    reference = ta.reference(design, dtype=torch.float64)
    reference.load_state_dict(module.state_dict())
    x = torch.randn(2, 64, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    key_mask = (torch.arange(64) > 2).expand(2, 64)
    found, expected = module(x, key_mask=key_mask), reference(x.double(), key_mask=key_mask)
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=0.02 * expected.abs().max().item())
