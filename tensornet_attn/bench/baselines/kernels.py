"""Kernel attention: rows divided by their sums. The sum over keys comes first; causal scores are written out."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from tensornet_attn.bench.baselines.attend import visible
from tensornet_attn.bench.baselines.layer import Layer, elu1, heads, out

Kernel = tuple[Callable[[Tensor], Tensor], float]  # a feature map, and what is added to the sums of rows
KERNELS: tuple[Kernel, ...] = ((elu1, 0.0), (lambda x: elu1(-x), 0.0), (torch.tanh, 1e-6))
SHIFTED: tuple[Kernel, ...] = (*KERNELS[:2], (lambda x: torch.tanh(x) + 1, 0.0))  # none of them negative


def causal_sums(scores: Tensor) -> Tensor:
    """Scores [..., n, m] with zeros for keys after the query."""
    keep = visible(*scores.shape[-2:], True, None, scores.device)
    return scores.masked_fill(~keep, 0)  # type: ignore[operator]


def normalized(q: Tensor, k: Tensor, v: Tensor, causal: bool, eps: float = 0.0) -> Tensor:
    """q k^T with rows divided by their sums, times v: features q, k [b h n d], values v [b h m e]."""
    if causal:
        scores = causal_sums(q @ k.transpose(-2, -1))
        return (scores / (scores.sum(-1, keepdim=True) + eps)) @ v
    total = q @ k.sum(-2).unsqueeze(-1)  # b h n 1
    return q @ (k.transpose(-2, -1) @ v) / (total + eps)


class Linear(Layer):
    """Linear attention (Katharopoulos et al. 2020, eq. 5) of one kernel, or of several added (FMMformer)."""

    mixed = "has no softmax"
    linear = True

    def declare(self, kernels: tuple[Kernel, ...] = KERNELS[:1]) -> None:
        self.weights(Wq="f h d", Wk="f h d", Wv="f h d", Wo="h d f")
        self.kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(x, self.Wq), heads(x, self.Wk), heads(x, self.Wv)
        return out(far_field(q, k, v, self.causal, self.kernels), self.Wo)


def far_field(q: Tensor, k: Tensor, v: Tensor, causal: bool, kernels: tuple[Kernel, ...] = KERNELS[:1]) -> Tensor:
    """The sum of attention by each of the kernels."""
    return sum(normalized(phi(q), phi(k), v, causal, eps) for phi, eps in kernels)  # type: ignore[return-value]


class Polynomial(Layer):
    """Rows in proportion to (q.k)^2: the product of q and k with all pairs of their entries as features."""

    mixed = "has no softmax"
    linear = True

    def declare(self) -> None:
        self.weights(Wq="f h d", Wk="f h d", Wv="f h d", Wo="h d f")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(x, self.Wq), heads(x, self.Wk), heads(x, self.Wv)
        features = self.size.d * (self.size.d + 1) // 2
        if self.causal or k.shape[-2] <= features:  # then scores are no larger than features
            return out(squared(q @ k.transpose(-2, -1), self.causal) @ v, self.Wo)
        i, j = torch.triu_indices(self.size.d, self.size.d, device=x.device)
        twice = torch.where(i == j, 1.0, 2.0).to(x.dtype)  # a pair of different entries stands for both its orders
        return out(normalized(twice * q[..., i] * q[..., j], k[..., i] * k[..., j], v, False), self.Wo)


def squared(scores: Tensor, causal: bool) -> Tensor:
    """Squares of scores [..., n, m], rows divided by their sums."""
    scores = causal_sums(scores.square()) if causal else scores.square()
    return scores / scores.sum(-1, keepdim=True)


class MixtureOfLinearKeys(Layer):
    """Keys mixed after the feature map (MLK, eq. 13); `shifted` copies of one key in place of r keys."""

    mixed = "has no softmax over the keys"
    linear = True

    def declare(self, shifted: bool = False) -> None:
        self.weights(Wq="f h d", Wk="f h d" if shifted else "f r h d", Wv="f h d", logits="h r", Wo="h d f")
        self.shifted = shifted
        if shifted:
            self.weights(b="r h d")

    def forward(self, x: Tensor) -> Tensor:
        keys = heads(x, self.Wk.flatten(1, -2))  # b (r h) m d, or b h m d
        if self.shifted:
            keys = keys.unsqueeze(1) + self.b.unsqueeze(2)
        else:
            keys = keys.unflatten(1, (self.size.r, self.size.h))
        mixed = torch.einsum("hr,brhmd->bhmd", self.logits.softmax(-1), elu1(keys))
        return out(normalized(elu1(heads(x, self.Wq)), mixed, heads(x, self.Wv), self.causal), self.Wo)


class KernelFish(Layer):
    """Kernel scores of g global heads mixed into h local ones by positive weights; `two` maps in a row."""

    mixed = "has no softmax"
    linear = True

    def declare(self, two: bool = False) -> None:
        self.weights(P="g k" if two else "g h", Wq="f g d", Wk="f g d", Wv="f h d", Wo="h d f")
        self.two = two
        if two:
            self.weights(W2="h k", b2="h")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = elu1(heads(x, self.Wq)), elu1(heads(x, self.Wk)), heads(x, self.Wv)
        P, bias = F.softplus(self.P), 0.0
        if self.two:
            P, bias = P @ F.softplus(self.W2).T, F.softplus(self.b2)[:, None, None]  # g h, h 1 1
        return out((self.dense if self.causal else self.summed)(q, k, v, P, bias), self.Wo)

    def dense(self, q: Tensor, k: Tensor, v: Tensor, P: Tensor, bias: Tensor | float) -> Tensor:
        scores = causal_sums(torch.einsum("gh,bgnm->bhnm", P, q @ k.transpose(-2, -1)) + bias)
        return (scores / scores.sum(-1, keepdim=True)) @ v

    def summed(self, q: Tensor, k: Tensor, v: Tensor, P: Tensor, bias: Tensor | float) -> Tensor:
        sums = torch.einsum("bgmd,bhme->bghde", k, v) * P[..., None, None]
        totals = torch.einsum("bgd,gh->bghd", k.sum(-2), P)
        above = torch.einsum("bgnd,bghde->bhne", q, sums) + bias * v.sum(-2, keepdim=True)
        below = torch.einsum("bgnd,bghd->bhn", q, totals).unsqueeze(-1) + bias * k.shape[-2]
        return above / below


LAYERS = {
    "linear": (Linear, {}),
    "linear2": (Linear, {"kernels": KERNELS[:2]}),
    "linear3": (Linear, {"kernels": KERNELS}),
    "linear3_shifted": (Linear, {"kernels": SHIFTED}),
    "mhsa_poly": (Polynomial, {}),
    "mlk": (MixtureOfLinearKeys, {}),
    "smlk": (MixtureOfLinearKeys, {"shifted": True}),
    "kernel_fish": (KernelFish, {}),
    "kernel_gfish": (KernelFish, {"two": True}),
}
