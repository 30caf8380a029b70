"""FiSHformer: local heads mixed from global score matrices."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .core import Score, Sight, Weights, elu1, merge, project, project_all, rows_of, share, softmax_rows, zero

Noise = dict[str, Tensor] | None


def hard_fish(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_h = softmax(sum_g P[g h] G_g), G_g = Q_g K_g^T / sqrt(d) (FiSHformer, eq. 9)."""
    return fish(w | {"sigma": 0 * w["P"][:, 0]}, x, memory, **see)


def fish(w: Weights, x: Tensor, memory: Tensor, noise: dict[str, Tensor] | None = None, **see: object) -> Tensor:
    """A_h = softmax of sum_g P[g h] (q_g.k_g + sigma_g eps_h) / sqrt(d), eps standard normal (FiSHformer, eq. 8)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    P, sigma = w["P"], w["sigma"]
    d = Q[0].shape[1]

    def score(a: int, i: int, j: int) -> Tensor:
        eps = zero() if noise is None else noise["eps"][a, i, j]
        mixed = sum((P[g, a] * (Q[i][g] @ K[j][g] + sigma[g] * eps) for g in range(len(P))), zero())
        return mixed / d**0.5

    return merge(softmax_rows(score, P.shape[1], Sight(len(x), len(memory), **see)), V, w["Wo"])


def fish_simplex(w: Weights, x: Tensor, memory: Tensor, noise: Noise = None, **see: object) -> Tensor:
    """fish whose mixing weights of a local head are exp(logits), divided by their sum over the global heads."""
    columns = [torch.stack(share(list(torch.exp(column)))) for column in w["logits"].T]
    return fish(w | {"P": torch.stack(columns, 1)}, x, memory, noise, **see)


def mish(w: Weights, x: Tensor, memory: Tensor, noise: Noise = None, **see: object) -> Tensor:
    """A_h = softmax of sum_g P[g] (q_g.k_g + sigma_g eps_h) / sqrt(d): one mixture (FiSHformer, eq. 10)."""
    h = w["Wo"].shape[0]
    return fish(w | {"P": torch.stack([w["P"]] * h, 1)}, x, memory, noise, **see)


def hard_gfish(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_h = softmax of (sum_k W2[h k] sum_g relu(P[g k] q_g.k_g) + b2[h]) / sqrt(d)."""
    return gfish(w | {"sigma": 0 * w["P"][:, 0]}, x, memory, **see)


def gfish(w: Weights, x: Tensor, memory: Tensor, noise: Noise = None, **see: object) -> Tensor:
    """hard_gfish with q_g.k_g + sigma_g eps_k in place of q_g.k_g."""
    Q, K = project_all(x, w["Wq"]), project_all(memory, w["Wk"])
    P, W2, sigma = w["P"], w["W2"], w["sigma"]
    d = Q[0].shape[1]

    def mixed(k: int, i: int, j: int) -> Tensor:
        eps = zero() if noise is None else noise["eps"][k, i, j]
        return sum((relu(P[g, k] * (Q[i][g] @ K[j][g] + sigma[g] * eps)) for g in range(len(P))), zero())

    def score(a: int, i: int, j: int) -> Tensor:
        return (sum((W2[a, k] * mixed(k, i, j) for k in range(P.shape[1])), zero()) + w["b2"][a]) / d**0.5

    return softmax_of(score, w, x, memory, **see)


def gfish_release(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_h = softmax of sum_k W2[h k] relu(sum_g W1[k g] q_g.k_g / sqrt(d) + b1[k]) + b2[h]."""
    Q, K = project_all(x, w["Wq"]), project_all(memory, w["Wk"])
    W1, W2 = w["W1"], w["W2"]
    d = Q[0].shape[1]

    def hidden(k: int, i: int, j: int) -> Tensor:
        mixed = sum((W1[k, g] * (Q[i][g] @ K[j][g]) / d**0.5 for g in range(W1.shape[1])), zero())
        return relu(mixed + w["b1"][k])

    def score(a: int, i: int, j: int) -> Tensor:
        return sum((W2[a, k] * hidden(k, i, j) for k in range(len(W1))), zero()) + w["b2"][a]

    return softmax_of(score, w, x, memory, **see)


def hard_fish_simplex(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """hard_fish whose mixing weights of a local head are exp(logits), divided by their sum over the global heads."""
    return fish_simplex(w | {"sigma": 0 * w["logits"][:, 0]}, x, memory, **see)


def mish_simplex(w: Weights, x: Tensor, memory: Tensor, noise: Noise = None, **see: object) -> Tensor:
    """mish whose mixing weights are exp(logits), divided by their sum over the global heads (eq. 10)."""
    return mish(w | {"P": torch.stack(share(list(torch.exp(w["logits"]))))}, x, memory, noise, **see)


def hard_lfish(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """y_h = phi(q_h) KV_h / (phi(q_h) . z_h), KV_h = sum_g P[g h] KV_g, z_h = sum_g P[g h] z_g with P positive by
    softplus; KV_g is the sum over the visible keys of phi(k_g) v_g^T, z_g that of phi(k_g) (A.6)."""
    return lfish(w | {"sigma": 0 * w["P"][:, 0]}, x, memory, **see)


def lfish(w: Weights, x: Tensor, memory: Tensor, noise: Noise = None, **see: object) -> Tensor:
    """hard_lfish with KV_g + sigma_g eps_h and z_g + sigma_g epsz_h in place of KV_g and z_g."""
    P, sigma = softplus(w["P"]), w["sigma"]

    def local(KV: list[Tensor], z: list[Tensor], a: int) -> tuple[Tensor, Tensor]:
        eps, epsz = (0, 0) if noise is None else (noise["eps"][a], noise["epsz"][a])
        state = sum((P[g, a] * (KV[g] + sigma[g] * eps) for g in range(len(P))), zero())
        return state, sum((P[g, a] * (z[g] + sigma[g] * epsz) for g in range(len(P))), zero())

    return states_read(w, x, memory, local, see)


def hard_glfish(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """hard_lfish with KV_h = sum_k W2[h k] sum_g relu(P[g k] KV_g) + b2[h], z_h alike by softplus of P, W2, b2."""
    return glfish(w | {"sigma": 0 * w["P"][:, 0]}, x, memory, **see)


def glfish(w: Weights, x: Tensor, memory: Tensor, noise: Noise = None, **see: object) -> Tensor:
    """hard_glfish with KV_g + sigma_g eps_k and z_g + sigma_g epsz_k in place of KV_g and z_g."""
    P, W2, b2, sigma = w["P"], w["W2"], w["b2"], w["sigma"]
    sure, sure2, bias = softplus(P), softplus(W2), softplus(b2)

    def local(KV: list[Tensor], z: list[Tensor], a: int) -> tuple[Tensor, Tensor]:
        state, total = b2[a] + 0 * KV[0], bias[a] + 0 * z[0]
        for k in range(P.shape[1]):
            eps, epsz = (0, 0) if noise is None else (noise["eps"][k], noise["epsz"][k])
            for g in range(len(P)):
                state = state + W2[a, k] * torch.relu(P[g, k] * (KV[g] + sigma[g] * eps))
                total = total + sure2[a, k] * sure[g, k] * (z[g] + sigma[g] * epsz)
        return state, total

    return states_read(w, x, memory, local, see)


Local = Callable[[list[Tensor], list[Tensor], int], tuple[Tensor, Tensor]]


def states_read(w: Weights, x: Tensor, memory: Tensor, local: Local, see: dict[str, object]) -> Tensor:
    """`local` makes the state [d, e] and the sum of the keys [d] of a local head from those of all global heads."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    (heads, d), (g, e) = Q[0].shape, V[0].shape
    out = []
    for i in range(sight.n):
        KV, z = [x.new_zeros(d, e) for _ in range(g)], [x.new_zeros(d) for _ in range(g)]
        for j in (j for j in range(sight.m) if sight(i, j)):
            for b in range(g):
                key = elu1(K[j][b])
                KV[b], z[b] = KV[b] + torch.outer(key, V[j][b]), z[b] + key
        y = torch.zeros(w["Wo"].shape[-1], dtype=x.dtype)
        for a in range(heads):
            state, total = local(KV, z, a)
            rows = elu1(Q[i][a]) @ total
            if rows != 0:
                y = y + project(elu1(Q[i][a]) @ state / rows, w["Wo"][a])
        out.append(y)
    return torch.stack(out)


def kernel_fish(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_h in proportion to sum_g softplus(P[g h]) elu1(q_g).elu1(k_g)."""
    P, scores = softplus(w["P"]), kernel_scores(w, x, memory)

    def amount(a: int, i: int, j: int) -> Tensor:
        return sum((P[g, a] * scores(g, i, j) for g in range(len(P))), zero())

    A = rows_of(amount, P.shape[1], Sight(len(x), len(memory), **see))
    return merge(A, project_all(memory, w["Wv"]), w["Wo"])


def kernel_gfish(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_h in proportion to the mixing of hard_gfish, of elu1(q_g).elu1(k_g), with softplus of P, W2 and b2."""
    P, W2, b2, scores = softplus(w["P"]), softplus(w["W2"]), softplus(w["b2"]), kernel_scores(w, x, memory)

    def mixed(k: int, i: int, j: int) -> Tensor:
        return sum((relu(P[g, k] * scores(g, i, j)) for g in range(len(P))), zero())

    def amount(a: int, i: int, j: int) -> Tensor:
        return sum((W2[a, k] * mixed(k, i, j) for k in range(P.shape[1])), zero()) + b2[a]

    A = rows_of(amount, len(W2), Sight(len(x), len(memory), **see))
    return merge(A, project_all(memory, w["Wv"]), w["Wo"])


def kernel_scores(w: Weights, x: Tensor, memory: Tensor) -> Score:
    """elu1(q_g).elu1(k_g) of a global head g, a query and a key."""
    Q, K = [elu1(q) for q in project_all(x, w["Wq"])], [elu1(k) for k in project_all(memory, w["Wk"])]
    return lambda g, i, j: Q[i][g] @ K[j][g]


def softmax_of(score: Score, w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """The output of attention with these scores of local heads."""
    A = softmax_rows(score, len(w["Wo"]), Sight(len(x), len(memory), **see))
    return merge(A, project_all(memory, w["Wv"]), w["Wo"])


def relu(x: Tensor) -> Tensor:
    return x if x > 0 else 0 * x


def softplus(x: Tensor) -> Tensor:
    return torch.log(1 + torch.exp(x))
