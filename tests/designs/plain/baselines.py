"""The baselines without positions, straight from their papers."""

from __future__ import annotations

import torch
from torch import Tensor

from .core import Maps, Sight, Weights, elu1, merge, project, project_all, rows_of, softmax_rows, zero


def mhsa(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """head_i = softmax(Q_i K_i^T / sqrt(d)) V_i; MultiHead = Concat(head_1, ..., head_h) Wo (Vaswani et al., eq. 1)."""
    return cross(w, x, memory, **see)


def cross(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """The same with queries from x, keys and values from memory."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape
    A = softmax_rows(lambda a, i, j: Q[i][a] @ K[j][a] / d**0.5, h, Sight(len(x), len(memory), **see))
    return merge(A, V, w["Wo"])


def mqa(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """head_i = softmax(Q_i K^T / sqrt(d)) V, one K and one V for all heads (Shazeer 2019, section 3)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape
    A = softmax_rows(lambda a, i, j: Q[i][a] @ K[j] / d**0.5, h, Sight(len(x), len(memory), **see))
    return merge(A, [torch.stack([v] * h) for v in V], w["Wo"])


def gqa(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """Query head (group g, member j) uses the keys and values of its group g (Ainslie et al., section 2.2)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    g, j, d = Q[0].shape
    pairs = [(group, member) for group in range(g) for member in range(j)]

    def score(a: int, i: int, t: int) -> Tensor:
        group, member = pairs[a]
        return Q[i][group, member] @ K[t][group] / d**0.5

    A = softmax_rows(score, len(pairs), Sight(len(x), len(memory), **see))
    values = [torch.stack([v[group] for group, _ in pairs]) for v in V]
    return merge(A, values, torch.stack([w["Wo"][pair] for pair in pairs]))


def mla(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """c_t = W^DKV h_t; k_t = W^UK c_t; v_t = W^UV c_t (DeepSeek-V2, eq. 9 to 11), then multi-head attention."""
    Q = project_all(x, w["Wq"])
    latents = [project(row, w["Wc"]) for row in memory]
    K = [project(c, w["Wuk"]) for c in latents]
    V = [project(c, w["Wuv"]) for c in latents]
    h, d = Q[0].shape
    A = softmax_rows(lambda a, i, j: Q[i][a] @ K[j][a] / d**0.5, h, Sight(len(x), len(memory), **see))
    return merge(A, V, w["Wo"])


def linear(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """V'_i = sum_j phi(Q_i)^T phi(K_j) V_j / sum_j phi(Q_i)^T phi(K_j), phi = elu + 1 (Katharopoulos et al., eq. 5)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    A = rows_of(lambda a, i, j: elu1(Q[i][a]) @ elu1(K[j][a]), len(Q[0]), Sight(len(x), len(memory), **see))
    return merge(A, V, w["Wo"])


def talking_heads(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """L_h = sum_g J_g P_l[g h]; A = softmax(L); U_e = sum_h A_h P_w[h e]; O_e = U_e V_e (Shazeer et al. 2020)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    sight = Sight(len(x), len(memory), **see)
    (heads_qk, d), (h, heads_v) = Q[0].shape, w["Pw"].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return sum((w["Pl"][g, a] * (Q[i][g] @ K[j][g]) / d**0.5 for g in range(heads_qk)), zero())

    A = softmax_rows(score, h, sight)

    def mixed(e: int, i: int, j: int) -> Tensor:
        return sum((A[a][i][j] * w["Pw"][a, e] for a in range(h)), zero())

    U = [[[mixed(e, i, j) for j in range(sight.m)] for i in range(sight.n)] for e in range(heads_v)]
    return merge(U, V, w["Wo"])


def differential(w: Weights, x: Tensor, memory: Tensor, lambda_init: float = 0.8, **see: object) -> Tensor:
    """(softmax(Q1 K1^T / sqrt(d)) - lambda softmax(Q2 K2^T / sqrt(d))) V; lambda = exp(lq1.lk1) - exp(lq2.lk2) +
    lambda_init; head_i = (1 - lambda_init) RMSNorm(DiffAttn_i) (Ye et al., eq. 1 to 3)."""
    sight = Sight(len(x), len(memory), **see)
    first, second = (_map(w, x, memory, number, sight) for number in "12")
    V = project_all(memory, w["Wv"])
    weight = torch.exp(w["lq1"] @ w["lk1"]) - torch.exp(w["lq2"] @ w["lk2"]) + lambda_init
    out = []
    for i in range(sight.n):
        y = torch.zeros_like(x[i])
        for a in range(len(first)):
            row = [one - weight * two for one, two in zip(first[a][i], second[a][i], strict=True)]
            o = sum((row[j] * V[j][a] for j in range(sight.m)), torch.zeros_like(V[0][a]))
            y = y + project((1 - lambda_init) * o / torch.sqrt((o * o).mean() + 1e-5), w["Wo"][a])
        out.append(y)
    return torch.stack(out)


def _map(w: Weights, x: Tensor, memory: Tensor, number: str, sight: Sight) -> Maps:
    Q, K = project_all(x, w["Wq" + number]), project_all(memory, w["Wk" + number])
    h, d = Q[0].shape
    return softmax_rows(lambda a, i, j: Q[i][a] @ K[j][a] / d**0.5, h, sight)


def mlp(w: Weights, x: Tensor) -> Tensor:
    """FFN(x) = max(0, x W1 + b1) W2 + b2 (Vaswani et al., eq. 2)."""
    rows = []
    for row in x:
        hidden = project(row, w["W1"]) + w["b1"]
        rows.append(project(torch.where(hidden > 0, hidden, 0 * hidden), w["W2"]) + w["b2"])
    return torch.stack(rows)
