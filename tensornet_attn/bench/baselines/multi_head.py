"""Softmax attention with projections and positions, by one call of attention each."""

from __future__ import annotations

import torch
from torch import Tensor

from tensornet_attn.bench.baselines.layer import BaselineLayer, chosen, heads, out
from tensornet_attn.reference import slopes


def rotated(x: Tensor, fraction: float = 1.0) -> Tensor:
    """Rotary positions on the first `fraction` of each head of x [b h n d] (Su et al. 2021).

    Entries i and i + half are a pair. Angles are in float64, for accurate phases in long sequences.
    """
    width = round(fraction * x.shape[-1])
    positions = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64)
    rate = 10000.0 ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width)
    angle = positions[:, None] * rate  # n half
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b, rest = x.split([width // 2, width // 2, x.shape[-1] - width], -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


class MultiHead(BaselineLayer):
    """softmax(Q K^T / sqrt(d)) V Wo (Vaswani et al. 2017, eq. 1), with keys and values from `memory` if given.

    `band`: only (k - 1) // 2 diagonals on each side of the main diagonal. `rope`: rotary positions on queries and keys
    (Su et al. 2021, eq. 14 to 16).
    """

    legs = "Wq[f h d] Wk[f h d] Wv[f h d] Wo[h d f]"

    def declare(self, band: bool = False, rope: bool = False) -> None:
        side, self.rope = (self.size.k - 1) // 2 if band else 0, rope
        self.reach = (side, side) if band else None

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = heads(x, self.Wq), heads(memory, self.Wk), heads(memory, self.Wv)  # b h n d
        q, k = (rotated(q), rotated(k)) if self.rope else (q, k)
        return out(self.attend(q, k, v, self.size.d**-0.5, self.causal, self.reach), self.Wo)


class MultiQuery(BaselineLayer):
    """All query heads share one key head and one value head (Shazeer 2019)."""

    legs = "Wq[f h d] Wk[f d] Wv[f d] Wo[h d f]"

    def forward(self, x: Tensor) -> Tensor:
        k, v = (x @ self.Wk).unsqueeze(1), (x @ self.Wv).unsqueeze(1)  # b 1 m d
        return out(self.attend(heads(x, self.Wq), k, v, self.size.d**-0.5, self.causal), self.Wo)


class GroupedQuery(BaselineLayer):
    """The j query heads of a group share a key head and a value head (Ainslie et al. 2023); `rope` as above."""

    legs = "Wq[f g j d] Wk[f g d] Wv[f g d] Wo[g j d f]"

    def declare(self, rope: bool = False) -> None:
        self.rope = rope

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(x, self.Wq.flatten(1, 2)), heads(x, self.Wk), heads(x, self.Wv)  # b (g j) n d, b g m d
        q, k = (rotated(q), rotated(k)) if self.rope else (q, k)
        return out(self.attend(q, k, v, self.size.d**-0.5, self.causal), self.Wo.flatten(0, 1))


class Latent(BaselineLayer):
    """Keys and values from one latent per position (DeepSeek-V2, eq. 9 to 11)."""

    legs = "Wq[f h d] Wc[f c] Wuk[c h d] Wuv[c h d] Wo[h d f]"

    def forward(self, x: Tensor) -> Tensor:
        c = x @ self.Wc
        o = self.attend(heads(x, self.Wq), heads(c, self.Wuk), heads(c, self.Wuv), self.size.d**-0.5, self.causal)
        return out(o, self.Wo)


class Merged(BaselineLayer):
    """Multi-head attention with the legs h d merged in its weights (Tuformer, Proposition 1).

    With the core kron(eye(h), ones(d, d)), the design is multi-head attention, which this layer computes directly.
    """

    legs = "Wq[f s] Wk[f s] Wv[f r] Wo[r f]"

    def forward(self, x: Tensor) -> Tensor:
        shape = (self.size.h, self.size.d)
        q, k, v = (heads(x, W.unflatten(1, shape)) for W in (self.Wq, self.Wk, self.Wv))
        return out(self.attend(q, k, v, self.size.d**-0.5, self.causal), self.Wo.unflatten(0, shape))


class HeadsOnly(BaselineLayer):
    """Heads with one component each (Tuformer, table 2: C = I)."""

    legs = "Wq[f h] Wk[f h] Wv[f h] Wo[h f]"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(x, W.unsqueeze(-1)) for W in (self.Wq, self.Wk, self.Wv))  # b h n 1
        return out(self.attend(q, k, v, self.size.h**-0.5, self.causal), self.Wo.unsqueeze(1))


class HeadGated(BaselineLayer):
    """Each query selects k heads by gates (Few Heads Are Enough, eq. 4 to 6)."""

    legs = "Wq[f h d] Wk[f h d] Wv[f h d] Sg[f h] Wo[h d f]"

    def forward(self, x: Tensor) -> Tensor:
        gate = chosen((x @ self.Sg).sigmoid(), self.size.k)  # b n h
        q, k, v = self.qkv(x)
        o = self.attend(q, k, v, self.size.d**-0.5, self.causal)
        return out(gate.transpose(1, 2).unsqueeze(-1) * o, self.Wo)


class MixtureOfHeads(BaselineLayer):
    """Each query selects k of e heads that share keys and values (Zhang et al. 2022). All heads are computed."""

    legs = "Sg[f e] Wq[e f d] Wk[f d] Wv[f d] Wo[e d f]"

    def declare(self, gate: str = "softmax") -> None:
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ self.Sg
        gate = chosen(scores.softmax(-1) if self.gate == "softmax" else scores.sigmoid(), self.size.k)  # b n e
        q, k, v = heads(x, self.Wq.transpose(0, 1)), (x @ self.Wk).unsqueeze(1), (x @ self.Wv).unsqueeze(1)
        o = self.attend(q, k, v, self.size.d**-0.5, self.causal)  # b e n d
        return out(gate.transpose(1, 2).unsqueeze(-1) * o, self.Wo)


class Gaussian(BaselineLayer):
    """Scores from the distance of query and key (MGK with one component). The query norm cancels in the softmax."""

    legs = "Wq[f h d] Wk[f h d] Wv[f h d] Wo[h d f]"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        scale = self.size.d**-0.5
        norms = -0.5 * scale * k.square().sum(-1).unsqueeze(-2)  # b h 1 m
        return out(self.attend(q, k, v, scale, self.causal, bias=norms), self.Wo)


class Alibi(BaselineLayer):
    """Scores minus slope times distance (Press et al. 2022)."""

    legs = MultiHead.legs

    def declare(self) -> None:
        self.register_buffer("slopes", torch.tensor(slopes(self.size.h)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        positions = torch.arange(x.shape[1], device=x.device)
        gap = (positions[:, None] - positions).abs()  # n m
        bias = -self.slopes.to(x.dtype)[:, None, None] * gap  # h n m
        return out(self.attend(q, k, v, self.size.d**-0.5, self.causal, bias=bias), self.Wo)


class Relative(BaselineLayer):
    """q_i k_j + q_i r_{i-j} + u k_j + v r_{i-j}, over sqrt(d) (Dai et al. 2019, section 3.3)."""

    legs = "Wq[f h d] Wk[f h d] Wv[f h d] Wr[f h d] u[h d] v[h d] Wo[h d f]"

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        return out(self.mixed_values(x, memory, heads(memory, self.Wv)), self.Wo)

    def mixed_values(self, x: Tensor, memory: Tensor, values: Tensor) -> Tensor:
        """Attention over values [b h m d]: [b h n d]."""
        scale, q, k = self.size.d**-0.5, heads(x, self.Wq), heads(memory, self.Wk)
        position_scores = self.places(q, x.shape[1], memory.shape[1])
        return self.attend(q + self.u[:, None], k, values, scale, self.causal, bias=position_scores * scale)

    def places(self, q: Tensor, n: int, m: int) -> Tensor:
        """(q + v) times the keys of relative positions, shifted to key positions: [b h n m]."""
        far_first = torch.arange(m - 1, -n, -1, device=q.device)  # distances of query and key
        table = heads(sinusoid(far_first, self.size.f).to(q.dtype)[None], self.Wr)  # 1 h p d
        return shifted((q + self.v[:, None]) @ table.transpose(-2, -1), m)


def shifted(scores: Tensor, m: int) -> Tensor:
    """Shifts [b h n p] with distances m - 1 to 1 - n to [b h n m]: row i starts at entry n - 1 - i."""
    n, width = scores.shape[-2:]
    padded = torch.nn.functional.pad(scores, (1, 0)).flatten(-2)
    return padded[..., n:].unflatten(-1, (n, width))[..., :m]


def sinusoid(positions: Tensor, width: int) -> Tensor:
    """Interleaved sines and cosines, [p, f]."""
    entry = torch.arange(width, device=positions.device)
    angle = positions[:, None] * 10000.0 ** (-2 * (entry // 2).double() / width)
    return torch.where(entry % 2 == 0, angle.sin(), angle.cos())


LAYERS = {
    "mhsa": (MultiHead, {}),
    "cross": (MultiHead, {}),
    "band": (MultiHead, {"band": True}),
    "mqa": (MultiQuery, {}),
    "gqa": (GroupedQuery, {}),
    "mla": (Latent, {}),
    "mhsa_core": (Merged, {}),
    "heads_only": (HeadsOnly, {}),
    "head_gated": (HeadGated, {}),
    "moa": (MixtureOfHeads, {}),
    "moa_regularised": (MixtureOfHeads, {}),
    "moa_sigmoid": (MixtureOfHeads, {"gate": "sigmoid"}),
    "gaussian": (Gaussian, {}),
    "mhsa_rope": (MultiHead, {"rope": True}),
    "gqa_rope": (GroupedQuery, {"rope": True}),
    "alibi": (Alibi, {}),
    "transformer_xl": (Relative, {}),
}
