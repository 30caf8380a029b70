"""Layers with a state that fades: gated delta rules, linear attention with decay, scans; attention by running sums."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .core import Sight, Weights, merge, project, project_all, softmax_rows, zero


def rms(x: Tensor, eps: float = 1e-5) -> Tensor:
    return x / torch.sqrt((x * x).mean() + eps)


def standard(x: Tensor, eps: float = 1e-5) -> Tensor:
    """x without its mean, divided by its standard deviation."""
    x = x - x.mean()
    return x / torch.sqrt((x * x).mean() + eps)


def unit(x: Tensor, eps: float = 0) -> Tensor:
    return x / (torch.sqrt((x * x).sum()) + eps)


def along(change: Callable[[int, Tensor], Tensor], first: Tensor, sight: Sight) -> list[Tensor]:
    """The states after each position, from `first` on; a position that may not be seen changes nothing."""
    states, state = [], first
    for t in range(sight.m):
        state = change(t, state) if sight.key(t) else state
        states.append(state)
    return states


def _delta_net(
    w: Weights, x: Tensor, see: dict[str, object], decays: Callable[[Tensor], Tensor],
    gates: Callable[[Tensor], Tensor], comba: bool = False,
) -> Tensor:  # fmt: skip
    """S_t = S_{t-1} diag(alpha_t) (1 - beta_t k_t k_t^T) + beta_t v_t k_t^T, o_t = S_t q_t, by head.

    comba: S_t = S_{t-1} (alpha_t - sigmoid(b) beta_t k_t k_t^T) + beta_t v_t k_t^T, o_t = S_t (q_t - D k_t).
    """
    sight = Sight(len(x), len(x), **see)
    out = [torch.zeros_like(row) for row in x]
    for a in range(w["Wq"].shape[1]):
        q = [unit(F.silu(project(row, w["Wq"][:, a])), 1e-6) for row in x]
        k = [unit(F.silu(project(row, w["Wk"][:, a])), 1e-6) for row in x]
        v = [F.silu(project(row, w["Wv"][:, a])) for row in x]
        beta = [torch.sigmoid(project(row, w["Wb"][:, a])) for row in x]
        alpha = [torch.exp(-torch.exp(w["speed"][a]) * F.softplus(decays(row)[a])) for row in x]
        d = len(q[0])

        def step(t: int, S: Tensor, a=a, k=k, v=v, beta=beta, alpha=alpha) -> Tensor:
            faded = S * alpha[t]  # e d: by channel of the key
            if comba:
                faded = faded - torch.sigmoid(w["b"][a]) * beta[t] * torch.outer(S @ k[t], k[t])
            else:
                faded = faded - beta[t] * torch.outer(faded @ k[t], k[t])
            return faded + beta[t] * torch.outer(v[t], k[t])

        states = along(step, torch.zeros(len(v[0]), d, dtype=x.dtype), sight)
        for i in range(sight.n):
            query = (q[i] - w["D"][a] * k[i] if comba else q[i]) / d**0.5
            read = rms(states[i] @ query) * w["norm"] * gates(x[i])[a]
            out[i] = out[i] + project(read, w["Wo"][a])
    return torch.stack(out)


def gated_deltanet(w: Weights, x: Tensor, **see: object) -> Tensor:
    """alpha = exp(-exp(A) softplus(x Wa + dt)) of a head, a gate silu(x Wg) (Gated DeltaNet, eq. 10)."""
    return _delta_net(
        w, x, see, lambda row: project(row, w["Wa"]) + w["step"], lambda row: F.silu(project(row, w["Wg"]))
    )


def comba(w: Weights, x: Tensor, **see: object) -> Tensor:
    """Gated DeltaNet with feedback of the state and of the output."""
    return _delta_net(
        w, x, see, lambda row: project(row, w["Wa"]) + w["step"], lambda row: F.silu(project(row, w["Wg"])), comba=True
    )


def gated_deltaproduct(w: Weights, x: Tensor, **see: object) -> Tensor:
    """S_t = alpha_t S_{t-1}, then S_t = (1 - beta_tr k_tr k_tr^T) S_t + beta_tr k_tr v_tr^T for each step r (eq. 4)."""
    sight = Sight(len(x), len(x), **see)
    out = [torch.zeros_like(row) for row in x]
    for a in range(w["Wq"].shape[1]):
        q = [unit(F.silu(project(row, w["Wq"][:, a])), 1e-6) for row in x]
        k = [[unit(F.silu(one), 1e-6) for one in project(row, w["Wk"][:, :, a])] for row in x]
        v = [F.silu(project(row, w["Wv"][:, :, a])) for row in x]
        beta = [2 * torch.sigmoid(project(row, w["Wb"][:, :, a])) for row in x]
        speed = torch.exp(w["speed"][a])
        alpha = [torch.exp(-speed * F.softplus(project(row, w["Wa"])[a] + w["step"][a])) for row in x]

        def change(t: int, S: Tensor, k=k, v=v, beta=beta, alpha=alpha) -> Tensor:
            S = alpha[t] * S
            for r in range(len(k[t])):
                S = S - beta[t][r] * torch.outer(k[t][r], k[t][r] @ S) + beta[t][r] * torch.outer(k[t][r], v[t][r])
            return S

        states = along(change, torch.zeros(len(q[0]), v[0].shape[-1], dtype=x.dtype), sight)
        for i in range(sight.n):
            gate = F.silu(project(x[i], w["Wg"])[a])
            read = rms(q[i] @ states[i] / len(q[i]) ** 0.5) * w["norm"] * gate
            out[i] = out[i] + project(read, w["Wo"][a])
    return torch.stack(out)


def kda(w: Weights, x: Tensor, **see: object) -> Tensor:
    """alpha of a channel, by a projection of low rank; a sigmoid gate of low rank (Kimi Linear)."""
    return _delta_net(
        w,
        x,
        see,
        lambda row: project(project(row, w["Wa1"]), w["Wa2"]) + w["step"],
        lambda row: torch.sigmoid(project(project(row, w["Wg1"]), w["Wg2"])),
    )


def rwkv7(w: Weights, x: Tensor, **see: object) -> Tensor:
    """S_t = S_{t-1} (diag(w_t) - kappa_t^T (a_t kappa_t)) + v_t^T k_t, read by r_t (RWKV-7)."""
    sight = Sight(len(x), len(x), **see)

    def lerp(t: int, name: str) -> Tensor:
        before = x[t - 1] if t > 0 and sight.key(t - 1) else torch.zeros_like(x[t])
        return x[t] + (before - x[t]) * w[f"mu_{name}"]

    out = [torch.zeros_like(row) for row in x]
    for a in range(w["Wr"].shape[1]):
        r, k, v, wide, rate, gate = [], [], [], [], [], []
        for t in range(len(x)):
            r.append(project(lerp(t, "r"), w["Wr"][:, a]))
            k.append(project(lerp(t, "k"), w["Wk"][:, a]))
            v.append(project(lerp(t, "v"), w["Wv"][:, a]))
            low = torch.tanh(project(lerp(t, "w"), w["Ww1"]))
            sharp = torch.sigmoid(project(low, w["Ww2"][:, a]) + w["w0"][a])
            wide.append(torch.exp(-torch.exp(torch.tensor(-0.5, dtype=x.dtype)) * sharp))
            rate.append(torch.sigmoid(project(project(lerp(t, "a"), w["Wa1"]), w["Wa2"][:, a]) + w["a0"][a]))
            gate.append(project(torch.sigmoid(project(lerp(t, "g"), w["Wg1"])), w["Wg2"][:, a]))
        kappa = [unit(one * w["xi"][a], 1e-12) for one in k]
        new = [one * (1 + (of - 1) * w["alpha"][a]) for one, of in zip(k, rate, strict=True)]

        def step(t: int, S: Tensor, kappa=kappa, new=new, wide=wide, rate=rate, v=v) -> Tensor:
            return S * wide[t] - torch.outer(S @ kappa[t], rate[t] * kappa[t]) + torch.outer(v[t], new[t])

        states = along(step, torch.zeros(len(v[0]), len(k[0]), dtype=x.dtype), sight)
        for i in range(sight.n):
            read = standard(states[i] @ r[i], 64e-5) * w["scale"][a] + w["shift"][a]
            read = read + (r[i] @ (w["rho"][a] * new[i])) * v[i]
            out[i] = out[i] + project(read * gate[i], w["Wo"][a])
    return torch.stack(out)


def turned(row: Tensor, position: int) -> Tensor:
    """Rotary positions, the first half beside the second."""
    half = len(row) // 2
    angle = position * 10000.0 ** (-torch.arange(half, dtype=row.dtype) / half)
    first, second = row[:half], row[half:]
    return torch.cat([first * angle.cos() - second * angle.sin(), second * angle.cos() + first * angle.sin()])


def _seen_sum(
    amount: Callable[[int, int, int], Tensor], v: list[Tensor], heads: int, sight: Sight
) -> list[list[Tensor]]:
    """The sum over the keys that a query sees of amount(head, query, key) times the key's value: [query][head]."""
    return [
        [
            sum((amount(a, i, j) * v[j][a] for j in range(sight.m) if sight(i, j)), torch.zeros_like(v[0][a]))
            for a in range(heads)
        ]
        for i in range(sight.n)
    ]


def _gated(reads: list[list[Tensor]], gates: list[Tensor], norm: Callable[[Tensor], Tensor], Wo: Tensor) -> Tensor:
    """Reads normalised by head, times gates, projected."""
    rows = []
    for read, gate in zip(reads, gates, strict=True):
        parts = [project(norm(one) * gate[a], Wo[a]) for a, one in enumerate(read)]
        rows.append(sum(parts[1:], parts[0]))
    return torch.stack(rows)


def retnet(w: Weights, x: Tensor, **see: object) -> Tensor:
    """(Q K^T D) V, D_nm = gamma^(n - m), gamma = 1 - 2^(-5 - head), then GroupNorm and a swish gate (eq. 5 to 8)."""
    sight = Sight(len(x), len(x), **see)
    Q, K, V = (project_all(x, w[name]) for name in ("Wq", "Wk", "Wv"))
    h, d = Q[0].shape

    def amount(a: int, i: int, j: int) -> Tensor:
        gamma = 1 - 2.0 ** (-5 - a)
        return turned(Q[i][a], i) @ turned(K[j][a], j) / d**0.5 * gamma ** (i - j)

    gates = [F.silu(one) for one in project_all(x, w["Wg"])]
    return _gated(_seen_sum(amount, V, h, sight), gates, standard, w["Wo"])


def gla(w: Weights, x: Tensor, tau: float = 16, **see: object) -> Tensor:
    """S_t = diag(alpha_t) S_{t-1} + k_t^T v_t, alpha = sigmoid(x Wa1 Wa2 + ba)^(1 / tau), read by q_t (eq. 4)."""
    sight = Sight(len(x), len(x), **see)
    Q, K, V = (project_all(x, w[name]) for name in ("Wq", "Wk", "Wv"))
    alpha = [torch.sigmoid(project(project(row, w["Wa1"]), w["Wa2"]) + w["ba"]) ** (1 / tau) for row in x]
    reads = [[zero()] * len(Q[0]) for _ in x]
    for a in range(len(Q[0])):

        def step(t: int, S: Tensor, a=a) -> Tensor:
            return alpha[t][a][:, None] * S + torch.outer(K[t][a], V[t][a])

        states = along(step, torch.zeros(Q[0].shape[1], V[0].shape[1], dtype=x.dtype), sight)
        for i in range(sight.n):
            reads[i][a] = (Q[i][a] / Q[0].shape[1] ** 0.5) @ states[i]
    gates = [F.silu(one + w["bg"]) for one in project_all(x, w["Wg"])]
    return _gated(reads, gates, standard, w["Wo"])


def hgrn(w: Weights, x: Tensor, bound: float = 0.5, **see: object) -> Tensor:
    """h_t = f_t h_{t-1} + (1 - f_t) i_t, f = bound + (1 - bound) sigmoid(x Wf), then a norm and a gate."""
    sight = Sight(len(x), len(x), **see)
    f = [bound + (1 - bound) * torch.sigmoid(one) for one in project_all(x, w["Wf"])]
    new = [F.silu(one) for one in project_all(x, w["Wi"])]
    states = along(lambda t, h: f[t] * h + (1 - f[t]) * new[t], torch.zeros_like(f[0]), sight)
    gates = [F.silu(one) for one in project_all(x, w["Wg"])]
    rows = [rms(h) * w["norm"] * gate for h, gate in zip(states, gates, strict=True)]
    return torch.stack([project(row, w["Wo"]) for row in rows])


def rg_lru(w: Weights, x: Tensor, c: float = 8, **see: object) -> Tensor:
    """h_t = a_t h_{t-1} + sqrt(1 - a_t^2) (i_t x_t), a = sigmoid(-Lambda)^(c r), gates r and i (eq. 1 to 4)."""
    sight = Sight(len(x), len(x), **see)
    out = [torch.zeros_like(row) for row in x]
    for b in range(w["Wx"].shape[1]):
        X = [project(row, w["Wx"][:, b]) for row in x]
        r = [torch.sigmoid(project(one, w["Wa"][b]) + w["ba"][b]) for one in X]
        i = [torch.sigmoid(project(one, w["Wi"][b]) + w["bi"][b]) for one in X]
        fade = [torch.sigmoid(-w["Lambda"][b]) ** (c * one) for one in r]

        def step(t: int, h: Tensor, X=X, i=i, fade=fade) -> Tensor:
            return fade[t] * h + torch.sqrt(1 - fade[t] ** 2) * i[t] * X[t]

        states = along(step, torch.zeros_like(X[0]), sight)
        for t, h in enumerate(states):
            out[t] = out[t] + project(h * F.gelu(project(x[t], w["Wg"][:, b])), w["Wo"][b])
    return torch.stack(out)


def mamba1(w: Weights, x: Tensor, **see: object) -> Tensor:
    """h_t = exp(-t A) h_{t-1} + t B_t u_t for each channel, y_t = C_t h_t + D u_t (Mamba, algorithm 2)."""
    sight = Sight(len(x), len(x), **see)
    u = [F.silu(project(row, w["Wx"])) for row in x]
    B, C = ([project(one, w[name]) for one in u] for name in ("Wb", "Wc"))
    step = [F.softplus(project(project(one, w["Wt1"]), w["Wt2"]) + w["bt"]) for one in u]

    def change(t: int, h: Tensor) -> Tensor:  # channel state
        return torch.exp(-step[t][:, None] * torch.exp(w["A"])) * h + torch.outer(step[t] * u[t], B[t])

    states = along(change, torch.zeros_like(w["A"]), sight)
    rows = [(states[t] @ C[t] + w["D"] * u[t]) * F.silu(project(x[t], w["Wz"])) for t in range(len(x))]
    return torch.stack([project(row, w["Wo"]) for row in rows])


def mamba2(w: Weights, x: Tensor, **see: object) -> Tensor:
    """S_t = exp(-t A) S_{t-1} + t B_t v_t^T of a head, y_t = C_t S_t + D v_t, then a gate and a norm (Mamba 2)."""
    sight = Sight(len(x), len(x), **see)
    V = [F.silu(one) for one in project_all(x, w["Wx"])]
    B, C = ([F.silu(one) for one in project_all(x, w[name])] for name in ("Wb", "Wc"))
    t = [F.softplus(one + w["bt"]) for one in project_all(x, w["Wt"])]
    h, d = V[0].shape
    rows = [torch.zeros(h, d, dtype=x.dtype) for _ in x]
    for a in range(h):

        def step(i: int, S: Tensor, a=a) -> Tensor:
            return torch.exp(-torch.exp(w["A"][a]) * t[i][a]) * S + t[i][a] * torch.outer(B[i], V[i][a])

        for i, S in enumerate(along(step, torch.zeros(len(B[0]), d, dtype=x.dtype), sight)):
            place = torch.zeros(h, 1, dtype=x.dtype)
            place[a] = 1
            rows[i] = rows[i] + place * (C[i] @ S + w["D"][a] * V[i][a])
    gated = [row * F.silu(gate) for row, gate in zip(rows, project_all(x, w["Wz"]), strict=True)]
    normed = [rms(row) * w["norm"] for row in gated]
    return torch.stack([sum((project(row[a], w["Wo"][a]) for a in range(h)), torch.zeros_like(x[0])) for row in normed])


def mingru(w: Weights, x: Tensor, **see: object) -> Tensor:
    """h_t = (1 - z_t) h_{t-1} + z_t (x_t Wh), z = sigmoid(x Wz)."""
    sight = Sight(len(x), len(x), **see)
    z = [torch.sigmoid(one) for one in project_all(x, w["Wz"])]
    new = project_all(x, w["Wh"])
    states = along(lambda t, h: (1 - z[t]) * h + z[t] * new[t], torch.zeros_like(z[0]), sight)
    return torch.stack([project(h, w["Wo"]) for h in states])


def stick_breaking(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_ij = b_ij times the product of 1 - b_ik over the keys j < k < i, b = sigmoid(q_i . k_j / sqrt(d)) for j < i."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape

    def share(a: int, i: int, j: int) -> Tensor:
        return torch.sigmoid(Q[i][a] @ K[j][a] / d**0.5)

    def seen(i: int, j: int) -> bool:
        return sight(i, j) and j < sight.position(i)

    def weight(a: int, i: int, j: int) -> Tensor:
        left = torch.ones((), dtype=x.dtype)
        for other in range(j + 1, sight.m):
            left = left * (1 - share(a, i, other)) if seen(i, other) else left
        return share(a, i, j) * left if seen(i, j) else zero()

    return merge([[[weight(a, i, j) for j in range(sight.m)] for i in range(sight.n)] for a in range(h)], V, w["Wo"])


def cope(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """Scores q_i . k_j / sqrt(d) + q_i . e[p_ij], p_ij the sum of sigmoid(q_i . k_l) over l from j to i (CoPE)."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape
    last = w["E"].shape[1] - 1

    def score(a: int, i: int, j: int) -> Tensor:
        gates = [torch.sigmoid(Q[i][a] @ K[other][a]) for other in range(j, sight.m) if sight(i, other)]
        place = torch.clamp(sum(gates, zero()), max=last)
        low = min(int(place.item()), last - 1)
        share = place - low
        embedding = (1 - share) * w["E"][:, low] + share * w["E"][:, low + 1]
        return Q[i][a] @ K[j][a] / d**0.5 + Q[i][a] @ embedding

    return merge(softmax_rows(score, h, sight), V, w["Wo"])


def fox(w: Weights, x: Tensor, **see: object) -> Tensor:
    """Scores q_i . k_j / sqrt(d) plus log(f_l) summed over l from j + 1 to i, f = sigmoid(x Wf + bf)."""
    sight = Sight(len(x), len(x), **see)
    Q, K, V = (project_all(x, w[name]) for name in ("Wq", "Wk", "Wv"))
    f = [torch.log(torch.sigmoid(project(row, w["Wf"]) + w["bf"])) for row in x]
    h, d = Q[0].shape

    def sums(a: int, i: int) -> Tensor:
        """Up to a position, of those that its query sees."""
        return sum((f[t][a] for t in range(i + 1) if sight(i, t)), zero())

    def score(a: int, i: int, j: int) -> Tensor:
        return Q[i][a] @ K[j][a] / d**0.5 + sums(a, i) - sums(a, j)

    return merge(softmax_rows(score, h, sight), V, w["Wo"])
