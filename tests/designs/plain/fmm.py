"""FMMformer: a near field in a band and a far field of kernels or fast weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .core import (
    Sight,
    Weights,
    banded,
    elu1,
    joined,
    merge,
    project_all,
    projections,
    read,
    rows_of,
    seen_maps,
    share,
    softmax_of,
)

Kernel = Callable[[Tensor], Tensor]
Eps = float  # added to the sums of a kernel
Kernels = tuple[tuple[Kernel, Eps], ...]
Layer = Callable[..., Tensor]

KERNELS: Kernels = ((elu1, 0), (lambda x: elu1(-x), 0), (torch.tanh, 1e-6))
SHIFTED: Kernels = (*KERNELS[:2], (lambda x: 1 + torch.tanh(x), 0))


def blend(kernels: Kernels, causal: bool = False, by_rows: bool = False) -> Layer:
    """(sigmoid(w1) D + sigmoid(w2) L) V, D = softmax(band_k(Q K^T / sqrt(d))), L the sum of row-normalised kernels
    (FMMformer). `causal`: each query's band is itself and the k - 1 keys before it. `by_rows`: each row of the blend is
    divided by its sum (section 1.2)."""

    def layer(w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 5) -> Tensor:
        Q, K, V = projections(w, x, memory)
        left, right = (k - 1, 0) if causal else ((k - 1) // 2, (k - 1) // 2)
        near, far = softmax_of(Q, K, banded(sight, left, right)), _far(Q, K, kernels, sight)
        A = torch.sigmoid(w["w1"])[:, None, None] * near + torch.sigmoid(w["w2"])[:, None, None] * far
        return merge(share(A) if by_rows else A, V, w["Wo"])

    return layer


def far_field(kernels: Kernels) -> Layer:
    """L V, L the sum of row-normalised kernels: the far field of `blend` alone."""

    def layer(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
        Q, K, V = projections(w, x, memory)
        return merge(_far(Q, K, kernels, sight), V, w["Wo"])

    return layer


fmm1 = blend(KERNELS[:1])  # the kernel elu(x) + 1
fmm2 = blend(KERNELS[:2])  # and elu(-x) + 1
fmm3 = blend(KERNELS)  # and tanh(x), with 1e-6 added to its sums
fmm3_shifted = blend(SHIFTED)  # 1 + tanh(x) for tanh(x), and nothing added to its sums
fmm1_rows, fmm2_rows = blend(KERNELS[:1], by_rows=True), blend(KERNELS[:2], by_rows=True)
fmm1_causal, fmm2_causal, fmm3_causal = (blend(KERNELS[:count], causal=True) for count in (1, 2, 3))
linear2, linear3, linear3_shifted = far_field(KERNELS[:2]), far_field(KERNELS), far_field(SHIFTED)


def fmm_lra_release(w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 5) -> Tensor:
    """(w1 D + w2 L) V, D a softmax where |i - j| < k, L[i, j] = phi(q_i) . phi(k_j) / sqrt(N) as it is (release)."""
    Q, K, V = projections(w, x, memory)
    near = softmax_of(Q, K, banded(sight, k - 1, k - 1))
    far = seen_maps(lambda a, i, j: elu1(Q[i][a]) @ elu1(K[j][a]) / sight.m**0.5, len(near), sight)
    return merge(w["w1"][:, None, None] * near + w["w2"][:, None, None] * far, V, w["Wo"])


def _far(Q: Tensor, K: Tensor, kernels: Kernels, sight: Sight) -> Tensor:
    """The sum of the kernels, each divided by its own row sums."""

    def rows(kernel: Kernel, eps: float) -> Tensor:
        return rows_of(lambda a, i, j: kernel(Q[i][a]) @ kernel(K[j][a]), len(Q[0]), sight, eps)

    return sum(rows(*kernel) for kernel in kernels)


def fast_weights(kernels: Kernels, near: bool = False) -> Layer:
    """F, which reads the fast weights W_t = W_{t-1} + beta_t (v_t - W_{t-1} phi(k_t)) phi(k_t)^T as
    W_t phi(q_t) / (z_t . phi(q_t)), z_t the sum of the phi(k) so far, phi = elu + 1 divided by its sum,
    beta = sigmoid(x Wb) (Schlag et al. 2021); with kernels L V + F, L causal. `near`: sigmoid(w1) D V + sigmoid(w2)
    times that, D causal with k diagonals."""

    def layer(w: Weights, x: Tensor, memory: Tensor, sight: Sight, k: int = 5) -> Tensor:
        Q, K, V = projections(w, x, memory)
        rates = torch.sigmoid(project_all(memory, w["Wb"]))
        fast = [_fast_weights(phi(Q[:, a]), phi(K[:, a]), V[:, a], rates[:, a], sight) for a in range(len(w["Wo"]))]
        reads = torch.stack(fast, 1)
        if kernels:
            reads = reads + read(_far(Q, K, kernels, sight), V)
        if near:
            banded_reads = read(softmax_of(Q, K, banded(sight, k - 1, 0)), V)
            reads = torch.sigmoid(w["w1"])[:, None] * banded_reads + torch.sigmoid(w["w2"])[:, None] * reads
        return joined(reads, w["Wo"])

    return layer


fast_weight1, fast_weight2 = fast_weights(()), fast_weights(KERNELS[:1])
fmm_fast_weight1, fmm_fast_weight2 = fast_weights((), near=True), fast_weights(KERNELS[:1], near=True)


def phi(x: Tensor) -> Tensor:
    return elu1(x) / elu1(x).sum(-1, keepdim=True)


def _fast_weights(q: Tensor, k: Tensor, v: Tensor, rate: Tensor, sight: Sight) -> Tensor:
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
    return torch.stack([reads[i] for i in range(sight.n)])
