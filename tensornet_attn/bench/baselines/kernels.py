"""Kernel attention with normalised rows, and its blends with banded softmax attention (FMMformer, NeurIPS 2021).

Sums over keys are computed first; causal attention computes all scores.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce

import torch
from torch import Tensor
from torch.nn import functional as F

from tensornet_attn.bench.baselines.layer import BaselineLayer, Reach, elu1, heads, out, visible

Kernel = tuple[Callable[[Tensor], Tensor], float]  # a feature map, and the epsilon that is added to row sums
KERNELS: tuple[Kernel, ...] = ((elu1, 0.0), (lambda x: elu1(-x), 0.0), (torch.tanh, 1e-6))
SHIFTED: tuple[Kernel, ...] = (*KERNELS[:2], (lambda x: torch.tanh(x) + 1, 0.0))  # none of them negative


def causal_sums(scores: Tensor) -> Tensor:
    """Scores [..., n, m] with zeros for keys after the query."""
    n, m = scores.shape[-2:]
    keep = visible(n, m, True, None, scores.device)
    return scores.masked_fill(~keep, 0)  # type: ignore[operator]


def normalized(q: Tensor, k: Tensor, v: Tensor, causal: bool, eps: float = 0.0) -> Tensor:
    """Row-normalised q k^T times v, for features q, k [b h n d] and values v [b h m e]."""
    if causal:
        scores = causal_sums(q @ k.transpose(-2, -1))
        return (scores / (scores.sum(-1, keepdim=True) + eps)) @ v
    total = q @ k.sum(-2).unsqueeze(-1)  # b h n 1
    return q @ (k.transpose(-2, -1) @ v) / (total + eps)


class LinearKernelAttention(BaselineLayer):
    """Linear attention (Katharopoulos et al. 2020, eq. 5) with one kernel, or the sum of several (FMMformer)."""

    mixed = "has no softmax"
    linear = True
    legs = "Wq[f h d] Wk[f h d] Wv[f h d] Wo[h d f]"

    def declare(self, kernels: tuple[Kernel, ...] = KERNELS[:1]) -> None:
        self.kernels = kernels

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        return out(far_field(q, k, v, self.causal, self.kernels), self.Wo)


def far_field(q: Tensor, k: Tensor, v: Tensor, causal: bool, kernels: tuple[Kernel, ...] = KERNELS[:1]) -> Tensor:
    """The sum of attention by each of the kernels."""
    return reduce(torch.add, (normalized(phi(q), phi(k), v, causal, eps) for phi, eps in kernels))


class Polynomial(BaselineLayer):
    """Attention with weights proportional to (q.k)^2; the features are products of pairs of entries."""

    mixed = "has no softmax"
    linear = True
    legs = "Wq[f h d] Wk[f h d] Wv[f h d] Wo[h d f]"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        features = self.size.d * (self.size.d + 1) // 2
        if self.causal or k.shape[-2] <= features:  # then scores are not larger than features
            return out(squared(q @ k.transpose(-2, -1), self.causal) @ v, self.Wo)
        i, j = torch.triu_indices(self.size.d, self.size.d, device=x.device)
        twice = torch.where(i == j, 1.0, 2.0).to(x.dtype)  # a pair of different entries counts twice
        return out(normalized(twice * q[..., i] * q[..., j], k[..., i] * k[..., j], v, False), self.Wo)


def squared(scores: Tensor, causal: bool) -> Tensor:
    """Row-normalised squares of scores [..., n, m]."""
    scores = causal_sums(scores.square()) if causal else scores.square()
    return scores / scores.sum(-1, keepdim=True)


class MixtureOfLinearKeys(BaselineLayer):
    """Keys mixed after the feature map (MLK, eq. 13). `shifted`: copies of one key instead of r keys."""

    mixed = "has no softmax over the keys"
    linear = True

    def declare(self, shifted: bool = False) -> None:
        self.weights("Wq[f h d] Wv[f h d] logits[h r] Wo[h d f]")
        self.weights("Wk[f h d] b[r h d]" if shifted else "Wk[f r h d]")
        self.shifted = shifted

    def forward(self, x: Tensor) -> Tensor:
        keys = heads(x, self.Wk.flatten(1, -2))  # b (r h) m d, or b h m d
        if self.shifted:
            keys = keys.unsqueeze(1) + self.b.unsqueeze(2)
        else:
            keys = keys.unflatten(1, (self.size.r, self.size.h))
        mixed = torch.einsum("hr,brhmd->bhmd", self.logits.softmax(-1), elu1(keys))
        return out(normalized(elu1(heads(x, self.Wq)), mixed, heads(x, self.Wv), self.causal), self.Wo)


class KernelFish(BaselineLayer):
    """Kernel scores of g global heads, mixed into h local heads with positive weights. `two`: two maps in sequence."""

    mixed = "has no softmax"
    linear = True

    def declare(self, two: bool = False) -> None:
        self.weights("P[g k] W2[h k] b2[h]" if two else "P[g h]")
        self.weights("Wq[f g d] Wk[f g d] Wv[f h d] Wo[h d f]")
        self.two = two

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = elu1(heads(x, self.Wq)), elu1(heads(x, self.Wk)), heads(x, self.Wv)
        P: Tensor = F.softplus(self.P)
        bias: Tensor | float = 0.0
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


class NearAndFar(BaselineLayer):
    """sigmoid(w1) near + sigmoid(w2) (far1 + far2 + ...).

    `past`: all k diagonals are at or before the query. `rows`: rows are normalised.
    """

    mixed = "blends a softmax with kernels"
    legs = "Wq[f h d] Wk[f h d] Wv[f h d] w1[h] w2[h] Wo[h d f]"

    def declare(self, kernels: tuple[Kernel, ...], past: bool = False, rows: bool = False) -> None:
        side, self.kernels, self.rows = (self.size.k - 1) // 2, kernels, rows
        self.reach: Reach = (self.size.k - 1, 0) if past else (side, side)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        near = self.attend(q, k, v, self.size.d**-0.5, self.causal, self.reach)
        far = far_field(q, k, v, self.causal, self.kernels)
        o = blended(self.w1, near) + blended(self.w2, far)
        if self.rows:  # row sums of the blend, because rows of the softmax and of each kernel sum to 1
            o = o / (self.w1.sigmoid() + len(self.kernels) * self.w2.sigmoid())[:, None, None]
        return out(o, self.Wo)


def blended(w: Tensor, o: Tensor) -> Tensor:
    """sigmoid(w), one value per head, times o [b h n d]."""
    return w.sigmoid()[:, None, None] * o


class Release(NearAndFar):
    """The released code for Long Range Arena: the far field times m ** -0.5, 2 k - 1 diagonals, no sigmoid."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        near = self.attend(q, k, v, self.size.d**-0.5, self.causal, (self.size.k - 1, self.size.k - 1))
        phi_q, phi_k, scale = elu1(q), elu1(k), x.shape[1] ** -0.5
        if self.causal:
            far = causal_sums(phi_q @ phi_k.transpose(-2, -1)) @ v
        else:
            far = phi_q @ (phi_k.transpose(-2, -1) @ v)
        return out(self.w1[:, None, None] * near + (scale * self.w2)[:, None, None] * far, self.Wo)


class FastWeights(BaselineLayer):
    """Fast weights with the delta rule, one step per position (Schlag et al. 2021). `kernel`: added to a kernel."""

    mixed = "has no softmax"
    legs = "Wq[f h d] Wk[f h d] Wv[f h e] Wb[f h] Wo[h e f]"

    def declare(self, kernel: bool = False) -> None:
        self.kernel = kernel
        self.delta: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = delta_rule

    def forward(self, x: Tensor) -> Tensor:
        return out(self.far(x, *self.qkv(x)), self.Wo)

    def far(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[b h n e]."""
        rate = (x @ self.Wb).sigmoid().transpose(1, 2).unsqueeze(-1)  # b h m 1
        read = self.delta(shares(elu1(q)), shares(elu1(k)), v, rate)
        return read + far_field(q, k, v, True) if self.kernel else read


class NearAndFastWeights(FastWeights):
    """A near field blended with fast weights."""

    mixed = "blends a softmax with fast weights"
    legs = f"{FastWeights.legs} w1[h] w2[h]"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        near = self.attend(q, k, v, self.size.d**-0.5, True, (self.size.k - 1, 0))
        return out(blended(self.w1, near) + blended(self.w2, self.far(x, q, k, v)), self.Wo)


class GatedDeltaNet(BaselineLayer):
    """S = decay S, then S += rate k (v - k S), with output q S, which is normalised and gated."""

    legs = "Wq[f h d] Wk[f h d] Wv[f h e] Wb[f h] Wa[f h] speed[h] step[h] Wg[f h e] norm[e] Wo[h e f]"
    mixed = "keeps a state that decays"
    linear_causal = True

    def operands(self, x: Tensor) -> tuple[Tensor, ...]:
        """Queries, keys, values, rates and decays, each [b h n .]."""
        q, k, v = (F.silu(projected) for projected in self.qkv(x))
        q, k = (side / (side.norm(dim=-1, keepdim=True) + 1e-6) for side in (q, k))
        decay = torch.exp(-self.speed.exp() * F.softplus(x @ self.Wa + self.step))
        rate, decay = (gate.transpose(1, 2).unsqueeze(-1) for gate in ((x @ self.Wb).sigmoid(), decay))
        return self.size.d**-0.5 * q, k, v, rate, decay

    def gated(self, x: Tensor, read: Tensor) -> Tensor:
        read = F.rms_norm(read, read.shape[-1:], self.norm, 1e-5)
        return out(read * F.silu(heads(x, self.Wg)), self.Wo)

    def forward(self, x: Tensor) -> Tensor:
        operands = self.operands(x)
        S, reads = operands[1].new_zeros(x.shape[0], self.size.h, self.size.d, self.size.e), []
        for q, k, v, rate, decay in zip(*(operand.split(1, 2) for operand in operands), strict=True):
            S = decay * S
            S = S + k.transpose(-2, -1) * (rate * (v - k @ S))
            reads.append(q @ S)
        return self.gated(x, torch.cat(reads, 2))


def shares(x: Tensor) -> Tensor:
    """Positive entries divided by their sum."""
    return x / x.sum(-1, keepdim=True)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """S += rate (v - S k) k^T at each position, with output S q / (z.q), where z is the cumulative sum of keys."""
    total, reads = k.cumsum(-2), []
    S = torch.zeros(*v.shape[:2], v.shape[-1], k.shape[-1], dtype=v.dtype, device=v.device)  # b h e d
    for key, value, query, pace in zip(*(x.unbind(2) for x in (k, v, q, rate)), strict=True):
        written = pace * (value - (S @ key.unsqueeze(-1)).squeeze(-1))  # b h e
        S = S + written.unsqueeze(-1) * key.unsqueeze(-2)
        reads.append((S @ query.unsqueeze(-1)).squeeze(-1))
    return torch.stack(reads, 2) / (total * q).sum(-1, keepdim=True)


def in_chunks(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """The delta rule by flash-linear-attention 0.2 or newer, with positions before heads and no normalisation."""
    from fla.ops.delta_rule import chunk_delta_rule

    ahead = [x.transpose(1, 2).contiguous() for x in (q, k, v, rate)]  # b n h d
    read, _ = chunk_delta_rule(*ahead[:3], ahead[3].squeeze(-1), scale=1.0)
    return read.transpose(1, 2) / (k.cumsum(-2) * q).sum(-1, keepdim=True)


LAYERS = {
    "linear": (LinearKernelAttention, {}),
    "gated_deltanet": (GatedDeltaNet, {}),
    "linear2": (LinearKernelAttention, {"kernels": KERNELS[:2]}),
    "linear3": (LinearKernelAttention, {"kernels": KERNELS}),
    "linear3_shifted": (LinearKernelAttention, {"kernels": SHIFTED}),
    "mhsa_poly": (Polynomial, {}),
    "mlk": (MixtureOfLinearKeys, {}),
    "smlk": (MixtureOfLinearKeys, {"shifted": True}),
    "kernel_fish": (KernelFish, {}),
    "kernel_gfish": (KernelFish, {"two": True}),
    **{f"fmm{count}": (NearAndFar, {"kernels": KERNELS[:count]}) for count in (1, 2, 3)},
    **{f"fmm{count}_causal": (NearAndFar, {"kernels": KERNELS[:count], "past": True}) for count in (1, 2, 3)},
    **{f"fmm{count}_rows": (NearAndFar, {"kernels": KERNELS[:count], "rows": True}) for count in (1, 2)},
    "fmm3_shifted": (NearAndFar, {"kernels": SHIFTED}),
    "fmm_lra_release": (Release, {"kernels": KERNELS[:1]}),
    "fast_weight1": (FastWeights, {}),
    "fast_weight2": (FastWeights, {"kernel": True}),
    "fmm_fast_weight1": (NearAndFastWeights, {}),
    "fmm_fast_weight2": (NearAndFastWeights, {"kernel": True}),
}
