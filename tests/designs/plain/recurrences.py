"""Layers with a state that fades: gated delta rules, linear attention with decay, scans; attention by running sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu, softplus

from .core import (
    Sight,
    Weights,
    attended,
    biased,
    by_head,
    joined,
    layer_normed,
    merge,
    project_all,
    projections,
    read,
    rms,
    scaled,
    seen_maps,
    turned_all,
    zero,
)
from .modern_layers import before


def unit(x: Tensor, eps: float = 1e-6) -> Tensor:
    """Divided by the length of its last axis."""
    return x / (torch.sqrt((x * x).sum(-1, keepdim=True)) + eps)


def low_rank(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    """x W1 W2."""
    return project_all(project_all(x, first), second)


def along(change: Callable[[int, Tensor], Tensor], first: Tensor, sight: Sight) -> list[Tensor]:
    """The states after each position, from `first` on; a position that may not be seen changes nothing."""
    states, state = [], first
    for t in range(sight.m):
        state = change(t, state) if sight.key(t) else state
        states.append(state)
    return states


def _delta_net(w: Weights, x: Tensor, sight: Sight, decays: Tensor, gates: Tensor, comba: bool = False) -> Tensor:
    """S_t = S_{t-1} diag(alpha_t) (1 - beta_t k_t k_t^T) + beta_t v_t k_t^T, o_t = S_t q_t, by head.

    comba: S_t = S_{t-1} (alpha_t - sigmoid(b) beta_t k_t k_t^T) + beta_t v_t k_t^T, o_t = S_t (q_t - D k_t).
    """
    Q, K, V = map(silu, projections(w, x, x))

    def head(a: int) -> Tensor:
        q, k, v = unit(Q[:, a]), unit(K[:, a]), V[:, a]
        beta = torch.sigmoid(project_all(x, w["Wb"]))[:, a]
        alpha = torch.exp(-torch.exp(w["speed"][a]) * softplus(decays[:, a] + w["step"][a]))

        def step(t: int, S: Tensor) -> Tensor:
            faded = S * alpha[t]  # e d: by channel of the key
            if comba:
                faded = faded - torch.sigmoid(w["b"][a]) * beta[t] * torch.outer(S @ k[t], k[t])
            else:
                faded = faded - beta[t] * torch.outer(faded @ k[t], k[t])
            return faded + beta[t] * torch.outer(v[t], k[t])

        states = along(step, x.new_zeros(len(v[0]), len(k[0])), sight)
        queries = q - w["D"][a] * k if comba else q
        reads = torch.stack([S @ queries[i] / len(q[i]) ** 0.5 for i, S in enumerate(states)])
        return rms(reads, 1e-5) * w["norm"] * gates[:, a]

    return by_head(head, w["Wo"])


def gated_deltanet(w: Weights, x: Tensor, sight: Sight, comba: bool = False) -> Tensor:
    """alpha = exp(-exp(A) softplus(x Wa + dt)) of a head, a gate silu(x Wg) (Gated DeltaNet, eq. 10)."""
    return _delta_net(w, x, sight, project_all(x, w["Wa"]), silu(project_all(x, w["Wg"])), comba)


def comba(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """Gated DeltaNet with feedback of the state and of the output."""
    return gated_deltanet(w, x, sight, comba=True)


def gated_deltaproduct(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """S_t = alpha_t S_{t-1}, then S_t = (1 - beta_tr k_tr k_tr^T) S_t + beta_tr k_tr v_tr^T for each step r (eq. 4)."""
    Q, K, V = map(silu, projections(w, x, x))

    def head(a: int) -> Tensor:
        q, k, v = unit(Q[:, a]), unit(K[:, :, a]), V[:, :, a]
        beta = 2 * torch.sigmoid(project_all(x, w["Wb"]))[:, :, a]
        alpha = torch.exp(-torch.exp(w["speed"][a]) * softplus(project_all(x, w["Wa"])[:, a] + w["step"][a]))

        def change(t: int, S: Tensor) -> Tensor:
            S = alpha[t] * S
            for r in range(len(k[t])):
                S = S - beta[t][r] * torch.outer(k[t][r], k[t][r] @ S) + beta[t][r] * torch.outer(k[t][r], v[t][r])
            return S

        states = along(change, x.new_zeros(len(q[0]), v[0].shape[-1]), sight)
        reads = torch.stack([q[i] @ S / len(q[i]) ** 0.5 for i, S in enumerate(states)])
        return rms(reads, 1e-5) * w["norm"] * silu(project_all(x, w["Wg"]))[:, a]

    return by_head(head, w["Wo"])


def kda(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """alpha of a channel, by a projection of low rank; a sigmoid gate of low rank (Kimi Linear)."""
    gates = torch.sigmoid(low_rank(x, w["Wg1"], w["Wg2"]))
    return _delta_net(w, x, sight, low_rank(x, w["Wa1"], w["Wa2"]), gates)


def rwkv7(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """S_t = S_{t-1} (diag(w_t) - kappa_t^T (a_t kappa_t)) + v_t^T k_t, read by r_t (RWKV-7)."""
    R, K, V, W, A, G = (x + (before(x, sight) - x) * w[f"mu_{letter}"] for letter in "rkvwag")
    r, k, v = project_all(R, w["Wr"]), project_all(K, w["Wk"]), project_all(V, w["Wv"])
    sharp = torch.sigmoid(project_all(torch.tanh(project_all(W, w["Ww1"])), w["Ww2"]) + w["w0"])
    wide = torch.exp(-torch.exp(torch.tensor(-0.5, dtype=x.dtype)) * sharp)
    rate = torch.sigmoid(low_rank(A, w["Wa1"], w["Wa2"]) + w["a0"])
    gate = project_all(torch.sigmoid(project_all(G, w["Wg1"])), w["Wg2"])
    kappa = unit(k * w["xi"], 1e-12)
    new = k * (1 + (rate - 1) * w["alpha"])

    def head(a: int) -> Tensor:
        def step(t: int, S: Tensor) -> Tensor:
            fed_back = torch.outer(S @ kappa[t, a], rate[t, a] * kappa[t, a])
            return S * wide[t, a] - fed_back + torch.outer(v[t, a], new[t, a])

        reads = []
        for i, S in enumerate(along(step, x.new_zeros(v.shape[-1], k.shape[-1]), sight)):
            o = layer_normed(S @ r[i, a], 64e-5) * w["scale"][a] + w["shift"][a]
            reads.append((o + (r[i, a] @ (w["rho"][a] * new[i, a])) * v[i, a]) * gate[i, a])
        return reads

    return by_head(head, w["Wo"])


def retnet(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """(Q K^T D) V, D_nm = gamma^(n - m), gamma = 1 - 2^(-5 - head), then GroupNorm and a swish gate (eq. 5 to 8)."""
    Q, K, V = turned_all(w, x, x, sight)

    def amount(a: int, i: int, j: int) -> Tensor:
        return scaled(Q[i, a], K[j, a]) * (1 - 2.0 ** (-5 - a)) ** (i - j)

    gates = silu(project_all(x, w["Wg"]))
    return joined(layer_normed(read(seen_maps(amount, len(Q[0]), sight), V)) * gates, w["Wo"])


def gla(w: Weights, x: Tensor, sight: Sight, tau: float = 16) -> Tensor:
    """S_t = diag(alpha_t) S_{t-1} + k_t^T v_t, alpha = sigmoid(x Wa1 Wa2 + ba)^(1 / tau), read by q_t (eq. 4)."""
    Q, K, V = projections(w, x, x)
    alpha = torch.sigmoid(low_rank(x, w["Wa1"], w["Wa2"]) + w["ba"]) ** (1 / tau)
    gates = silu(project_all(x, w["Wg"]) + w["bg"])

    def head(a: int) -> Tensor:
        def step(t: int, S: Tensor) -> Tensor:
            return alpha[t, a, :, None] * S + torch.outer(K[t, a], V[t, a])

        states = along(step, x.new_zeros(Q.shape[-1], V.shape[-1]), sight)
        reads = torch.stack([Q[i, a] @ S / Q.shape[-1] ** 0.5 for i, S in enumerate(states)])
        return layer_normed(reads) * gates[:, a]

    return by_head(head, w["Wo"])


def hgrn(w: Weights, x: Tensor, sight: Sight, bound: float = 0.5) -> Tensor:
    """h_t = f_t h_{t-1} + (1 - f_t) i_t, f = bound + (1 - bound) sigmoid(x Wf), then a norm and a gate."""
    f = bound + (1 - bound) * torch.sigmoid(project_all(x, w["Wf"]))
    new = silu(project_all(x, w["Wi"]))
    states = along(lambda t, h: f[t] * h + (1 - f[t]) * new[t], torch.zeros_like(f[0]), sight)
    gates = silu(project_all(x, w["Wg"]))
    return project_all(rms(torch.stack(states), 1e-5) * w["norm"] * gates, w["Wo"])


def rg_lru(w: Weights, x: Tensor, sight: Sight, c: float = 8) -> Tensor:
    """h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t), a = sigmoid(-Lambda)^(c r), gates r and i (eq. 1 to 4)."""

    def head(b: int) -> Tensor:
        X = project_all(x, w["Wx"][:, b])
        r, i = (torch.sigmoid(project_all(X, w[f"W{letter}"][b]) + w[f"b{letter}"][b]) for letter in "ai")
        fade = torch.sigmoid(-w["Lambda"][b]) ** (c * r)

        def step(t: int, h: Tensor) -> Tensor:
            return fade[t] * h + torch.sqrt(1 - fade[t] ** 2) * i[t] * X[t]

        return torch.stack(along(step, torch.zeros_like(X[0]), sight)) * gelu(project_all(x, w["Wg"][:, b]))

    return by_head(head, w["Wo"])


def mamba1(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """h_t = exp(-t A) h_{t-1} + t B_t u_t for each channel, y_t = C_t h_t + D u_t (Mamba, algorithm 2)."""
    u = silu(project_all(x, w["Wx"]))
    B, C = project_all(u, w["Wb"]), project_all(u, w["Wc"])
    step = softplus(low_rank(u, w["Wt1"], w["Wt2"]) + w["bt"])

    def change(t: int, h: Tensor) -> Tensor:  # channel state
        return torch.exp(-step[t][:, None] * torch.exp(w["A"])) * h + torch.outer(step[t] * u[t], B[t])

    states = along(change, torch.zeros_like(w["A"]), sight)
    reads = torch.stack([h @ C[t] + w["D"] * u[t] for t, h in enumerate(states)])
    return project_all(reads * silu(project_all(x, w["Wz"])), w["Wo"])


def mamba2(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """S_t = exp(-t A) S_{t-1} + t B_t v_t^T of a head, y_t = C_t S_t + D v_t, then a gate and a norm (Mamba 2)."""
    V, B, C = (silu(project_all(x, w[name])) for name in ("Wx", "Wb", "Wc"))
    t = softplus(project_all(x, w["Wt"]) + w["bt"])

    def head(a: int) -> Tensor:
        def step(i: int, S: Tensor) -> Tensor:
            return torch.exp(-torch.exp(w["A"][a]) * t[i, a]) * S + t[i, a] * torch.outer(B[i], V[i, a])

        states = along(step, x.new_zeros(len(B[0]), V.shape[-1]), sight)
        return torch.stack([C[i] @ S + w["D"][a] * V[i, a] for i, S in enumerate(states)])

    reads = torch.stack([head(a) for a in range(V.shape[1])], 1)
    return joined(rms(reads * silu(project_all(x, w["Wz"])), 1e-5, (1, 2)) * w["norm"], w["Wo"])


def mingru(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """h_t = (1 - z_t) h_{t-1} + z_t (x_t Wh), z = sigmoid(x Wz)."""
    z, new = torch.sigmoid(project_all(x, w["Wz"])), project_all(x, w["Wh"])
    states = along(lambda t, h: (1 - z[t]) * h + z[t] * new[t], torch.zeros_like(z[0]), sight)
    return project_all(states, w["Wo"])


def stick_breaking(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_ij = b_ij times the product of 1 - b_ik over the keys j < k < i, b = sigmoid(q_i . k_j / sqrt(d)) for j < i."""
    Q, K, V = projections(w, x, memory)

    def share(a: int, i: int, j: int) -> Tensor:
        return torch.sigmoid(scaled(Q[i, a], K[j, a])) if j < sight.position(i) else zero()

    def weight(a: int, i: int, j: int) -> Tensor:
        return share(a, i, j) * math.prod(1 - share(a, i, between) for between in sight.keys(i) if between > j)

    return merge(seen_maps(weight, len(Q[0]), sight), V, w["Wo"])


def cope(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """Scores q_i . k_j / sqrt(d) + q_i . e[p_ij], p_ij the sum of sigmoid(q_i . k_l) over l from j to i (CoPE)."""
    Q, K, V = projections(w, x, memory)
    last = w["E"].shape[1] - 1

    def score(a: int, i: int, j: int) -> Tensor:
        place = torch.clamp(sum(torch.sigmoid(Q[i, a] @ K[key, a]) for key in sight.keys(i) if key >= j), max=last)
        low = min(int(place.item()), last - 1)
        share = place - low
        embedding = (1 - share) * w["E"][:, low] + share * w["E"][:, low + 1]
        return scaled(Q[i, a], K[j, a]) + Q[i, a] @ embedding

    return attended(score, w, V, sight)


def fox(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """Scores q_i . k_j / sqrt(d) plus log(f_l) summed over l from j + 1 to i, f = sigmoid(x Wf + bf)."""
    Q, K, V = projections(w, x, x)
    f = torch.log(torch.sigmoid(biased(w, "f", x)))

    def sums(a: int, i: int) -> Tensor:
        """Up to a position, of those that its query sees."""
        return sum((f[t, a] for t in sight.keys(i) if t <= i), zero())

    def score(a: int, i: int, j: int) -> Tensor:
        return scaled(Q[i, a], K[j, a]) + sums(a, i) - sums(a, j)

    return attended(score, w, V, sight)
