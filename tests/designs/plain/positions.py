"""Baselines that know positions: band, rotary, linear biases, relative positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .core import (
    Score,
    Sight,
    Weights,
    attended,
    banded,
    headwise,
    project,
    projections,
    turned_all,
    ungrouped,
)


def band(w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 5) -> Tensor:
    """softmax(band_k(Q K^T / sqrt(d))) V, with (k - 1) // 2 diagonals on either side of the main one (FMMformer)."""
    return headwise(w, *projections(w, x, memory), banded(sight, (k - 1) // 2, (k - 1) // 2))


def mhsa_rope(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """q_i and k_j turned by their positions, R_{theta, i} W_q x_i and R_{theta, j} W_k x_j (Su et al., eq. 14)."""
    return headwise(w, *turned_all(w, x, memory, sight), sight)


def gqa_rope(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """Query head (group g, member j) and the keys of its group, both turned by their positions as in mhsa_rope."""
    return headwise(*ungrouped(w, *turned_all(w, x, memory, sight)), sight)


def alibi(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """softmax(q_i K^T / sqrt(d) - slope_h |i - j|), slope_h = 2 ** (-8 h / H), H a power of two (Press et al.)."""
    Q, K, V = projections(w, x, memory)
    h, d = Q[0].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return Q[i][a] @ K[j][a] / d**0.5 - 2 ** (-8 * (a + 1) / h) * abs(sight.position(i) - j)

    return attended(score, w, V, sight)


def transformer_xl(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_ij = q_i k_j + q_i W_kR R_{i-j} + u k_j + v W_kR R_{i-j}, over sqrt(d), then softmax (Dai et al., 3.3)."""
    Q, K, V = projections(w, x, memory)
    return attended(relative_scores(w, Q, K, sight), w, V, sight)


def relative_scores(w: Weights, Q: Tensor, K: Tensor, sight: Sight) -> Score:
    """Those of Transformer-XL."""
    R = relative_keys(w, sight)

    def score(a: int, i: int, j: int) -> Tensor:
        r = R[sight.position(i) - j][a]
        total = Q[i][a] @ K[j][a] + Q[i][a] @ r + w["u"][a] @ K[j][a] + w["v"][a] @ r
        return total / len(r) ** 0.5

    return score


def relative_keys(w: Weights, sight: Sight) -> dict[int, Tensor]:
    """W_kR R_p of each distance p."""
    distances = range(1 - sight.m - sight.n, sight.m + sight.n)
    return {distance: project(sinusoid(distance, len(w["Wr"])), w["Wr"]) for distance in distances}


def sinusoid(position: int, width: int) -> Tensor:
    """Entry 2 t is sin(position * 10000 ** (-2 t / width)), entry 2 t + 1 its cosine."""
    angles = [position * 10000 ** (-2 * (c // 2) / width) for c in range(width)]
    values = [math.cos(angle) if c % 2 else math.sin(angle) for c, angle in enumerate(angles)]
    return torch.tensor(values, dtype=torch.float64)
