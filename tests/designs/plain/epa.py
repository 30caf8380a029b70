"""Expert projection attention, gated heads, mixture of attention heads, sigma-MoE."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import torch
from torch import Tensor

from .core import Maps, Sight, Weights, largest, project, project_all, softmax_rows, weighted
from .positions import sinusoid, turned

Layer = Callable[..., Tensor]


def having(letters: str) -> Layer:
    """EPA whose projections `letters` have experts (Few Heads Are Enough, table 1), the others none."""

    def layer(w: Weights, x: Tensor, memory: Tensor, k: int = 2, **see: object) -> Tensor:
        source, target = gates(memory, w.get("Ss"), k), gates(x, w.get("Sd"), k)
        Q = projected(x, w["Wq"], target if "q" in letters else None)
        K = projected(memory, w["Wk"], source if "k" in letters else None)
        V = projected(memory, w["Wv"], source if "v" in letters else None)
        h, d = Q[0].shape
        A = softmax_rows(lambda a, i, j: Q[i][a] @ K[j][a] / d**0.5, h, Sight(len(x), len(memory), **see))
        return output(A, V, w["Wo"], target if "o" in letters else None)

    return layer


epa = having("vo")
epa_v, epa_k, epa_q, epa_o = having("v"), having("k"), having("q"), having("o")
epa_vk, epa_vq, epa_kq, epa_ko, epa_qo = having("vk"), having("vq"), having("kq"), having("ko"), having("qo")
epa_vkq, epa_vko, epa_vqo, epa_kqo = having("vkq"), having("vko"), having("vqo"), having("kqo")
epa_vkqo = having("vkqo")

Gates = list[list[dict[int, Tensor]]]  # [position][head]: of each chosen expert its gate


def gates(x: Tensor, weight: Tensor | None, k: int) -> Gates | None:
    """s_e at the k largest entries of s = sigmoid(x S[h]), for each position and head."""
    if weight is None:
        return None
    rows = [torch.sigmoid(row) for row in project_all(x, weight)]
    return [[{e: gate[e] for e in largest(gate, k)} for gate in row] for row in rows]


def projected(x: Tensor, weight: Tensor, chosen: Gates | None) -> list[Tensor]:
    """Of each position [h, d]: x W[h], or with gates the sum over the chosen e of s_e x W[h e] (eq. 9)."""
    if chosen is None:
        return project_all(x, weight)
    heads = range(len(weight))
    return [torch.stack([mixed(row, weight[a], chosen[i][a]) for a in heads]) for i, row in enumerate(x)]


def mixed(x: Tensor, experts: Tensor, chosen: dict[int, Tensor]) -> Tensor:
    """The sum over the chosen e of s_e x W[e]; experts is [e, in, out]."""
    parts = [gate * project(x, experts[e]) for e, gate in chosen.items()]
    return sum(parts[1:], parts[0])


def output(A: Maps, V: list[Tensor], Wo: Tensor, chosen: Gates | None) -> Tensor:
    """y = sum_h (A_h V_h) Wo[h], or with gates sum_h sum over the chosen e of d_e (A_h V_h) Wo[h e] (eq. 10)."""
    out = []
    for i in range(len(A[0])):
        read = [weighted(A[a][i], [v[a] for v in V]) for a in range(len(A))]
        if chosen is None:
            parts = [project(read[a], Wo[a]) for a in range(len(A))]
        else:
            parts = [mixed(read[a], Wo[a], chosen[i][a]) for a in range(len(A))]
        out.append(sum(parts[1:], parts[0]))
    return torch.stack(out)


def epa_rope(w: Weights, x: Tensor, memory: Tensor, k: int = 2, fraction: float = 0.5, **see: object) -> Tensor:
    """EPA where the first `fraction` of each query and key is turned by its position, the rest is not."""
    sight = Sight(len(x), len(memory), **see)
    Q, K = project_all(x, w["Wq"]), project_all(memory, w["Wk"])
    h, d = Q[0].shape
    c = int(fraction * d)

    def score(a: int, i: int, j: int) -> Tensor:
        q, key = Q[i][a], K[j][a]
        return (turned(q[:c], sight.position(i)) @ turned(key[:c], j) + q[c:] @ key[c:]) / d**0.5

    V = projected(memory, w["Wv"], gates(memory, w["Ss"], k))
    return output(softmax_rows(score, h, sight), V, w["Wo"], gates(x, w["Sd"], k))


def epa_xl(w: Weights, x: Tensor, memory: Tensor, k: int = 2, **see: object) -> Tensor:
    """EPA with A_ij = q_i k_j + q_i W_kR R_{i-j} + u k_j + v W_kR R_{i-j} over sqrt(d); values and their gates of
    memory, gates of the output of x."""
    sight = Sight(len(x), len(memory), **see)
    Q, K = project_all(x, w["Wq"]), project_all(memory, w["Wk"])
    h, d = Q[0].shape
    places = range(1 - sight.m - sight.n, sight.m + sight.n)
    R = {p: project(sinusoid(p, x.shape[-1]), w["Wr"]) for p in places}

    def score(a: int, i: int, j: int) -> Tensor:
        content = (Q[i][a] + w["u"][a]) @ K[j][a]
        return (content + (Q[i][a] + w["v"][a]) @ R[sight.position(i) - j][a]) / d**0.5

    V = projected(memory, w["Wv"], gates(memory, w["Ss"], k))
    return output(softmax_rows(score, h, sight), V, w["Wo"], gates(x, w["Sd"], k))


def head_gated(w: Weights, x: Tensor, memory: Tensor, k: int = 4, **see: object) -> Tensor:
    """y_t = sum over the k largest s_h of s_h (A_h V_h)_t Wo[h], s = sigmoid(x_t Sg) (EPA's paper, eq. 4 to 6)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = Q[0].shape
    A = softmax_rows(lambda a, i, j: Q[i][a] @ K[j][a] / d**0.5, h, Sight(len(x), len(memory), **see))
    out = []
    for i in range(len(x)):
        s = torch.sigmoid(project(x[i], w["Sg"]))
        parts = [s[a] * project(weighted(A[a][i], [v[a] for v in V]), w["Wo"][a]) for a in largest(s, k)]
        out.append(sum(parts[1:], parts[0]))
    return torch.stack(out)


def moa(w: Weights, x: Tensor, memory: Tensor, k: int = 8, **see: object) -> Tensor:
    """y_t = sum over the k largest p_e of p_e Attention(x_t Wq[e], X Wk, X Wv) Wo[e], p = softmax(x_t Sg) (MoA)."""

    def shares(logits: Tensor) -> Tensor:
        amounts = torch.exp(logits)
        return amounts / amounts.sum()

    return heads_picked(w, x, memory, k, shares, **see)


def moa_regularised(w: Weights, x: Tensor, k: int = 8, **see: object) -> Tensor:
    """moa of one sequence."""
    return moa(w, x, x, k, **see)


def moa_regularised_losses(
    w: Weights, x: Tensor, k: int = 8, key_mask: Tensor | None = None, **see: object
) -> dict[str, Tensor]:
    """Over the tokens that may be seen: the squared coefficient of variation of the sums of gates, as MoA's code has
    it; E sum_e f_e P_e, f_e the part of all choices that fell on e, P_e the mean share; the mean of (log sum_e exp)^2.
    """
    rows = [project(row, w["Sg"]) for row in seen(x, key_mask)]
    experts = len(w["Sg"][0])
    gates, counts, shares = torch.zeros(experts).double(), torch.zeros(experts).double(), torch.zeros(experts).double()
    squares = []
    for logits in rows:
        p = torch.exp(logits) / torch.exp(logits).sum()
        for e in largest(p, k):
            gates = gates + p[e] * one_at(e, experts)
            counts = counts + one_at(e, experts)
        shares = shares + p
        squares.append(torch.log(torch.exp(logits).sum()) ** 2)
    used, chances = gates / gates.sum(), shares / shares.sum()
    return {
        "importance": used.var() / used.mean() ** 2,
        "balance": experts * (counts / counts.sum() * chances).sum(),
        "router_z": sum(squares[1:], squares[0]) / len(squares),
    }


def seen(x: Tensor, key_mask: Tensor | None) -> list[Tensor]:
    return [row for i, row in enumerate(x) if key_mask is None or key_mask[i]]


def one_at(e: int, experts: int) -> Tensor:
    return torch.tensor([float(e == other) for other in range(experts)], dtype=torch.float64)


def moa_sigmoid(w: Weights, x: Tensor, memory: Tensor, k: int = 8, **see: object) -> Tensor:
    """The same with p_e = sigmoid(x_t Sg[e])."""
    return heads_picked(w, x, memory, k, torch.sigmoid, **see)


def heads_picked(
    w: Weights, x: Tensor, memory: Tensor, k: int, gate: Callable[[Tensor], Tensor], **see: object
) -> Tensor:
    Q, K, V = project_all(x, w["Wq"].transpose(0, 1)), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    experts, d = Q[0].shape
    A = softmax_rows(lambda a, i, j: Q[i][a] @ K[j] / d**0.5, experts, Sight(len(x), len(memory), **see))
    out = []
    for i in range(len(x)):
        p = gate(project(x[i], w["Sg"]))
        parts = [p[e] * project(weighted(A[e][i], V), w["Wo"][e]) for e in largest(p, k)]
        out.append(sum(parts[1:], parts[0]))
    return torch.stack(out)


def sigma_moe(w: Weights, x: Tensor, k: int = 4, **see: object) -> Tensor:
    """y = sum over the k largest s_e of s_e relu(x W1[e]) W2[e], s = sigmoid(x Ws) (Csordas et al. 2023)."""
    out = []
    for row in x:
        gates = torch.sigmoid(project(row, w["Ws"]))
        hidden = [torch.relu(project(row, w["W1"][e])) for e in range(len(gates))]
        parts = [gates[e] * project(hidden[e], w["W2"][e]) for e in largest(gates, k)]
        out.append(sum(parts[1:], parts[0]))
    return torch.stack(out)


sigma_moe_regularised = sigma_moe


def sigma_moe_regularised_losses(
    w: Weights, x: Tensor, key_mask: Tensor | None = None, **see: object
) -> dict[str, Tensor]:
    """Minus the entropy of the mean of softmax(x Ws) over the tokens that may be seen (sigma-MoE, log domain)."""
    logits = torch.stack([project(row, w["Ws"]) for row in seen(x, key_mask)])
    mean = (logits - torch.logsumexp(logits, 1, keepdim=True)).logsumexp(0) - log(len(logits))
    return {"entropy": sum(part * torch.exp(part) for part in mean)}
