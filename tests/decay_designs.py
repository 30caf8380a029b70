"""Recurrences whose states decay, as others wrote them in the language, and as loops over positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tensornet_attn as ta

HEAD = {"tensornet": 1, "causal": True, "output": "y", "constants": {"one": {"legs": "n", "value": "ones"}}}
LEGS = {"n": "query", "m": "key", "f": 6, "h": "head 3", "d": 2}
CUMULATED = {"sum": "m", "of": "l[m h] one[n] -> n m h"}  # c of n: the sum of l up to n

RG_LRU: dict[str, Any] = HEAD | {  # Griffin (De et al. 2024), eq. 1 to 4: a channel is a head
    "name": "rg_lru",
    "legs": {"n": "query", "m": "key", "f": 6, "h": "head 6"},
    "inputs": {"x": "m f"},
    "weights": {"Wx": "f h", "Wa": "f h", "Wi": "f h", "rate": "h"},
    "diagram": {
        "r": {"map": "sigmoid", "of": "x[m f] Wa[f h] -> m h"},
        "i": {"map": "sigmoid", "of": "x[m f] Wi[f h] -> m h"},
        "speed": {"map": "softplus", "of": "rate"},
        "l": "-8 * speed[h] r[m h] -> m h",
        "s": {"map": "exp", "of": "2 * l[m h] -> m h"},
        "u": {"map": "sqrt", "of": "1.0001 - s[m h] -> m h"},
        "v": "x[m f] Wx[f h] -> m h",
        "w": "u[m h] i[m h] -> m h",
        "g": "w[m h] v[m h] -> m h",
        "c": CUMULATED,
        "D": {"map": "exp", "of": "c[n h] - c[m h] -> h n m"},
        "A": {"keep": "m", "of": "D"},
        "y": "A[h n m] g[m h] -> n h",
    },
}
MAMBA: dict[str, Any] = HEAD | {  # Mamba 2 (Dao and Gu 2024), with one decay for each head
    "name": "mamba",
    "legs": LEGS | {"s": 4},
    "inputs": {"x": "m f"},
    "weights": {"Wx": "f h d", "Wb": "f s", "Wc": "f s", "Wt": "f h", "rate": "h"},
    "diagram": {
        "B": "x[m f] Wb[f s] -> m s",
        "C": "x[n f] Wc[f s] -> n s",
        "V": "x[m f] Wx[f h d] -> m h d",
        "t": {"map": "softplus", "of": "x[m f] Wt[f h] -> m h"},
        "speed": {"map": "exp", "of": "rate"},
        "l": "-speed[h] t[m h] -> m h",
        "c": CUMULATED,
        "S": "C[n s] B[m s] -> n m",
        "D": {"map": "exp", "of": "c[n h] - c[m h] -> h n m"},
        "DS": "D[h n m] S[n m] -> h n m",
        "A": {"keep": "m", "of": "DS[h n m] t[m h] -> h n m"},
        "y": "A[h n m] V[m h d] -> n h d",
    },
}
GLA: dict[str, Any] = HEAD | {  # gated linear attention (Yang et al. 2023) with one gate for each head
    "name": "gla",
    "legs": LEGS,
    "inputs": {"x": "m f"},
    "weights": {"Wq": "f h d", "Wk": "f h d", "Wv": "f h d", "Wg": "f h"},
    "diagram": {
        "Q": "x[n f] Wq[f h d] -> n h d",
        "K": "x[m f] Wk[f h d] -> m h d",
        "V": "x[m f] Wv[f h d] -> m h d",
        "l": {"map": "log", "of": {"map": "sigmoid", "of": "x[m f] Wg[f h] -> m h"}},
        "c": CUMULATED,
        "D": {"keep": "m", "of": {"map": "exp", "of": "c[n h] - c[m h] -> h n m"}},
        "S": "Q[n h d] K[m h d] -> h n m",
        "A": "S[h n m] D[h n m] -> h n m",
        "y": "A[h n m] V[m h d] -> n h d",
    },
}


def rg_lru(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    log = -8 * F.softplus(w["rate"]) * torch.sigmoid(x @ w["Wa"])
    # 1.0001: a floor, so that the root has a derivative where nothing decays
    u = (1.0001 - (2 * log).exp()).sqrt() * torch.sigmoid(x @ w["Wi"]) * (x @ w["Wx"])
    return states(log.exp(), u)


def mamba(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    B, C, V = x @ w["Wb"], x @ w["Wc"], torch.einsum("...f,fhd->...hd", x, w["Wx"])
    t = F.softplus(x @ w["Wt"])
    adds = torch.einsum("...h,...hd,...s->...hds", t, V, B)
    decay = (-w["rate"].exp() * t).exp()[..., None, None]
    return torch.einsum("...hds,...s->...hd", states(decay, adds, 3), C)


def gla(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    Q, K, V = (torch.einsum("...f,fhd->...hd", x, w[name]) for name in ("Wq", "Wk", "Wv"))
    decay = torch.sigmoid(x @ w["Wg"])[..., None, None]
    return torch.einsum("...hde,...hd->...he", states(decay, K[..., :, None] * V[..., None, :], 3), Q)


def states(decay: Tensor, adds: Tensor, legs: int = 1) -> Tensor:
    """h = decay h + adds, position by position, on the dimension before the last `legs`."""
    decay, adds = (x.movedim(-1 - legs, 0) for x in (decay, adds))
    found = [adds[0]]
    for a, b in zip(decay[1:], adds[1:], strict=True):
        found.append(a * found[-1] + b)
    return torch.stack(found, -1 - legs)


DECAYS: dict[str, tuple[dict[str, Any], Callable[[Tensor, dict[str, Tensor]], Tensor]]] = {
    "rg_lru": (RG_LRU, rg_lru),
    "mamba": (MAMBA, mamba),
    "gla": (GLA, gla),
}


def compare_decay(name: str, backend: str, wanted: dict[str, Any], n: int, dtype: torch.dtype) -> None:
    """Output and gradients of the design are those of the loop in float64."""
    data, loop = DECAYS[name]
    module = ta.compile(data, backend, dtype=dtype, **wanted)
    draw = torch.Generator().manual_seed(n)
    x = torch.randn(2, n, 6, generator=draw, dtype=torch.float64)
    found, exact = [], {}
    for key, weight in module.named_parameters():
        exact[key] = 0.5 * torch.randn(weight.shape, generator=draw, dtype=torch.float64)
        weight.data.copy_(exact[key])
    for leaf, weights, run in (
        (x.to(dtype), dict(module.named_parameters()), lambda leaf, _: module(leaf)),
        (x, {key: value.requires_grad_() for key, value in exact.items()}, loop),
    ):
        y = run(leaf.requires_grad_(), weights)
        factor = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        leaves = {"x": leaf, **weights}
        found.append([y, *torch.autograd.grad((y * factor.to(y.dtype)).sum(), list(leaves.values()))])
    for got, want in zip(*found, strict=True):
        assert got.isfinite().all()
        scale = max(1.0, want.abs().max().item())
        rough = 2e-6 * n if dtype == torch.float32 else 1e-10  # exponents are differences of sums of n numbers
        torch.testing.assert_close(got.double(), want, rtol=0, atol=rough * scale)
