"""Tunable heads: a core mixes components of queries and keys into heads (Tuformer, ICLR 2022)."""

from __future__ import annotations

import torch
from torch import Tensor

from tensornet_attn.bench.baselines.kernels import causal_sums, squared
from tensornet_attn.bench.baselines.layer import BaselineLayer, attention_map, elu1, heads, out
from tensornet_attn.bench.baselines.mixed import BEFORE
from tensornet_attn.bench.baselines.multi_head import shifted, sinusoid


class TunableHeads(BaselineLayer):
    """softmax of sum over s of C[r s] Q[n s] K[m s], with one value component per head."""

    mixed = BEFORE
    legs = "C[r s] Wq[f s] Wk[f s] Wv[f r] Wo[r f]"

    def forward(self, x: Tensor) -> Tensor:
        return attended(self.C, x @ self.Wq, x @ self.Wk, x @ self.Wv, self.causal) @ self.Wo


def attended(C: Tensor, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """The attention [b n r] of q, k [b n s] and v [b m r], with scores scaled by r ** -0.5."""
    mixed = (len(C) ** -0.5 * C)[:, None] * q.unsqueeze(1)  # b r n s
    maps = attention_map(torch.einsum("brns,bms->brnm", mixed, k), causal)
    return torch.einsum("brnm,bmr->bnr", maps, v)


class RelativeHeads(BaselineLayer):
    """The core mixes all four terms of Transformer-XL's scores (Dai et al. 2019, section 3.3)."""

    mixed = BEFORE
    legs = "C[r s] Wq[f s] Wk[f s] Wv[f r] Wr[f s] u[s] v[s] Wo[r f]"

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        n, m = x.shape[1], memory.shape[1]
        q, core = (x @ self.Wq).unsqueeze(1), (self.size.r**-0.5 * self.C)[:, None]  # b 1 n s, r 1 s
        far_first = torch.arange(m - 1, -n, -1, device=x.device)  # distances of query and key
        table = sinusoid(far_first, self.size.f).to(x.dtype) @ self.Wr  # p s
        scores = torch.einsum("brns,bms->brnm", core * (q + self.u), memory @ self.Wk)
        scores = scores + shifted((core * (q + self.v)) @ table.T, m)
        return torch.einsum("brnm,bmr->bnr", attention_map(scores, self.causal), memory @ self.Wv) @ self.Wo


class SquaredHeads(BaselineLayer):
    """Row-normalised squares of mixed scores. Kernel features would be larger, s (s + 1) / 2 per position."""

    mixed = "has no softmax"
    legs = "C[r s] Wq[f s] Wk[f s] Wv[f r] Wo[r f]"

    def forward(self, x: Tensor) -> Tensor:
        scores = torch.einsum("brns,bms->brnm", self.C[:, None] * (x @ self.Wq).unsqueeze(1), x @ self.Wk)
        return torch.einsum("brnm,bmr->bnr", squared(scores, self.causal), x @ self.Wv) @ self.Wo


class TrainableHeads(BaselineLayer):
    """Tunable heads with few heads (table 2, D = 1)."""

    mixed = BEFORE
    legs = "C1[h g] Wq[f g] Wk[f g] Wv[f h] Wo[h f]"

    def forward(self, x: Tensor) -> Tensor:
        return attended(self.C1, x @ self.Wq, x @ self.Wk, x @ self.Wv, self.causal) @ self.Wo


class LowRankCore(BaselineLayer):
    """C = C2^T C3: c score maps, mixed into r heads."""

    mixed = BEFORE
    legs = "C2[c r] C3[c s] Wq[f s] Wk[f s] Wv[f r] Wo[r f]"

    def forward(self, x: Tensor) -> Tensor:
        q, k = x @ self.Wq, x @ self.Wk
        scores = torch.einsum("bcns,bms->bcnm", self.C3[:, None] * q.unsqueeze(1), k)
        mixed = torch.einsum("cr,bcnm->brnm", self.size.r**-0.5 * self.C2, scores)
        return torch.einsum("brnm,bmr->bnr", attention_map(mixed, self.causal), x @ self.Wv) @ self.Wo


class SkipRight(BaselineLayer):
    """C = C1 (x) 1 1^T: whole heads are mixed."""

    mixed = BEFORE
    legs = "C1[h g] Wq[f g d] Wk[f g d] Wv[f h d] Wo[h d f]"

    def forward(self, x: Tensor) -> Tensor:
        scores = heads(x, self.Wq) @ heads(x, self.Wk).transpose(-2, -1)  # b g n m
        mixed = torch.einsum("hg,bgnm->bhnm", (self.size.h * self.size.d) ** -0.5 * self.C1, scores)
        return out(attention_map(mixed, self.causal) @ heads(x, self.Wv), self.Wo)


class SkipLeft(BaselineLayer):
    """C = I_H (x) (C2^T C3): components are mixed within each head."""

    mixed = BEFORE
    legs = "C2[c d] C3[c e] Wq[f h e] Wk[f h e] Wv[f h d] Wo[h d f]"

    def forward(self, x: Tensor) -> Tensor:
        q, k = heads(x, self.Wq), heads(x, self.Wk)  # b h n e
        scores = torch.einsum("bhcne,bhme->bhcnm", self.C3[:, None] * q.unsqueeze(2), k)
        mixed = torch.einsum("cd,bhcnm->bhdnm", (self.size.h * self.size.d) ** -0.5 * self.C2, scores)
        maps = attention_map(mixed, self.causal)
        return out(torch.einsum("bhdnm,bhmd->bhnd", maps, heads(x, self.Wv)), self.Wo)


class KroneckerCore(BaselineLayer):
    """C = C1 (x) (C2^T C3): components are mixed within each head, then whole heads."""

    mixed = BEFORE
    legs = "C1[h g] C2[c d] C3[c e] Wq[f g e] Wk[f g e] Wv[f h d] Wo[h d f]"

    def forward(self, x: Tensor) -> Tensor:
        q, k = heads(x, self.Wq), heads(x, self.Wk)  # b g n e
        scores = torch.einsum("bgcne,bgme->bgcnm", self.C3[:, None] * q.unsqueeze(2), k)
        over_heads = torch.einsum("hg,bgcnm->bhcnm", (self.size.h * self.size.d) ** -0.5 * self.C1, scores)
        maps = attention_map(torch.einsum("cd,bhcnm->bhdnm", self.C2, over_heads), self.causal)
        return out(torch.einsum("bhdnm,bhmd->bhnd", maps, heads(x, self.Wv)), self.Wo)


class KernelCore(BaselineLayer):
    """Row-normalised C[r s] phi(Q)[n s] phi(K)[m s]; linear in n if not causal."""

    mixed = "has no softmax"
    linear = True
    legs = "C[r s] Wq[f s] Wk[f s] Wv[f r] Wo[r f]"

    def declare(self, square: bool = False) -> None:
        self.feature = torch.square if square else elu1

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.feature(x @ self.Wq), self.feature(x @ self.Wk), x @ self.Wv
        if self.causal:
            scores = causal_sums(torch.einsum("brns,bms->brnm", self.C[:, None] * q.unsqueeze(1), k))
            return torch.einsum("brnm,bmr->bnr", scores / scores.sum(-1, keepdim=True), v) @ self.Wo
        sums = k.transpose(-2, -1) @ v  # b s r
        total = (q * k.sum(-2, keepdim=True)) @ self.C.T  # b n r
        return (q @ (self.C.T * sums) / total) @ self.Wo


LAYERS = {
    "thsa": (TunableHeads, {}),
    "thsa_xl": (RelativeHeads, {}),
    "thsa_poly": (SquaredHeads, {}),
    "thsa_low_rank": (LowRankCore, {}),
    "thsa_elu": (KernelCore, {}),
    "thsa_square": (KernelCore, {"square": True}),
    "trainable_heads_only": (TrainableHeads, {}),
    "skip_right": (SkipRight, {}),
    "skip_left": (SkipLeft, {}),
    "thsa_kron": (KroneckerCore, {}),
}
