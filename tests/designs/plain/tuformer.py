"""Tuformer: scores mixed over heads or over single components."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .baselines import cross
from .core import Maps, Sight, Weights, elu1, merge, project, project_all, rows_of, softmax_rows, zero
from .positions import sinusoid


def thsa(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_r = softmax_m(R ** -0.5 sum_s C[r s] Q[n s] K[m s]); y = sum_r A_r V[m r] Wo[r f] (Tuformer)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    C = w["C"]
    R, S = C.shape

    def score(r: int, i: int, j: int) -> Tensor:
        return sum((C[r, s] * Q[i][s] * K[j][s] for s in range(S)), zero()) * R**-0.5

    A = softmax_rows(score, R, Sight(len(x), len(memory), **see))
    return merge(A, [v.unsqueeze(-1) for v in V], w["Wo"].unsqueeze(1))


def mhsa_core(w: Weights, x: Tensor, memory: Tensor, heads: int, **see: object) -> Tensor:
    """C = I_H (x) 1 1^T is multi-head self-attention (Tuformer, Proposition 1): mhsa with its legs h d merged."""
    split = {name: w[name].unflatten(1, (heads, -1)) for name in ("Wq", "Wk", "Wv")}
    return cross(split | {"Wo": w["Wo"].unflatten(0, (heads, -1))}, x, memory, **see)


def skip_right(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """C = C1 (x) 1 1^T: A_h = softmax((H D) ** -0.5 sum_g C1[h g] q_g.k_g), values per head (Tuformer, Table 2)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = V[0].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return sum((w["C1"][a, g] * (Q[i][g] @ K[j][g]) for g in range(len(Q[0]))), zero()) * (h * d) ** -0.5

    return merge(softmax_rows(score, h, Sight(len(x), len(memory), **see)), V, w["Wo"])


def skip_left(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """C = I_H (x) (C2^T C3): A_hd = softmax((H D) ** -0.5 sum_e core[d e] q_he k_he), core = C2^T C3 (Table 2)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = V[0].shape
    core = product_of(w["C2"], w["C3"])

    def score(a: int, i: int, j: int) -> Tensor:
        head, component = a // d, a % d
        parts = (core[component][e] * Q[i][head, e] * K[j][head, e] for e in range(len(core[0])))
        return sum(parts, zero()) * (h * d) ** -0.5

    return of_components(softmax_rows(score, h * d, Sight(len(x), len(memory), **see)), V, w["Wo"])


def thsa_kron(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_hd = softmax((H D) ** -0.5 sum_ge C1[h g] core[d e] q_ge k_ge), core = C2^T C3 (fig. 4c)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h, d = V[0].shape
    core = product_of(w["C2"], w["C3"])

    def score(a: int, i: int, j: int) -> Tensor:
        head, component = a // d, a % d
        total = zero()
        for g in range(len(Q[0])):
            for e in range(len(core[0])):
                total = total + w["C1"][head, g] * core[component][e] * Q[i][g, e] * K[j][g, e]
        return total * (h * d) ** -0.5

    return of_components(softmax_rows(score, h * d, Sight(len(x), len(memory), **see)), V, w["Wo"])


def trainable_heads_only(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """C = C1, D = 1: A_h = softmax(H ** -0.5 sum_g C1[h g] q_g k_g), one value component a head (Table 2)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h = len(V[0])

    def score(a: int, i: int, j: int) -> Tensor:
        return sum((w["C1"][a, g] * Q[i][g] * K[j][g] for g in range(len(Q[0]))), zero()) * h**-0.5

    return of_components(softmax_rows(score, h, Sight(len(x), len(memory), **see)), V, w["Wo"])


def heads_only(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """C = I, D = 1: A_h = softmax(H ** -0.5 q_h k_h) (Table 2)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    h = len(V[0])
    A = softmax_rows(lambda a, i, j: Q[i][a] * K[j][a] * h**-0.5, h, Sight(len(x), len(memory), **see))
    return of_components(A, V, w["Wo"])


def thsa_low_rank(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """thsa with C = C2^T C3."""
    C = torch.stack([torch.stack(row) for row in product_of(w["C2"], w["C3"])])
    return thsa({name: w[name] for name in ("Wq", "Wk", "Wv", "Wo")} | {"C": C}, x, memory, **see)


def thsa_elu(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_r[n m] in proportion to sum_s C[r s] (elu(q_s) + 1) (elu(k_s) + 1)."""
    return kernel_thsa(w, x, memory, lambda q, k, row: row @ (elu1(q) * elu1(k)), **see)


def thsa_square(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_r[n m] in proportion to sum_s C[r s] (q_s k_s)^2."""
    return kernel_thsa(w, x, memory, lambda q, k, row: row @ (q * k) ** 2, **see)


def thsa_poly(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_r[n m] in proportion to (sum_s C[r s] q_s k_s)^2, the kernel (q.k)^2 of Tsai et al. 2019."""
    return kernel_thsa(w, x, memory, lambda q, k, row: (row @ (q * k)) ** 2, **see)


def kernel_thsa(
    w: Weights, x: Tensor, memory: Tensor, kernel: Callable[[Tensor, Tensor, Tensor], Tensor], **see: object
) -> Tensor:
    """`kernel` takes a query [s], a key [s] and a row of the core [s]."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    C = w["C"]
    A = rows_of(lambda r, i, j: kernel(Q[i], K[j], C[r]), len(C), Sight(len(x), len(memory), **see))
    return of_components(A, V, w["Wo"])


def mhsa_poly(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_h[n m] in proportion to (q_h.k_h)^2 (Tsai et al. 2019)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    A = rows_of(lambda a, i, j: (Q[i][a] @ K[j][a]) ** 2, len(Q[0]), Sight(len(x), len(memory), **see))
    return merge(A, V, w["Wo"])


def thsa_xl(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_r = softmax(R ** -0.5 sum_s C[r s] ((q + u) k + (q + v) W_kR R_{i-j})_s): THSA on Transformer-XL's scores."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    C = w["C"]
    tables = {p: project(sinusoid(p, x.shape[-1]), w["Wr"]) for p in range(1 - sight.m - sight.n, sight.m + sight.n)}

    def score(r: int, i: int, j: int) -> Tensor:
        parts = (Q[i] + w["u"]) * K[j] + (Q[i] + w["v"]) * tables[sight.position(i) - j]
        return C[r] @ parts * len(C) ** -0.5

    return of_components(softmax_rows(score, len(C), sight), V, w["Wo"])


def product_of(left: Tensor, right: Tensor) -> list[list[Tensor]]:
    """left^T right, entry by entry; both begin with the leg that is summed."""
    rank, rows, columns = len(left), left.shape[1], right.shape[1]
    return [[sum((left[c, a] * right[c, b] for c in range(rank)), zero()) for b in range(columns)] for a in range(rows)]


def of_components(A: Maps, V: list[Tensor], Wo: Tensor) -> Tensor:
    """The output where each value component has its own map; V[j] and Wo[..., f] have the legs of the components."""
    return merge(A, [v.flatten().unsqueeze(-1) for v in V], Wo.flatten(0, -2).unsqueeze(1))
