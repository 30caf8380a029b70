"""FMMformer: a near field in a band and a far field of kernels or fast weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .core import (
    Maps,
    Score,
    Sight,
    Weights,
    banded,
    elu1,
    merge,
    project,
    project_all,
    rows_of,
    softmax_rows,
    weighted,
    zero,
)

Kernel = Callable[[Tensor], Tensor]
Eps = float  # added to the sums of a kernel
Kernels = tuple[tuple[Kernel, Eps], ...]


def elu1_flipped(x: Tensor) -> Tensor:
    """elu(-x) + 1."""
    return elu1(-x)


def tanh(x: Tensor) -> Tensor:
    return (torch.exp(x) - torch.exp(-x)) / (torch.exp(x) + torch.exp(-x))


KERNELS: tuple[tuple[Kernel, Eps], ...] = ((elu1, 0), (elu1_flipped, 0), (tanh, 1e-6))
SHIFTED: tuple[tuple[Kernel, Eps], ...] = (*KERNELS[:2], (lambda x: 1 + tanh(x), 0))


def fmm1(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    """(sigmoid(w1) D + sigmoid(w2) L) V, D = softmax(band_k(Q K^T / sqrt(d))), L of the kernel elu + 1 (FMMformer)."""
    return _blend(w, x, memory, (k - 1) // 2, (k - 1) // 2, KERNELS[:1], see)


def fmm2(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    """The same with L the sum of two row-normalised kernels, elu(x) + 1 and elu(-x) + 1."""
    return _blend(w, x, memory, (k - 1) // 2, (k - 1) // 2, KERNELS[:2], see)


def fmm3(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    """The same with a third kernel, tanh(x), and 1e-6 added to its sums."""
    return _blend(w, x, memory, (k - 1) // 2, (k - 1) // 2, KERNELS[:3], see)


def fmm1_rows(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    """fmm1 whose rows are divided by their sums (section 1.2)."""
    return _blend(w, x, memory, (k - 1) // 2, (k - 1) // 2, KERNELS[:1], see, rows=True)


def fmm2_rows(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    return _blend(w, x, memory, (k - 1) // 2, (k - 1) // 2, KERNELS[:2], see, rows=True)


def fmm3_shifted(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    """fmm3 with 1 + tanh(x) for tanh(x), and nothing added to its sums."""
    return _blend(w, x, memory, (k - 1) // 2, (k - 1) // 2, SHIFTED, see)


def linear3_shifted(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    return _far_alone(w, x, memory, SHIFTED, see)


def fmm1_causal(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    """fmm1 where each query's band is itself and the k - 1 keys before it."""
    return _blend(w, x, memory, k - 1, 0, KERNELS[:1], see)


def fmm2_causal(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    return _blend(w, x, memory, k - 1, 0, KERNELS[:2], see)


def fmm3_causal(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    return _blend(w, x, memory, k - 1, 0, KERNELS[:3], see)


def linear2(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """(L1 + L2) V, the far field of fmm2."""
    return _far_alone(w, x, memory, KERNELS[:2], see)


def linear3(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    return _far_alone(w, x, memory, KERNELS[:3], see)


def fmm_lra_release(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    """(w1 D + w2 L) V, D a softmax where |i - j| < k, L[i, j] = phi(q_i) . phi(k_j) / sqrt(N) as it is (release)."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    near = _near(Q, K, sight, k - 1, k - 1)

    def blended(a: int, i: int, j: int) -> Tensor:
        far = elu1(Q[i][a]) @ elu1(K[j][a]) / sight.m**0.5 if sight(i, j) else zero()
        return w["w1"][a] * near[a][i][j] + w["w2"][a] * far

    return merge(_maps(blended, len(near), sight), V, w["Wo"])


def _blend(
    w: Weights,
    x: Tensor,
    memory: Tensor,
    left: int,
    right: int,
    kernels: Kernels,
    see: dict[str, object],
    rows: bool = False,
) -> Tensor:
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    near, far = _near(Q, K, sight, left, right), _far(Q, K, kernels, sight)

    def blended(a: int, i: int, j: int) -> Tensor:
        return torch.sigmoid(w["w1"][a]) * near[a][i][j] + torch.sigmoid(w["w2"][a]) * far[a][i][j]

    A = rows_of(blended, len(near), sight) if rows else _maps(blended, len(near), sight)
    return merge(A, V, w["Wo"])


def _far_alone(w: Weights, x: Tensor, memory: Tensor, kernels: Kernels, see: dict[str, object]) -> Tensor:
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    return merge(_far(Q, K, kernels, Sight(len(x), len(memory), **see)), V, w["Wo"])


def _far(Q: list[Tensor], K: list[Tensor], kernels: Kernels, sight: Sight) -> Maps:
    """The sum of the kernels, each divided by its own row sums."""
    fars = [_kernel_map(Q, K, kernel, eps, sight) for kernel, eps in kernels]
    return _maps(lambda a, i, j: sum((far[a][i][j] for far in fars), zero()), len(Q[0]), sight)


def _maps(entry: Score, heads: int, sight: Sight) -> Maps:
    return [[[entry(a, i, j) for j in range(sight.m)] for i in range(sight.n)] for a in range(heads)]


def _kernel_map(Q: list[Tensor], K: list[Tensor], kernel: Kernel, eps: float, sight: Sight) -> Maps:
    return rows_of(lambda a, i, j: kernel(Q[i][a]) @ kernel(K[j][a]), len(Q[0]), sight, eps)


def _near(Q: list[Tensor], K: list[Tensor], sight: Sight, left: int, right: int) -> Maps:
    """softmax over the keys with -right <= i - j <= left."""
    h, d = Q[0].shape
    return softmax_rows(lambda a, i, j: Q[i][a] @ K[j][a] / d**0.5, h, banded(sight, left, right))


def fmm_fast_weight1(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    """sigmoid(w1) D V + sigmoid(w2) F, D causal with k diagonals; F reads the fast weights
    W_t = W_{t-1} + beta_t (v_t - W_{t-1} phi(k_t)) phi(k_t)^T as W_t phi(q_t) / (z_t . phi(q_t)), z_t the sum of the
    phi(k) so far, phi = elu + 1 divided by its sum, beta = sigmoid(x Wb) (Schlag et al. 2021)."""
    return _with_fast_weights(w, x, memory, k, KERNELS[:0], see)


def fmm_fast_weight2(w: Weights, x: Tensor, memory: Tensor, k: int = 5, **see: object) -> Tensor:
    """sigmoid(w1) D V + sigmoid(w2) (L V + F), L causal, of the kernel elu + 1, D and F as in fmm_fast_weight1."""
    return _with_fast_weights(w, x, memory, k, KERNELS[:1], see)


def fast_weight1(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """F of fmm_fast_weight1 alone."""
    return _with_fast_weights(w, x, memory, 0, (), see)


def fast_weight2(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """L V + F of fmm_fast_weight2."""
    return _with_fast_weights(w, x, memory, 0, KERNELS[:1], see)


def _with_fast_weights(
    w: Weights, x: Tensor, memory: Tensor, k: int, kernels: Kernels, see: dict[str, object]
) -> Tensor:
    """`k` diagonals of the near field; 0: the far field alone, without a blend."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    rates = [torch.sigmoid(b) for b in project_all(memory, w["Wb"])]
    near, far = _near(Q, K, sight, k - 1, 0), _far(Q, K, kernels, sight)
    out = [torch.zeros_like(row) for row in x]
    for a in range(len(Q[0])):
        q, key = [phi(row[a]) for row in Q], [phi(row[a]) for row in K]
        values = [v[a] for v in V]
        fast = _fast_weights(q, key, values, [rate[a] for rate in rates], sight)
        for i in range(sight.n):
            read = weighted(far[a][i], values) + fast[i]
            if k:
                read = torch.sigmoid(w["w1"][a]) * weighted(near[a][i], values) + torch.sigmoid(w["w2"][a]) * read
            out[i] = out[i] + project(read, w["Wo"][a])
    return torch.stack(out)


def phi(x: Tensor) -> Tensor:
    return elu1(x) / elu1(x).sum()


def _fast_weights(q: list[Tensor], k: list[Tensor], v: list[Tensor], rate: list[Tensor], sight: Sight) -> list[Tensor]:
    """One head, position by position; a key that may not be seen writes nothing, an empty memory reads zeros."""
    W = torch.zeros(len(v[0]), len(k[0]), dtype=k[0].dtype)
    z = torch.zeros_like(k[0])
    reads = {}
    for t in range(min(0, sight.position(0)), sight.m):
        if t >= 0 and sight.key(t):
            W = W + rate[t] * torch.outer(v[t] - W @ k[t], k[t])
            z = z + k[t]
        i = t - sight.position(0)
        if i >= 0:
            reads[i] = W @ q[i] / (z @ q[i]) if z.any() else torch.zeros_like(v[0])
    return [reads[i] for i in range(sight.n)]
