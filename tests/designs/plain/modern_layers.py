"""Layers of today's models that are no softmax over scores, and feed-forward layers, straight from their papers."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .core import Sight, Weights, largest, merge, project, project_all, rows_of, share, softmax_rows, weighted


def sigmoid_attention(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """sigmoid(q_i . k_j / sqrt(d) + b) v_j, b = -log m (Ramapuram et al., eq. 3)."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape
    bias = -torch.log(torch.tensor(float(sight.m), dtype=torch.float64))

    def amount(a: int, i: int, j: int) -> Tensor:
        return torch.sigmoid(Q[i][a] @ K[j][a] / d**0.5 + bias) if sight(i, j) else 0 * bias

    A = [[[amount(a, i, j) for j in range(sight.m)] for i in range(sight.n)] for a in range(h)]
    return merge(A, V, w["Wo"])


def laser(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """log(softmax(Q K^T / sqrt(d)) exp(V)) (Duvvuri and Dhillon, eq. 5); a row that sees nothing takes log(1e-20)."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape
    A = softmax_rows(lambda a, i, j: Q[i][a] @ K[j][a] / d**0.5, h, sight)
    out = []
    for i in range(sight.n):
        parts = [torch.log(torch.clamp(weighted(A[a][i], [torch.exp(v[a]) for v in V]), min=1e-20)) for a in range(h)]
        out.append(sum(project(part, w["Wo"][a]) for a, part in enumerate(parts)))
    return torch.stack(out)


def based(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """phi(q) . phi(k) = 1 + q.k + (q.k)^2 / 2 of queries scaled by 1 / sqrt(d), over its sum (Arora et al., eq. 5)."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape

    def amount(a: int, i: int, j: int) -> Tensor:
        s = Q[i][a] @ K[j][a] / d**0.5
        return 1 + s + s * s / 2

    return merge(rows_of(amount, h, sight, 1e-6), V, w["Wo"])


def gau(w: Weights, x: Tensor, **see: object) -> Tensor:
    """U, V, Z = silu(x W); q, k = Z * gamma + beta; O = (U * relu(q k^T / n)^2 V) Wo (Hua et al., eq. 3 to 6)."""
    sight = Sight(len(x), len(x), **see)
    U, V, Z = ([silu(row) for row in project_all(x, w[name])] for name in ("Wu", "Wv", "Wz"))
    out = []
    for i in range(sight.n):
        o = torch.zeros_like(V[0])
        for j in range(sight.m):
            if sight(i, j):
                q, k = Z[i] * w["q_scale"] + w["q_shift"], Z[j] * w["k_scale"] + w["k_shift"]
                o = o + torch.clamp(q @ k / sight.m, min=0) ** 2 * V[j]
        out.append(project(U[i] * o, w["Wo"]))
    return torch.stack(out)


def abc(w: Weights, x: Tensor, **see: object) -> Tensor:
    """K~ = sum over j of phi_j k_j^T, V~ likewise, phi_j = exp(Ws x_j) / sum; softmax(q K~) V~ (Peng et al., eq. 6)."""
    sight = Sight(len(x), len(x), **see)
    Q, K, V, S = (project_all(x, w[name]) for name in ("Wq", "Wk", "Wv", "Ws"))
    (h, d), r = Q[0].shape, S[0].shape[-1]
    out = []
    for i in range(sight.n):
        y = torch.zeros_like(x[i])
        for a in range(h):
            slots, values = [], []
            for b in range(r):
                phi = [torch.exp(S[j][a, b]) if sight(i, j) else 0 * S[j][a, b] for j in range(sight.m)]
                row = share(phi)
                slots.append(weighted(row, [k[a] for k in K]))
                values.append(weighted(row, [v[a] for v in V]))
            looks = share([torch.exp(Q[i][a] @ slot / d**0.5) for slot in slots])
            y = y + project(weighted(looks, values), w["Wo"][a])
        out.append(y)
    return torch.stack(out)


def gsa(w: Weights, x: Tensor, tau: float = 8, **see: object) -> Tensor:
    """K~ <- Diag(a) K~ + (1 - a) k^T, V~ likewise, a = sigmoid(Ws x) ** (1 / tau); softmax(q K~) V~ (eq. 8 to 10)."""
    sight = Sight(len(x), len(x), **see)
    Q, K, V, S = (project_all(x, w[name]) for name in ("Wq", "Wk", "Wv", "Ws"))
    (h, d), r = Q[0].shape, S[0].shape[-1]
    alpha, out = [torch.sigmoid(s) ** (1 / tau) for s in S], []
    for i in range(sight.n):
        y = torch.zeros_like(x[i])
        for a in range(h):
            slots, values = [torch.zeros_like(K[0][a])] * r, [torch.zeros_like(V[0][a])] * r
            for j in range(sight.m):
                for b in range(r):
                    fade = torch.ones((), dtype=torch.float64)  # of key j until query i
                    for t in range(j + 1, i + 1):
                        fade = fade * (alpha[t][a, b] if sight.key(t) else 1)
                    if sight(i, j):
                        share_ = fade * (1 - alpha[j][a, b])
                        slots[b] = slots[b] + share_ * K[j][a]
                        values[b] = values[b] + share_ * V[j][a]
            looks = share([torch.exp(Q[i][a] @ slot / d**0.5) for slot in slots])
            y = y + project(weighted(looks, values), w["Wo"][a])
        out.append(y)
    return torch.stack(out)


def minimax(w: Weights, x: Tensor, speed: float = 1, **see: object) -> Tensor:
    """o_i = sum over j of exp(-slope (i - j)) (q_i . k_j) v_j; y = (sigmoid(x Wg) * RMSNorm(o)) Wo (section 2.2)."""
    sight = Sight(len(x), len(x), **see)
    Q, K, V = ([silu(row) for row in project_all(x, w[name])] for name in ("Wq", "Wk", "Wv"))
    G, h, out = project_all(x, w["Wg"]), len(Q[0]), []
    for i in range(sight.n):
        o = torch.zeros_like(V[0])
        for j in range(sight.m):
            if sight(i, j):
                fades = [math.exp(-speed * 2 ** (-8 * (a + 1) / h) * (i - j)) for a in range(h)]
                o = o + torch.stack([fades[a] * (Q[i][a] @ K[j][a]) * V[j][a] for a in range(h)])
        o = torch.sigmoid(G[i]) * o / torch.sqrt((o * o).mean() + 1e-6) * w["norm"]
        out.append(sum(project(o[a], w["Wo"][a]) for a in range(h)))
    return torch.stack(out)


def moh(w: Weights, x: Tensor, memory: Tensor, k: int = 2, **see: object) -> Tensor:
    """y_t = sum_i g_i H_i Wo[i], g = a_1 softmax(x Rs) of shared heads, a_2 softmax(x Rh) of the k largest of the rest,
    a = softmax(x Rp) (Jin et al., section 3.2)."""

    def attended(names: tuple[str, str, str]) -> list[list[Tensor]]:
        Q, K, V = project_all(x, w[names[0]]), project_all(memory, w[names[1]]), project_all(memory, w[names[2]])
        h, d = Q[0].shape
        A = softmax_rows(lambda a, i, j: Q[i][a] @ K[j][a] / d**0.5, h, Sight(len(x), len(memory), **see))
        return [[weighted(A[a][i], [v[a] for v in V]) for a in range(h)] for i in range(len(x))]

    def shares(logits: Tensor) -> Tensor:
        return torch.exp(logits) / torch.exp(logits).sum()

    common, others, out = attended(("Sq", "Sk", "Sv")), attended(("Wq", "Wk", "Wv")), []
    for i, row in enumerate(x):
        a, shared, routed = (shares(project(row, w[name])) for name in ("Rp", "Rs", "Rh"))
        parts = [a[0] * shared[head] * project(own, w["So"][head]) for head, own in enumerate(common[i])]
        parts += [a[1] * routed[head] * project(others[i][head], w["Wo"][head]) for head in largest(routed, k)]
        out.append(sum(parts[1:], parts[0]))
    return torch.stack(out)


def rwkv4(w: Weights, x: Tensor, **see: object) -> Tensor:
    """wkv_i = (sum over j < i of exp(-(i - 1 - j) decay + k_j) v_j + exp(u + k_i) v_i) / the same without v, a channel
    at a time, decay = exp(w); y = (sigmoid(r) * wkv) Wo (Peng et al., eq. 11 to 18). Keys not seen are left out."""
    sight = Sight(len(x), len(x), **see)
    rows = []
    for i in range(sight.n):
        last = x[i - 1] if i and sight.key(i - 1) else torch.zeros_like(x[i])
        rows.append({letter: w[f"mu_{letter}"] * x[i] + (1 - w[f"mu_{letter}"]) * last for letter in "rkv"})
    K, V = ([project(row[letter], w[f"W{letter}"]) for row in rows] for letter in "kv")
    decay, out = torch.exp(w["w"]), []
    for i in range(sight.n):
        above, below = torch.zeros_like(V[0]), torch.zeros_like(V[0])
        for j in range(sight.m):
            if sight(i, j):
                size = torch.exp(K[j] + (w["u"] if i == j else -(i - 1 - j) * decay))
                above, below = above + size * V[j], below + size
        wkv = above / torch.where(below > 0, below, torch.ones_like(below))
        out.append(project(torch.sigmoid(project(rows[i]["r"], w["Wr"])) * wkv, w["Wo"]))
    return torch.stack(out)


def lfm2(w: Weights, x: Tensor) -> Tensor:
    """y = (C * conv(B * X)) Wo, a channel by itself, up to the position (LFM2, section 2)."""
    B, C, X = (project_all(x, w[name]) for name in ("Wb", "Wc", "Wx"))
    taps, out = w["T"], []
    for i in range(len(x)):
        places = [(t, i + t - len(taps) + 1) for t in range(len(taps))]
        near = sum((taps[t] * B[j] * X[j] for t, j in places if j >= 0), torch.zeros_like(X[0]))
        out.append(project(C[i] * near, w["Wo"]))
    return torch.stack(out)


def nemotron_mlp(w: Weights, x: Tensor) -> Tensor:
    """relu(x W1)^2 W2 (So et al., section 4)."""
    return torch.stack([project(torch.clamp(project(row, w["W1"]), min=0) ** 2, w["W2"]) for row in x])


def swiglu(w: Weights, x: Tensor) -> Tensor:
    """(silu(x W) * x V) W2 (Shazeer, eq. 6)."""
    return torch.stack([gated(row, w["Wg"], w["Wu"], w["Wd"]) for row in x])


def geglu(w: Weights, x: Tensor) -> Tensor:
    """(GELU(x W) * x V) W2 (Shazeer, eq. 6)."""

    def gelu(v: Tensor) -> Tensor:
        return v * (1 + torch.erf(v / 2**0.5)) / 2

    return torch.stack([project(gelu(project(row, w["Wg"])) * project(row, w["Wu"]), w["Wd"]) for row in x])


def mixtral(w: Weights, x: Tensor, k: int = 2) -> Tensor:
    """y = sum over i of Softmax(TopK(x Wr))_i SwiGLU_i(x) (Mixtral, section 2.1)."""
    out = []
    for row in x:
        logits = project(row, w["Wr"])
        chosen = largest(logits, k)
        amounts = share([torch.exp(logits[e]) for e in chosen])
        parts = [gated(row, w["Wg"][e], w["Wu"][e], w["Wd"][e]) for e in chosen]
        out.append(weighted(amounts, parts))
    return torch.stack(out)


def qwen2_moe(w: Weights, x: Tensor, k: int = 2) -> Tensor:
    """Chosen experts with their probability among all, and the shared one with a sigmoid gate."""
    out = []
    for row in x:
        logits = project(row, w["Wr"])
        probabilities = share([torch.exp(logit) for logit in logits])
        y = torch.sigmoid(row @ w["gate"]) * gated(row, w["Wsg"], w["Wsu"], w["Wsd"])
        for e in largest(logits, k):
            y = y + probabilities[e] * gated(row, w["Wg"][e], w["Wu"][e], w["Wd"][e])
        out.append(y)
    return torch.stack(out)


def deepseek_moe(w: Weights, x: Tensor, k: int = 4, groups: int = 8, k_groups: int = 4, stretch: float = 2.5) -> Tensor:
    """Gates sigmoid(x Wr); a bias added for the choice alone; a group is as good as its two best (eq. 12 to 16)."""
    out, size = [], w["Wr"].shape[1] // groups
    for row in x:
        gates = torch.sigmoid(project(row, w["Wr"]))
        worth = gates + w["bias"]
        parts = [worth[i * size : (i + 1) * size] for i in range(groups)]
        best = largest(torch.stack([part.sort(descending=True).values[:2].sum() for part in parts]), k_groups)
        allowed = [e for e in largest(worth, len(worth)) if e // size in best][:k]
        total = sum(gates[e] for e in allowed)
        y = gated(row, w["Wsg"], w["Wsu"], w["Wsd"])
        for e in allowed:
            y = y + stretch * gates[e] / total * gated(row, w["Wg"][e], w["Wu"][e], w["Wd"][e])
        out.append(y)
    return torch.stack(out)


def switch(w: Weights, x: Tensor) -> Tensor:
    """y = p_e(x) FFN_e(x), e the expert with the largest p (Fedus et al., eq. 1 and 2)."""
    out = []
    for row in x:
        logits = project(row, w["Wr"])
        (e,) = largest(logits, 1)
        p = share([torch.exp(logit) for logit in logits])[e]
        out.append(p * project(torch.clamp(project(row, w["W1"][e]), min=0), w["W2"][e]))
    return torch.stack(out)


def silu(v: Tensor) -> Tensor:
    return v / (1 + torch.exp(-v))


def gated(row: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return project(silu(project(row, gate)) * project(row, up), down)
