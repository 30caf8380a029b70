"""Baselines that know positions: band, rotary, linear biases, relative positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .core import Sight, Weights, banded, merge, project, project_all, softmax_rows


def band(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    """softmax(band_k(Q K^T / sqrt(d))) V, with (k - 1) // 2 diagonals on either side of the main one (FMMformer)."""
    sight = Sight(len(x), len(memory), **see)
    near = banded(sight, (k - 1) // 2, (k - 1) // 2)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape
    return merge(softmax_rows(lambda a, i, j: Q[i][a] @ K[j][a] / d**0.5, h, near), V, w["Wo"])


def mhsa_rope(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """q_i and k_j turned by their positions, R_{theta, i} W_q x_i and R_{theta, j} W_k x_j (Su et al., eq. 14)."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return turned(Q[i][a], sight.position(i)) @ turned(K[j][a], j) / d**0.5

    return merge(softmax_rows(score, h, sight), V, w["Wo"])


def gqa_rope(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """Query head (group g, member j) and the keys of its group, both turned by their positions as in mhsa_rope."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    g, members, d = Q[0].shape
    pairs = [(group, member) for group in range(g) for member in range(members)]

    def score(a: int, i: int, j: int) -> Tensor:
        q, key = Q[i][pairs[a]], K[j][pairs[a][0]]
        return turned(q, sight.position(i)) @ turned(key, j) / d**0.5

    values = [torch.stack([v[group] for group, _ in pairs]) for v in V]
    return merge(softmax_rows(score, len(pairs), sight), values, torch.stack([w["Wo"][pair] for pair in pairs]))


def turned(vector: Tensor, position: int) -> Tensor:
    """Entries t and t + d / 2 as a pair, turned by the angle position * 10000 ** (-2 t / d)."""
    d = len(vector)
    out = [vector[0]] * d
    for t in range(d // 2):
        angle = position * 10000 ** (-2 * t / d)
        a, b = vector[t], vector[t + d // 2]
        out[t] = a * math.cos(angle) - b * math.sin(angle)
        out[t + d // 2] = b * math.cos(angle) + a * math.sin(angle)
    return torch.stack(out)


def alibi(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """softmax(q_i K^T / sqrt(d) - slope_h |i - j|), slope_h = 2 ** (-8 h / H), H a power of two (Press et al.)."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return Q[i][a] @ K[j][a] / d**0.5 - 2 ** (-8 * (a + 1) / h) * abs(sight.position(i) - j)

    return merge(softmax_rows(score, h, sight), V, w["Wo"])


def transformer_xl(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_ij = q_i k_j + q_i W_kR R_{i-j} + u k_j + v W_kR R_{i-j}, over sqrt(d), then softmax (Dai et al., 3.3)."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape
    tables = {p: project(sinusoid(p, x.shape[-1]), w["Wr"]) for p in range(1 - sight.m - sight.n, sight.m + sight.n)}

    def score(a: int, i: int, j: int) -> Tensor:
        r = tables[sight.position(i) - j][a]
        total = Q[i][a] @ K[j][a] + Q[i][a] @ r + w["u"][a] @ K[j][a] + w["v"][a] @ r
        return total / d**0.5

    return merge(softmax_rows(score, h, sight), V, w["Wo"])


def sinusoid(position: int, width: int) -> Tensor:
    """Entry 2 t is sin(position * 10000 ** (-2 t / width)), entry 2 t + 1 its cosine."""
    angles = [position * 10000 ** (-2 * (c // 2) / width) for c in range(width)]
    values = [math.cos(angle) if c % 2 else math.sin(angle) for c, angle in enumerate(angles)]
    return torch.tensor(values, dtype=torch.float64)
