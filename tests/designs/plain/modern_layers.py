"""Layers of today's models that are no softmax over scores, and feed-forward layers, straight from their papers."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from .core import (
    Sight,
    Weights,
    by_head,
    joined,
    largest,
    merge,
    project,
    project_all,
    projections,
    read,
    rms,
    rows_of,
    scaled,
    seen_maps,
    share,
    softmax,
    softmax_of,
    weighted,
)


def sigmoid_attention(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """sigmoid(q_i . k_j / sqrt(d) + b) v_j, b = -log m (Ramapuram et al., eq. 3)."""
    Q, K, V = projections(w, x, memory)
    bias = -math.log(sight.m)
    A = seen_maps(lambda a, i, j: torch.sigmoid(scaled(Q[i][a], K[j][a]) + bias), len(Q[0]), sight)
    return merge(A, V, w["Wo"])


def laser(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """log(softmax(Q K^T / sqrt(d)) exp(V)) (Duvvuri and Dhillon, eq. 5); a row that sees nothing takes log(1e-20)."""
    Q, K, V = projections(w, x, memory)
    reads = read(softmax_of(Q, K, sight), torch.exp(V))
    return joined(torch.log(torch.clamp(reads, min=1e-20)), w["Wo"])


def based(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """phi(q) . phi(k) = 1 + q.k + (q.k)^2 / 2 of queries scaled by 1 / sqrt(d), over its sum (Arora et al., eq. 5)."""
    Q, K, V = projections(w, x, memory)

    def amount(a: int, i: int, j: int) -> Tensor:
        s = scaled(Q[i][a], K[j][a])
        return 1 + s + s * s / 2

    return merge(rows_of(amount, len(Q[0]), sight, 1e-6), V, w["Wo"])


def gau(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """U, V, Z = silu(x W); q, k = Z * gamma + beta; O = (U * relu(q k^T / n)^2 V) Wo (Hua et al., eq. 3 to 6)."""
    U, V, Z = (silu(project_all(x, w[name])) for name in ("Wu", "Wv", "Wz"))
    q, k = (Z * w[f"{letter}_scale"] + w[f"{letter}_shift"] for letter in "qk")
    out = []
    for i in range(sight.n):
        parts = (torch.relu(q[i] @ k[j] / sight.m) ** 2 * V[j] for j in sight.keys(i))
        out.append(project(U[i] * sum(parts, torch.zeros_like(V[0])), w["Wo"]))
    return torch.stack(out)


def abc(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """K~ = sum over j of phi_j k_j^T, V~ likewise, phi_j = exp(Ws x_j) / sum; softmax(q K~) V~ (Peng et al., eq. 6)."""
    Q, K, V = projections(w, x, x)
    S = project_all(x, w["Ws"])

    def head(a: int) -> Tensor:
        reads = []
        for i in range(sight.n):
            phi = share(torch.stack([torch.exp(S[j, a]) if sight(i, j) else 0 * S[j, a] for j in range(sight.m)], 1))
            reads.append(looked_up(Q[i, a], project_all(phi, K[:, a]), project_all(phi, V[:, a])))
        return reads

    return by_head(head, w["Wo"])


def looked_up(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """softmax(q keys^T / sqrt(d)) values."""
    return weighted(softmax(torch.stack([scaled(q, key) for key in keys])), values)


def gsa(w: Weights, x: Tensor, sight: Sight, tau: float = 8) -> Tensor:
    """K~ <- Diag(a) K~ + (1 - a) k^T, V~ likewise, a = sigmoid(Ws x) ** (1 / tau); softmax(q K~) V~ (eq. 8 to 10)."""
    Q, K, V = projections(w, x, x)
    alpha = torch.sigmoid(project_all(x, w["Ws"])) ** (1 / tau)

    def head(a: int) -> Tensor:
        keys, values = (x.new_zeros(alpha.shape[-1], rows.shape[-1]) for rows in (K, V))
        reads = []
        for i in range(sight.n):
            if sight.key(i):
                fade, new = alpha[i, a, :, None], 1 - alpha[i, a]
                keys = fade * keys + torch.outer(new, K[i, a])
                values = fade * values + torch.outer(new, V[i, a])
            reads.append(looked_up(Q[i, a], keys, values))
        return reads

    return by_head(head, w["Wo"])


def minimax(w: Weights, x: Tensor, sight: Sight, speed: float = 1) -> Tensor:
    """o_i = sum over j of exp(-slope (i - j)) (q_i . k_j) v_j; y = (sigmoid(x Wg) * RMSNorm(o)) Wo (section 2.2)."""
    Q, K, V = map(silu, projections(w, x, x))
    h = len(Q[0])

    def amount(a: int, i: int, j: int) -> Tensor:
        return math.exp(-speed * 2 ** (-8 * (a + 1) / h) * (i - j)) * (Q[i][a] @ K[j][a])

    o = rms(read(seen_maps(amount, h, sight), V), 1e-6, (1, 2))
    return joined(torch.sigmoid(project_all(x, w["Wg"])) * o * w["norm"], w["Wo"])


def moh(w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 2) -> Tensor:
    """y_t = sum_i g_i H_i Wo[i], g = a_1 softmax(x Rs) of shared heads, a_2 softmax(x Rh) of the k largest of the rest,
    a = softmax(x Rp) (Jin et al., section 3.2)."""

    def attended(side: str) -> Tensor:
        Q, K, V = projections({f"W{letter}": w[f"{side}{letter}"] for letter in "qkv"}, x, memory)
        return read(softmax_of(Q, K, sight), V)

    common, others, out = attended("S"), attended("W"), []
    for i, row in enumerate(x):
        a, shared, routed = (softmax(project(row, w[name])) for name in ("Rp", "Rs", "Rh"))
        parts = [a[0] * shared[head] * project(own, w["So"][head]) for head, own in enumerate(common[i])]
        parts += [a[1] * routed[head] * project(others[i][head], w["Wo"][head]) for head in largest(routed, k)]
        out.append(sum(parts))
    return torch.stack(out)


def rwkv4(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """wkv_i = (sum over j < i of exp(-(i - 1 - j) decay + k_j) v_j + exp(u + k_i) v_i) / the same without v, a channel
    at a time, decay = exp(w); y = (sigmoid(r) * wkv) Wo (Peng et al., eq. 11 to 18). Keys not seen are left out."""
    last = before(x, sight)
    R, K, V = (project_all(last + (x - last) * w[f"mu_{letter}"], w[f"W{letter}"]) for letter in "rkv")
    decay, out = torch.exp(w["w"]), []
    for i in range(sight.n):
        above, below = torch.zeros_like(V[0]), torch.zeros_like(V[0])
        for j in sight.keys(i):
            size = torch.exp(K[j] + (w["u"] if i == j else -(i - 1 - j) * decay))
            above, below = above + size * V[j], below + size
        wkv = above / torch.where(below > 0, below, torch.ones_like(below))
        out.append(project(torch.sigmoid(R[i]) * wkv, w["Wo"]))
    return torch.stack(out)


def before(x: Tensor, sight: Sight) -> Tensor:
    """The row before each, zeros where there is none or it may not be seen."""
    return torch.stack([x[i - 1] if i and sight.key(i - 1) else torch.zeros_like(x[i]) for i in range(len(x))])


def lfm2(w: Weights, x: Tensor) -> Tensor:
    """y = (C * conv(B * X)) Wo, a channel by itself, up to the position (LFM2, section 2)."""
    B, C, X = (project_all(x, w[name]) for name in ("Wb", "Wc", "Wx"))
    taps = list(reversed(w["T"]))  # the first of the position itself
    rows = [sum(tap * (B * X)[i - t] for t, tap in enumerate(taps) if t <= i) for i in range(len(x))]
    return project_all(C * torch.stack(rows), w["Wo"])


def nemotron_mlp(w: Weights, x: Tensor) -> Tensor:
    """relu(x W1)^2 W2 (So et al., section 4)."""
    return project_all(torch.relu(project_all(x, w["W1"])) ** 2, w["W2"])


def swiglu(w: Weights, x: Tensor) -> Tensor:
    """(silu(x W) * x V) W2 (Shazeer, eq. 6)."""
    return torch.stack([gated(row, w["Wg"], w["Wu"], w["Wd"]) for row in x])


def geglu(w: Weights, x: Tensor) -> Tensor:
    """(GELU(x W) * x V) W2 (Shazeer, eq. 6)."""
    return project_all(gelu(project_all(x, w["Wg"])) * project_all(x, w["Wu"]), w["Wd"])


def expert(w: Weights, row: Tensor, e: int) -> Tensor:
    return gated(row, w["Wg"][e], w["Wu"][e], w["Wd"][e])


def mixtral(w: Weights, x: Tensor, k: int = 2) -> Tensor:
    """y = sum over i of Softmax(TopK(x Wr))_i SwiGLU_i(x) (Mixtral, section 2.1)."""
    out = []
    for row in x:
        logits = project(row, w["Wr"])
        chosen = largest(logits, k)
        out.append(weighted(softmax(logits[chosen]), [expert(w, row, e) for e in chosen]))
    return torch.stack(out)


def qwen2_moe(w: Weights, x: Tensor, k: int = 2) -> Tensor:
    """Chosen experts with their probability among all, and the shared one with a sigmoid gate."""
    out = []
    for row in x:
        probabilities = softmax(project(row, w["Wr"]))
        y = torch.sigmoid(row @ w["gate"]) * gated(row, w["Wsg"], w["Wsu"], w["Wsd"])
        out.append(y + sum(probabilities[e] * expert(w, row, e) for e in largest(probabilities, k)))
    return torch.stack(out)


def deepseek_moe(w: Weights, x: Tensor, k: int = 4, groups: int = 8, k_groups: int = 4, stretch: float = 2.5) -> Tensor:
    """Gates sigmoid(x Wr); a bias added for the choice alone; a group is as good as its two best (eq. 12 to 16)."""
    out, size = [], w["Wr"].shape[1] // groups
    for row in x:
        gates = torch.sigmoid(project(row, w["Wr"]))
        worth = gates + w["bias"]
        best = largest(
            torch.stack([part.sort(descending=True).values[:2].sum() for part in worth.split(size)]), k_groups
        )
        allowed = [e for e in largest(worth, len(worth)) if e // size in best][:k]
        total = gates[allowed].sum()
        y = gated(row, w["Wsg"], w["Wsu"], w["Wsd"])
        out.append(y + sum(stretch * gates[e] / total * expert(w, row, e) for e in allowed))
    return torch.stack(out)


def switch(w: Weights, x: Tensor) -> Tensor:
    """y = p_e(x) FFN_e(x), e the expert with the largest p (Fedus et al., eq. 1 and 2)."""
    out = []
    for row in x:
        p = softmax(project(row, w["Wr"]))
        (e,) = largest(p, 1)
        out.append(p[e] * project(torch.relu(project(row, w["W1"][e])), w["W2"][e]))
    return torch.stack(out)


def gated(row: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return project(silu(project(row, gate)) * project(row, up), down)
