"""The baselines without positions, straight from their papers."""

from __future__ import annotations

import torch
from torch import Tensor

from .core import (
    Sight,
    Weights,
    biased,
    elu1,
    headwise,
    joined,
    merge,
    project_all,
    projections,
    read,
    rms,
    rows_of,
    softmax_of,
    softmax_rows,
    ungrouped,
)


def mhsa(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """head_i = softmax(Q_i K_i^T / sqrt(d)) V_i; MultiHead = Concat(head_1, ..., head_h) Wo (Vaswani et al., eq. 1)."""
    return headwise(w, *projections(w, x, memory), sight)


cross = mhsa  # queries from x, keys and values from memory


def mqa(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """head_i = softmax(Q_i K^T / sqrt(d)) V, one K and one V for all heads (Shazeer 2019, section 3)."""
    return mhsa(w | {name: torch.stack([w[name]] * len(w["Wo"]), 1) for name in ("Wk", "Wv")}, x, memory, sight)


def gqa(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """Query head (group g, member j) uses the keys and values of its group g (Ainslie et al., section 2.2)."""
    return headwise(*ungrouped(w, *projections(w, x, memory)), sight)


def mla(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """c_t = W^DKV h_t; k_t = W^UK c_t; v_t = W^UV c_t (DeepSeek-V2, eq. 9 to 11), then multi-head attention."""
    return mhsa(w | {"Wk": w["Wuk"], "Wv": w["Wuv"]}, x, project_all(memory, w["Wc"]), sight)


def linear(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """V'_i = sum_j phi(Q_i)^T phi(K_j) V_j / sum_j phi(Q_i)^T phi(K_j), phi = elu + 1 (Katharopoulos et al., eq. 5)."""
    Q, K, V = projections(w, x, memory)
    return merge(rows_of(lambda a, i, j: elu1(Q[i][a]) @ elu1(K[j][a]), len(Q[0]), sight), V, w["Wo"])


def talking_heads(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """L_h = sum_g J_g P_l[g h]; A = softmax(L); U_e = sum_h A_h P_w[h e]; O_e = U_e V_e (Shazeer et al. 2020)."""
    Q, K, V = projections(w, x, memory)
    (heads_qk, d), (h, heads_v) = Q[0].shape, w["Pw"].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return sum(w["Pl"][g, a] * (Q[i][g] @ K[j][g]) / d**0.5 for g in range(heads_qk))

    A = softmax_rows(score, h, sight)
    U = torch.stack([sum(A[a] * w["Pw"][a, e] for a in range(h)) for e in range(heads_v)])
    return merge(U, V, w["Wo"])


def differential(w: Weights, x: Tensor, memory: Tensor, sight: Sight, lambda_init: float = 0.8) -> Tensor:
    """(softmax(Q1 K1^T / sqrt(d)) - lambda softmax(Q2 K2^T / sqrt(d))) V; lambda = exp(lq1.lk1) - exp(lq2.lk2) +
    lambda_init; head_i = (1 - lambda_init) RMSNorm(DiffAttn_i) (Ye et al., eq. 1 to 3)."""
    first, second = (
        softmax_of(project_all(x, w[f"Wq{number}"]), project_all(memory, w[f"Wk{number}"]), sight) for number in "12"
    )
    weight = torch.exp(w["lq1"] @ w["lk1"]) - torch.exp(w["lq2"] @ w["lk2"]) + lambda_init
    o = read(first - weight * second, project_all(memory, w["Wv"]))
    return joined((1 - lambda_init) * rms(o, 1e-5), w["Wo"])


def mlp(w: Weights, x: Tensor) -> Tensor:
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (Vaswani et al., eq. 2)."""
    return biased(w, "2", torch.relu(biased(w, "1", x)))
