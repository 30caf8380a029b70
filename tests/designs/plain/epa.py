"""Expert projection attention, gated heads, mixture of attention heads, sigma-MoE."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import torch
from torch import Tensor

from .core import (
    Sight,
    Weights,
    largest,
    merge,
    project,
    project_all,
    projections,
    read,
    rotated,
    softmax,
    softmax_of,
    softmax_rows,
)
from .positions import relative_scores

Layer = Callable[..., Tensor]


def having(letters: str) -> Layer:
    """EPA whose projections `letters` have experts (Few Tensor Are Enough, table 1), the others none."""

    def layer(w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 2) -> Tensor:
        source, target = gates(memory, w.get("Ss"), k), gates(x, w.get("Sd"), k)
        Q = projected(x, w["Wq"], target if "q" in letters else None)
        K = projected(memory, w["Wk"], source if "k" in letters else None)
        V = projected(memory, w["Wv"], source if "v" in letters else None)
        return output(softmax_of(Q, K, sight), V, w["Wo"], target if "o" in letters else None)

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
    return [[{e: gate[e] for e in largest(gate, k)} for gate in row] for row in torch.sigmoid(project_all(x, weight))]


def projected(x: Tensor, weight: Tensor, chosen: Gates | None) -> Tensor:
    """Of each position [h, d]: x W[h], or with gates the sum over the chosen e of s_e x W[h e] (eq. 9)."""
    if chosen is None:
        return project_all(x, weight)
    return mixed(x.unsqueeze(1).expand(-1, len(weight), -1), weight, chosen)


def mixed(rows: Tensor, weight: Tensor, chosen: Gates) -> Tensor:
    """Of each position and head a, the sum over the chosen e of s_e rows[i, a] W[a, e]."""

    def sums(row: Tensor, gates: list[dict[int, Tensor]]) -> list[Tensor]:
        return [sum(s * project(row[a], weight[a, e]) for e, s in gate.items()) for a, gate in enumerate(gates)]

    return torch.stack([torch.stack(sums(row, gates)) for row, gates in zip(rows, chosen, strict=True)])


def output(A: Tensor, V: Tensor, Wo: Tensor, chosen: Gates | None) -> Tensor:
    """y = sum_h (A_h V_h) Wo[h], or with gates sum_h sum over the chosen e of d_e (A_h V_h) Wo[h e] (eq. 10)."""
    return merge(A, V, Wo) if chosen is None else mixed(read(A, V), Wo, chosen).sum(1)


def epa_rope(w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 2, fraction: float = 0.5) -> Tensor:
    """EPA where the first `fraction` of each query and key is turned by its position, the rest is not."""
    Q = [rotated(q, sight.position(i), part=fraction) for i, q in enumerate(project_all(x, w["Wq"]))]
    K = [rotated(key, j, part=fraction) for j, key in enumerate(project_all(memory, w["Wk"]))]
    V = projected(memory, w["Wv"], gates(memory, w["Ss"], k))
    return output(softmax_of(Q, K, sight), V, w["Wo"], gates(x, w["Sd"], k))


def epa_xl(w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 2) -> Tensor:
    """EPA with A_ij = q_i k_j + q_i W_kR R_{i-j} + u k_j + v W_kR R_{i-j} over sqrt(d); values and their gates of
    memory, gates of the output of x."""
    scores = relative_scores(w, project_all(x, w["Wq"]), project_all(memory, w["Wk"]), sight)
    V = projected(memory, w["Wv"], gates(memory, w["Ss"], k))
    return output(softmax_rows(scores, len(w["Wo"]), sight), V, w["Wo"], gates(x, w["Sd"], k))


def head_gated(w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 4) -> Tensor:
    """y_t = sum over the k largest s_h of s_h (A_h V_h)_t Wo[h], s = sigmoid(x_t Sg) (EPA's paper, eq. 4 to 6)."""
    return heads_picked(w, x, k, torch.sigmoid, *projections(w, x, memory), sight)


def heads_picked(
    w: Weights, x: Tensor, k: int, gate: Callable[[Tensor], Tensor], Q: Tensor, K: Tensor, V: Tensor, sight: Sight
) -> Tensor:
    """y_t = sum over the k largest s_h of s_h (A_h V_h)_t Wo[h], s = gate(x_t Sg)."""
    out = []
    for row, reads in zip(x, read(softmax_of(Q, K, sight), V), strict=True):
        s = gate(project(row, w["Sg"]))
        out.append(sum(s[a] * project(reads[a], w["Wo"][a]) for a in largest(s, k)))
    return torch.stack(out)


def moa(
    w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 8, gate: Callable[[Tensor], Tensor] = softmax
) -> Tensor:
    """y_t = sum over the k largest p_e of p_e Attention(x_t Wq[e], X Wk, X Wv) Wo[e], p = softmax(x_t Sg) (MoA)."""
    experts = len(w["Wo"])
    Q = project_all(x, w["Wq"].transpose(0, 1))
    K, V = (torch.stack([project_all(memory, w[name])] * experts, 1) for name in ("Wk", "Wv"))
    return heads_picked(w, x, k, gate, Q, K, V, sight)


def moa_sigmoid(w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 8) -> Tensor:
    """The same with p_e = sigmoid(x_t Sg[e])."""
    return moa(w, x, memory, sight, k, torch.sigmoid)


moa_regularised = moa


def moa_regularised_losses(w: Weights, x: Tensor, sight: Sight, k: int = 8) -> dict[str, Tensor]:
    """Over the tokens that may be seen: the squared coefficient of variation of the sums of gates, as MoA's code has
    it; E sum_e f_e P_e, f_e the part of all choices that fell on e, P_e the mean share; the mean of (log sum_e exp)^2.
    """
    experts = len(w["Sg"][0])
    gates, counts, shares = torch.zeros(3, experts, dtype=x.dtype)
    rows = seen(w["Sg"], x, sight)
    for p in map(softmax, rows):
        for e in largest(p, k):
            chosen = torch.eye(experts, dtype=x.dtype)[e]
            gates, counts = gates + p[e] * chosen, counts + chosen
        shares = shares + p
    used, chances = gates / gates.sum(), shares / shares.sum()
    return {
        "importance": used.var() / used.mean() ** 2,
        "balance": experts * (counts / counts.sum() * chances).sum(),
        "router_z": sum(torch.log(torch.exp(logits).sum()) ** 2 for logits in rows) / len(rows),
    }


def seen(weight: Tensor, x: Tensor, sight: Sight) -> list[Tensor]:
    """Logits of the tokens that may be seen."""
    return [project(row, weight) for i, row in enumerate(x) if sight.key(i)]


def sigma_moe(w: Weights, x: Tensor, k: int = 4) -> Tensor:
    """y = sum over the k largest s_e of s_e relu(x W1[e]) W2[e], s = sigmoid(x Ws) (Csordas et al. 2023)."""
    out = []
    for row in x:
        gates = torch.sigmoid(project(row, w["Ws"]))
        hidden = [torch.relu(project(row, expert)) for expert in w["W1"]]
        out.append(sum(gates[e] * project(hidden[e], w["W2"][e]) for e in largest(gates, k)))
    return torch.stack(out)


sigma_moe_regularised = sigma_moe


def sigma_moe_regularised_losses(w: Weights, x: Tensor, sight: Sight, **settings: object) -> dict[str, Tensor]:
    """Minus the entropy of the mean of softmax(x Ws) over the tokens that may be seen (sigma-MoE, log domain)."""
    logits = torch.stack(seen(w["Ws"], x, sight))
    mean = (logits - torch.logsumexp(logits, 1, keepdim=True)).logsumexp(0) - log(len(logits))
    return {"entropy": sum(part * torch.exp(part) for part in mean)}
