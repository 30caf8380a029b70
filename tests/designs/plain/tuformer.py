"""Tuformer: scores mixed over heads or over single components."""

from __future__ import annotations

import torch
from torch import Tensor

from .baselines import cross
from .core import Score, Sight, Weights, elu1, merge, projections, rows_of, softmax_rows
from .positions import relative_keys


def thsa(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_r = softmax_m(R ** -0.5 sum_s C[r s] Q[n s] K[m s]); y = sum_r A_r V[m r] Wo[r f] (Tuformer)."""
    Q, K, V = projections(w, x, memory)
    C = w["C"]
    R, S = C.shape

    def score(r: int, i: int, j: int) -> Tensor:
        return sum(C[r, s] * Q[i][s] * K[j][s] for s in range(S)) * R**-0.5

    return of_components(softmax_rows(score, R, sight), V, w["Wo"])


def mhsa_core(w: Weights, x: Tensor, memory: Tensor, sight: Sight, heads: int) -> Tensor:
    """C = I_H (x) 1 1^T is multi-head self-attention (Tuformer, Proposition 1): mhsa with its legs h d merged."""
    split = {name: w[name].unflatten(1, (heads, -1)) for name in ("Wq", "Wk", "Wv")}
    return cross(split | {"Wo": w["Wo"].unflatten(0, (heads, -1))}, x, memory, sight)


def skip_right(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """C = C1 (x) 1 1^T: A_h = softmax((H D) ** -0.5 sum_g C1[h g] q_g.k_g), values per head (Tuformer, Table 2)."""
    Q, K, V = projections(w, x, memory)
    h, d = V[0].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return sum(w["C1"][a, g] * (Q[i][g] @ K[j][g]) for g in range(len(Q[0]))) * (h * d) ** -0.5

    return merge(softmax_rows(score, h, sight), V, w["Wo"])


def skip_left(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """C = I_H (x) (C2^T C3): A_hd = softmax((H D) ** -0.5 sum_e core[d e] q_he k_he), core = C2^T C3 (Table 2)."""
    Q, K, V = projections(w, x, memory)
    h, d = V[0].shape
    core = product_of(w["C2"], w["C3"])

    def score(a: int, i: int, j: int) -> Tensor:
        head, component = divmod(a, d)
        parts = (core[component, e] * Q[i][head, e] * K[j][head, e] for e in range(core.shape[1]))
        return sum(parts) * (h * d) ** -0.5

    return of_components(softmax_rows(score, h * d, sight), V, w["Wo"])


def thsa_kron(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_hd = softmax((H D) ** -0.5 sum_ge C1[h g] core[d e] q_ge k_ge), core = C2^T C3 (fig. 4c)."""
    Q, K, V = projections(w, x, memory)
    h, d = V[0].shape
    core = product_of(w["C2"], w["C3"])

    def score(a: int, i: int, j: int) -> Tensor:
        head, component = divmod(a, d)
        pairs = ((g, e) for g in range(len(Q[0])) for e in range(core.shape[1]))
        return sum(w["C1"][head, g] * core[component, e] * Q[i][g, e] * K[j][g, e] for g, e in pairs) * (h * d) ** -0.5

    return of_components(softmax_rows(score, h * d, sight), V, w["Wo"])


def trainable_heads_only(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """C = C1, D = 1: A_h = softmax(H ** -0.5 sum_g C1[h g] q_g k_g), one value component a head (Table 2)."""
    return thsa(w | {"C": w["C1"]}, x, memory, sight)


def heads_only(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """C = I, D = 1: A_h = softmax(H ** -0.5 q_h k_h) (Table 2)."""
    return thsa(w | {"C": torch.eye(len(w["Wo"]), dtype=x.dtype)}, x, memory, sight)


def thsa_low_rank(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """thsa with C = C2^T C3."""
    return thsa(w | {"C": product_of(w["C2"], w["C3"])}, x, memory, sight)


def thsa_elu(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_r[n m] in proportion to sum_s C[r s] (elu(q_s) + 1) (elu(k_s) + 1)."""
    Q, K, V = projections(w, x, memory)
    return in_proportion(lambda r, i, j: w["C"][r] @ (elu1(Q[i]) * elu1(K[j])), w, V, sight)


def thsa_square(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_r[n m] in proportion to sum_s C[r s] (q_s k_s)^2."""
    Q, K, V = projections(w, x, memory)
    return in_proportion(lambda r, i, j: w["C"][r] @ (Q[i] * K[j]) ** 2, w, V, sight)


def thsa_poly(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_r[n m] in proportion to (sum_s C[r s] q_s k_s)^2, the kernel (q.k)^2 of Tsai et al. 2019."""
    Q, K, V = projections(w, x, memory)
    return in_proportion(lambda r, i, j: (w["C"][r] @ (Q[i] * K[j])) ** 2, w, V, sight)


def in_proportion(amount: Score, w: Weights, V: Tensor, sight: Sight) -> Tensor:
    return of_components(rows_of(amount, len(w["C"]), sight), V, w["Wo"])


def mhsa_poly(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_h[n m] in proportion to (q_h.k_h)^2 (Tsai et al. 2019)."""
    Q, K, V = projections(w, x, memory)
    return merge(rows_of(lambda a, i, j: (Q[i][a] @ K[j][a]) ** 2, len(Q[0]), sight), V, w["Wo"])


def thsa_xl(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_r = softmax(R ** -0.5 sum_s C[r s] ((q + u) k + (q + v) W_kR R_{i-j})_s): THSA on Transformer-XL's scores."""
    Q, K, V = projections(w, x, memory)
    C, R = w["C"], relative_keys(w, sight)

    def score(r: int, i: int, j: int) -> Tensor:
        parts = (Q[i] + w["u"]) * K[j] + (Q[i] + w["v"]) * R[sight.position(i) - j]
        return C[r] @ parts * len(C) ** -0.5

    return of_components(softmax_rows(score, len(C), sight), V, w["Wo"])


def product_of(left: Tensor, right: Tensor) -> Tensor:
    """left^T right; both begin with the leg that is summed."""
    return sum(map(torch.outer, left, right))


def of_components(A: Tensor, V: Tensor, Wo: Tensor) -> Tensor:
    """The output where each value component has its own map; V[j] and Wo[..., f] have the legs of the components."""
    return merge(A, V.flatten(1).unsqueeze(-1), Wo.flatten(0, -2).unsqueeze(1))
