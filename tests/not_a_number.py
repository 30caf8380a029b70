"""NaN of visible data comes out as NaN, of hidden data not at all: in kernels a maximum may drop it."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from tests.agreement import modules
from tests.huge_biases import DESIGNS as BIASED
from tests.huge_biases import extended
from tests.ops.test_softmax import PLAIN
from tests.random_call import F64, assert_same, results


def mapped(text: str) -> dict[str, Any]:
    return extended("mhsa", A={"softmax": "m", "of": {"map": text, "of": PLAIN}})


LOG = extended("mhsa", L={"logsumexp": "m", "of": BIASED["one pass"]["diagram"]["A"]["of"]})
LOG["diagram"] |= {"y": "A[h n m] V[m h d] Wo[h d f] + L[h n] Wl[h f] -> n f"}
DESIGNS = BIASED | {"a logarithm of a sum": LOG | {"weights": {"Wl": "h f"}}}
MAPS = ("relu", "relu_squared", "elu", "clamp(-1, 1)", "hardsigmoid", "logsigmoid")


def check(design: dict[str, Any], backend: str, n: int = 20, m: int = 11) -> nn.Module:
    """NaN in a query, and in a key that a mask shows or hides; returns the compiled module."""
    oracle, module = modules(design, backend)
    draw = torch.Generator().manual_seed(0)
    x, memory = (torch.randn(1, length, 6, generator=draw, dtype=F64) for length in (n, m))
    keys = torch.arange(m)[None] != m - 1
    wanted = results(oracle, [x, memory], {"key_mask": keys})
    bad = memory.masked_fill(~keys[..., None], torch.nan)
    assert_same(results(module, [x, bad], {"key_mask": keys}), wanted)
    assert module(x, bad).isnan().all()
    bad = x.clone()
    bad[0, 2, 0] = torch.nan
    found = module(bad, memory, key_mask=keys)
    assert found[0, 2].isnan().all()
    found[0, 2] = wanted["output"][0, 2]
    torch.testing.assert_close(found, wanted["output"])
    (gradient,) = torch.autograd.grad(module(bad, memory).sum(), [module.get_parameter("Wq")])
    assert gradient.isnan().any()
    return module
