"""FiSHformer: local heads mixed from global score matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import softplus

from .core import (
    Score,
    Sight,
    Weights,
    attended,
    by_head,
    elu1,
    merge,
    projections,
    rows_of,
    softmax,
)

Noise = dict[str, Tensor] | None


def hard_fish(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_h = softmax(sum_g P[g h] G_g), G_g = Q_g K_g^T / sqrt(d) (FiSHformer, eq. 9)."""
    return fish(w | {"sigma": 0 * w["P"][:, 0]}, x, memory, sight)


def fish(w: Weights, x: Tensor, memory: Tensor, sight: Sight, noise: Noise = None) -> Tensor:
    """A_h = softmax of sum_g P[g h] (q_g.k_g + sigma_g eps_h) / sqrt(d), eps standard normal (FiSHformer, eq. 8)."""
    Q, K, V = projections(w, x, memory)
    P, sigma = w["P"], w["sigma"]
    d = Q[0].shape[1]

    def score(a: int, i: int, j: int) -> Tensor:
        eps = noise["eps"][a, i, j] if noise else 0
        return sum(P[g, a] * (Q[i][g] @ K[j][g] + sigma[g] * eps) for g in range(len(P))) / d**0.5

    return attended(score, w, V, sight)


def fish_simplex(w: Weights, x: Tensor, memory: Tensor, sight: Sight, noise: Noise = None) -> Tensor:
    """fish whose mixing weights of a local head are exp(logits), divided by their sum over the global heads."""
    return fish(w | {"P": torch.stack([softmax(column) for column in w["logits"].T], 1)}, x, memory, sight, noise)


def mish(w: Weights, x: Tensor, memory: Tensor, sight: Sight, noise: Noise = None) -> Tensor:
    """A_h = softmax of sum_g P[g] (q_g.k_g + sigma_g eps_h) / sqrt(d): one mixture (FiSHformer, eq. 10)."""
    return fish(w | {"P": torch.stack([w["P"]] * len(w["Wo"]), 1)}, x, memory, sight, noise)


def hard_gfish(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_h = softmax of (sum_k W2[h k] sum_g relu(P[g k] q_g.k_g) + b2[h]) / sqrt(d)."""
    return gfish(w | {"sigma": 0 * w["P"][:, 0]}, x, memory, sight)


def gfish(w: Weights, x: Tensor, memory: Tensor, sight: Sight, noise: Noise = None) -> Tensor:
    """hard_gfish with q_g.k_g + sigma_g eps_k in place of q_g.k_g."""
    Q, K, V = projections(w, x, memory)
    P, W2, sigma = w["P"], w["W2"], w["sigma"]
    d = Q[0].shape[1]

    def mixed(k: int, i: int, j: int) -> Tensor:
        eps = noise["eps"][k, i, j] if noise else 0
        return sum(torch.relu(P[g, k] * (Q[i][g] @ K[j][g] + sigma[g] * eps)) for g in range(len(P)))

    def score(a: int, i: int, j: int) -> Tensor:
        return (sum(W2[a, k] * mixed(k, i, j) for k in range(P.shape[1])) + w["b2"][a]) / d**0.5

    return attended(score, w, V, sight)


def gfish_release(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_h = softmax of sum_k W2[h k] relu(sum_g W1[k g] q_g.k_g / sqrt(d) + b1[k]) + b2[h]."""
    Q, K, V = projections(w, x, memory)
    W1, W2 = w["W1"], w["W2"]
    d = Q[0].shape[1]

    def hidden(k: int, i: int, j: int) -> Tensor:
        return torch.relu(sum(W1[k, g] * (Q[i][g] @ K[j][g]) / d**0.5 for g in range(W1.shape[1])) + w["b1"][k])

    def score(a: int, i: int, j: int) -> Tensor:
        return sum(W2[a, k] * hidden(k, i, j) for k in range(len(W1))) + w["b2"][a]

    return attended(score, w, V, sight)


def hard_fish_simplex(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """hard_fish whose mixing weights of a local head are exp(logits), divided by their sum over the global heads."""
    return fish_simplex(w | {"sigma": 0 * w["logits"][:, 0]}, x, memory, sight)


def mish_simplex(w: Weights, x: Tensor, memory: Tensor, sight: Sight, noise: Noise = None) -> Tensor:
    """mish whose mixing weights are exp(logits), divided by their sum over the global heads (eq. 10)."""
    return mish(w | {"P": softmax(w["logits"])}, x, memory, sight, noise)


def hard_lfish(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """y_h = phi(q_h) KV_h / (phi(q_h) . z_h), KV_h = sum_g P[g h] KV_g, z_h = sum_g P[g h] z_g with P positive by
    softplus; KV_g is the sum over the visible keys of phi(k_g) v_g^T, z_g that of phi(k_g) (A.6)."""
    return lfish(w | {"sigma": 0 * w["P"][:, 0]}, x, memory, sight)


def lfish(w: Weights, x: Tensor, memory: Tensor, sight: Sight, noise: Noise = None) -> Tensor:
    """hard_lfish with KV_g + sigma_g eps_h and z_g + sigma_g epsz_h in place of KV_g and z_g."""
    P, sigma = softplus(w["P"]), w["sigma"]

    def local(KV: list[Tensor], z: list[Tensor], a: int) -> tuple[Tensor, Tensor]:
        eps, epsz = (noise["eps"][a], noise["epsz"][a]) if noise else (0, 0)
        state = sum(P[g, a] * (KV[g] + sigma[g] * eps) for g in range(len(P)))
        return state, sum(P[g, a] * (z[g] + sigma[g] * epsz) for g in range(len(P)))

    return states_read(w, x, memory, local, sight)


def hard_glfish(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """hard_lfish with KV_h = sum_k W2[h k] sum_g relu(P[g k] KV_g) + b2[h], z_h alike by softplus of P, W2, b2."""
    return glfish(w | {"sigma": 0 * w["P"][:, 0]}, x, memory, sight)


def glfish(w: Weights, x: Tensor, memory: Tensor, sight: Sight, noise: Noise = None) -> Tensor:
    """hard_glfish with KV_g + sigma_g eps_k and z_g + sigma_g epsz_k in place of KV_g and z_g."""
    P, W2, b2, sigma = w["P"], w["W2"], w["b2"], w["sigma"]
    sure, sure2, bias = softplus(P), softplus(W2), softplus(b2)

    def local(KV: list[Tensor], z: list[Tensor], a: int) -> tuple[Tensor, Tensor]:
        state, total = b2[a], bias[a]
        for k in range(P.shape[1]):
            eps, epsz = (noise["eps"][k], noise["epsz"][k]) if noise else (0, 0)
            for g in range(len(P)):
                state = state + W2[a, k] * torch.relu(P[g, k] * (KV[g] + sigma[g] * eps))
                total = total + sure2[a, k] * sure[g, k] * (z[g] + sigma[g] * epsz)
        return state, total

    return states_read(w, x, memory, local, sight)


Local = Callable[[list[Tensor], list[Tensor], int], tuple[Tensor, Tensor]]


def states_read(w: Weights, x: Tensor, memory: Tensor, local: Local, sight: Sight) -> Tensor:
    """`local` makes the state [d, e] and the sum of the keys [d] of a local head from those of all global heads."""
    Q, K, V = projections(w, x, memory)
    (_, d), (g, e) = Q[0].shape, V[0].shape
    states = []
    for i in range(sight.n):
        KV, z = [x.new_zeros(d, e)] * g, [x.new_zeros(d)] * g
        for j in sight.keys(i):
            for b in range(g):
                key = elu1(K[j][b])
                KV[b], z[b] = KV[b] + torch.outer(key, V[j][b]), z[b] + key
        states.append((KV, z))

    def read(a: int, i: int) -> Tensor:
        state, total = local(*states[i], a)
        row = elu1(Q[i][a]) @ total
        return elu1(Q[i][a]) @ state / row if row != 0 else x.new_zeros(e)

    return by_head(lambda a: [read(a, i) for i in range(sight.n)], w["Wo"])


def kernel_fish(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_h in proportion to sum_g softplus(P[g h]) elu1(q_g).elu1(k_g)."""
    P, (scores, V) = softplus(w["P"]), kernel_scores(w, x, memory)
    A = rows_of(lambda a, i, j: sum(P[g, a] * scores(g, i, j) for g in range(len(P))), P.shape[1], sight)
    return merge(A, V, w["Wo"])


def kernel_gfish(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_h in proportion to the mixing of hard_gfish, of elu1(q_g).elu1(k_g), with softplus of P, W2 and b2."""
    P, W2, b2 = softplus(w["P"]), softplus(w["W2"]), softplus(w["b2"])
    scores, V = kernel_scores(w, x, memory)

    def mixed(k: int, i: int, j: int) -> Tensor:
        return sum(torch.relu(P[g, k] * scores(g, i, j)) for g in range(len(P)))

    def amount(a: int, i: int, j: int) -> Tensor:
        return sum(W2[a, k] * mixed(k, i, j) for k in range(P.shape[1])) + b2[a]

    return merge(rows_of(amount, len(W2), sight), V, w["Wo"])


def kernel_scores(w: Weights, x: Tensor, memory: Tensor) -> tuple[Score, Tensor]:
    """elu1(q_g).elu1(k_g) of a global head g, a query and a key; and the values."""
    Q, K, V = projections(w, x, memory)
    return lambda g, i, j: elu1(Q[i][g]) @ elu1(K[j][g]), V
