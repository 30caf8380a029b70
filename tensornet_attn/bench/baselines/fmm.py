"""Near and far fields (FMMformer, NeurIPS 2021): banded softmax blended with kernels or fast weights."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from tensornet_attn.bench.baselines.attend import Reach
from tensornet_attn.bench.baselines.kernels import KERNELS, SHIFTED, Kernel, causal_sums, far_field
from tensornet_attn.bench.baselines.layer import Layer, elu1, heads, out


class NearAndFar(Layer):
    """sigmoid(w1) near + sigmoid(w2) (far1 + far2 + ...).

    `past`: all k diagonals at or before the query. `rows`: divided by the sums of its rows.
    """

    mixed = "blends a softmax with kernels"

    def declare(self, kernels: tuple[Kernel, ...], past: bool = False, rows: bool = False) -> None:
        self.weights(Wq="f h d", Wk="f h d", Wv="f h d", w1="h", w2="h", Wo="h d f")
        side, self.kernels, self.rows = (self.size.k - 1) // 2, kernels, rows
        self.reach: Reach = (self.size.k - 1, 0) if past else (side, side)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(x, self.Wq), heads(x, self.Wk), heads(x, self.Wv)
        near = self.attend(q, k, v, self.size.d**-0.5, self.causal, self.reach)
        far = far_field(q, k, v, self.causal, self.kernels)
        o = blended(self.w1, near) + blended(self.w2, far)
        if self.rows:  # the softmax and each kernel have rows that sum to 1, so that those of the blend sum to this
            o = o / (self.w1.sigmoid() + len(self.kernels) * self.w2.sigmoid())[:, None, None]
        return out(o, self.Wo)


def blended(w: Tensor, o: Tensor) -> Tensor:
    """sigmoid(w), a number a head, times o [b h n d]."""
    return w.sigmoid()[:, None, None] * o


class Release(NearAndFar):
    """The released code for Long Range Arena: the far field times m ** -0.5, 2 k - 1 diagonals, no sigmoid."""

    def declare(self) -> None:
        super().declare(KERNELS[:1])
        self.reach = (self.size.k - 1, self.size.k - 1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(x, self.Wq), heads(x, self.Wk), heads(x, self.Wv)
        near = self.attend(q, k, v, self.size.d**-0.5, self.causal, self.reach)
        phi_q, phi_k, scale = elu1(q), elu1(k), x.shape[1] ** -0.5
        if self.causal:
            far = causal_sums(phi_q @ phi_k.transpose(-2, -1)) @ v
        else:
            far = phi_q @ (phi_k.transpose(-2, -1) @ v)
        return out(self.w1[:, None, None] * near + (scale * self.w2)[:, None, None] * far, self.Wo)


class FastWeights(Layer):
    """Fast weights written by the delta rule, a step a position (Schlag et al. 2021); `kernel`: beside a kernel."""

    mixed = "has no softmax"

    def declare(self, kernel: bool = False) -> None:
        self.weights(Wq="f h d", Wk="f h d", Wv="f h e", Wb="f h", Wo="h e f")
        self.kernel = kernel
        self.delta: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor] = delta_rule

    def forward(self, x: Tensor) -> Tensor:
        return out(self.far(x, heads(x, self.Wq), heads(x, self.Wk), heads(x, self.Wv)), self.Wo)

    def far(self, x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """[b h n e]."""
        rate = (x @ self.Wb).sigmoid().transpose(1, 2).unsqueeze(-1)  # b h m 1
        read = self.delta(shares(elu1(q)), shares(elu1(k)), v, rate)
        return read + far_field(q, k, v, True) if self.kernel else read


class NearAndFastWeights(FastWeights):
    """Near field blended with them."""

    mixed = "blends a softmax with fast weights"

    def declare(self, kernel: bool = False) -> None:
        super().declare(kernel)
        self.weights(w1="h", w2="h")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(x, self.Wq), heads(x, self.Wk), heads(x, self.Wv)
        near = self.attend(q, k, v, self.size.d**-0.5, True, (self.size.k - 1, 0))
        return out(blended(self.w1, near) + blended(self.w2, self.far(x, q, k, v)), self.Wo)


def shares(x: Tensor) -> Tensor:
    """Entries divided by their sum; they are positive."""
    return x / x.sum(-1, keepdim=True)


def delta_rule(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """S += rate (v - S k) k^T at each position, read by q and divided by z.q, z the cumulative sum of keys."""
    total, reads = k.cumsum(-2), []
    S = torch.zeros(*v.shape[:2], v.shape[-1], k.shape[-1], dtype=v.dtype, device=v.device)  # b h e d
    for key, value, query, pace in zip(*(x.unbind(2) for x in (k, v, q, rate)), strict=True):
        written = pace * (value - (S @ key.unsqueeze(-1)).squeeze(-1))  # b h e
        S = S + written.unsqueeze(-1) * key.unsqueeze(-2)
        reads.append((S @ query.unsqueeze(-1)).squeeze(-1))
    return torch.stack(reads, 2) / (total * q).sum(-1, keepdim=True)


def in_chunks(q: Tensor, k: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """The same by flash-linear-attention 0.2 or newer, which has positions before heads and no division."""
    from fla.ops.delta_rule import chunk_delta_rule

    ahead = [x.transpose(1, 2).contiguous() for x in (q, k, v, rate)]  # b n h d
    read, _ = chunk_delta_rule(*ahead[:3], ahead[3].squeeze(-1), scale=1.0)
    return read.transpose(1, 2) / (k.cumsum(-2) * q).sum(-1, keepdim=True)


LAYERS = {
    **{f"fmm{count}": (NearAndFar, {"kernels": KERNELS[:count]}) for count in (1, 2, 3)},
    **{f"fmm{count}_causal": (NearAndFar, {"kernels": KERNELS[:count], "past": True}) for count in (1, 2, 3)},
    **{f"fmm{count}_rows": (NearAndFar, {"kernels": KERNELS[:count], "rows": True}) for count in (1, 2)},
    "fmm3_shifted": (NearAndFar, {"kernels": SHIFTED}),
    "fmm_lra_release": (Release, {}),
    "fast_weight1": (FastWeights, {}),
    "fast_weight2": (FastWeights, {"kernel": True}),
    "fmm_fast_weight1": (NearAndFastWeights, {}),
    "fmm_fast_weight2": (NearAndFastWeights, {"kernel": True}),
}
