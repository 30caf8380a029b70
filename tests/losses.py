"""Designs with auxiliary losses, one for each way in which a loss may depend on the rest of a diagram."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import tensornet_attn as ta

EXPERTS = """\
tensornet: 1
name: experts
legs: {n: query, m: key, f: 6, e: head 4, l: 5}
settings: {k: 2, z: 1e-3}
inputs: {x: n f}
weights: {Ws: f e, W1: e f l, W2: e l f}
constants: {one: {legs: n e, value: ones}}
state: {usage: {legs: e, init: full(1 / e), update: router}}
diagram:
  logits: x[n f] Ws[f e] -> n e
  gate: {map: sigmoid, of: logits}
  G: {topk: e, k: k, of: gate}
  H: {map: relu, of: "x[n f] W1[e f l] -> n e l"}
  y: G[n e] H[n e l] W2[e l f] -> n f
  p: {softmax: e, of: logits}
  router: {mean: m, of: "p[m e]"}
  chosen: {topk: e, k: k, of: one, by: gate}
  frequency: {mean: m, of: "chosen[m e]"}
  balance: (e / k) * frequency[e] router[e] ->
  lse: {map: square, of: {logsumexp: e, of: logits}}
  Z: {mean: m, of: "lse[m]"}
  surprise: {map: log, of: usage}
  drift: router[e] surprise[e] ->
losses:
  balance: 1 / 100
  z: {step: Z, weight: z}
  drift: -2
output: y
"""


def extended(parent: str, name: str, diagram: dict[str, Any], losses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"tensornet": 1, "name": name, "extends": parent, "diagram": diagram, "losses": losses, **more}


DESIGNS: dict[str, tuple[Any, dict[str, int]]] = {  # source, legs
    "experts with a state": (EXPERTS, {}),
    "scores of fused attention": (
        extended(
            "mhsa",
            "scores",
            {
                "S": "Q[n h d] K[m h d] -> h n m",
                "A": {"softmax": "m", "scale": "d ** -0.5", "of": "S"},
                "peak": {"logsumexp": "m", "of": "S"},
                "sharp": {"mean": "h", "of": {"mean": "n", "of": "peak"}},
            },
            {"sharp": 0.5},
        ),
        {"f": 6, "h": 2},
    ),
    "an attention map": (
        extended(
            "mhsa",
            "maps",
            {
                "squares": "A[h n m] A[h n m] -> h n m",
                "spread": {"mean": "h", "of": {"mean": "n", "of": {"sum": "m", "of": "squares"}}},
            },
            {"spread": 1},
        ),
        {"f": 6, "h": 2},
    ),
    "the output, and weights alone": (
        extended(
            "mhsa",
            "sizes",
            {
                "size": {"mean": "n", "of": "y[n f] y[n f] -> n"},
                "decay": "Wo[h d f] Wo[h d f] ->",
                "twice": "2 * size[] + decay[] ->",
            },
            {
                "size": 1,
                "decay": 1e-4,
                "twice": {"step": "twice", "weight": 0.1},
                "again": {"step": "size", "weight": 3},
            },
        ),
        {"f": 6, "h": 2},
    ),
    "values of linear attention": (
        extended(
            "linear",
            "kernels",
            {"total": {"sum": "m", "of": "K"}, "mass": {"mean": "h", "of": {"mean": "d", "of": "total"}}},
            {"mass": 1},
        ),
        {"f": 6, "h": 2},
    ),
}


def made(name: str, backend: str = "torch", dtype: torch.dtype = torch.float64, **options: Any) -> Any:
    """The design compiled, its weights those of a fixed seed."""
    source, legs = DESIGNS[name]
    torch.manual_seed(3)
    return ta.compile(ta.load(source, legs=legs), backend, dtype=dtype, **options)


def inputs(seed: int = 1, batch: int = 3, n: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(batch, n, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def total(module: Any, y: Tensor, losses: dict[str, Tensor]) -> Tensor:
    """What a trainer minimises: something of the output, and the losses with their weights."""
    weights = module.design.loss_weights
    return y.square().mean() + sum(weights[name] * value for name, value in losses.items())
