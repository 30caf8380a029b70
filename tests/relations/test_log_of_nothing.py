"""An output that is the logarithm of a sum of nothing: one number in each dtype, whatever computes it."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tests.relations.subject import BACKENDS

DESIGN = {
    "tensornet": 1,
    "name": "logarithms",
    "legs": {"n": "query", "m": "key", "f": 8, "h": "head 2", "d": 4},
    "inputs": {"x": "n f", "memory": {"legs": "m f", "default": "x"}},
    "weights": {"Wq": "f h d", "Wk": "f h d"},
    "diagram": {
        "Q": "x[n f] Wq[f h d] -> n h d",
        "K": "memory[m f] Wk[f h d] -> m h d",
        "y": {"logsumexp": "m", "of": "Q[n h d] K[m h d] -> h n m"},
    },
    "output": "y",
}


@torch.no_grad()
@pytest.mark.parametrize("backend", ["reference", "torch", "decoding", "cpp"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_one_number_in_each_dtype(backend: str, dtype: torch.dtype) -> None:
    name, options = BACKENDS[backend]
    layer, x = ta.compile(DESIGN, name, True, dtype=dtype, **options).eval(), torch.ones(1, 3, 8, dtype=dtype)
    hidden = torch.zeros(1, 3, dtype=torch.bool)
    cache, nothing = layer.new_cache(), torch.tensor(max(-1e15, torch.finfo(dtype).min / 2), dtype=dtype)
    outputs = [layer(x, key_mask=hidden)]
    outputs += [layer(x[:, :2], cache=cache, key_mask=hidden[:, :2]), layer(x[:, 2:], cache=cache, key_mask=hidden)]
    for output in outputs:
        torch.testing.assert_close(output, nothing.expand_as(output), rtol=0, atol=0)
