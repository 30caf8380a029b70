"""Attention that knows positions: rotary, linear biases, relative positions."""

from __future__ import annotations

import torch
from torch import Tensor

from tensornet_attn.bench.baselines.layer import Layer, heads, out
from tensornet_attn.bench.baselines.multi_head import GroupedQuery, MultiHead


def rotated(x: Tensor, fraction: float = 1.0) -> Tensor:
    """x [b h n d] with the first `fraction` of each head turned by its position (Su et al. 2021).

    Entry i goes with entry i + half; angles in float64, so that long sequences keep their phase.
    """
    width = round(fraction * x.shape[-1])
    place = torch.arange(x.shape[-2], device=x.device, dtype=torch.float64)
    rate = 10000.0 ** (-torch.arange(0, width, 2, device=x.device, dtype=torch.float64) / width)
    angle = place[:, None] * rate  # n half
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b, rest = x.split([width // 2, width // 2, x.shape[-1] - width], -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)


class Rotary(MultiHead):
    """Multi-head attention with queries and keys turned by their positions (Su et al. 2021, eq. 14 to 16)."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = rotated(heads(x, self.Wq)), rotated(heads(x, self.Wk)), heads(x, self.Wv)
        return out(self.attend(q, k, v, self.size.d**-0.5, self.causal), self.Wo)


class GroupedRotary(GroupedQuery):
    """Grouped-query attention with rotary positions."""

    def placed(self, x: Tensor) -> Tensor:
        return rotated(x)


class Alibi(MultiHead):
    """Scores less slope times distance (Press et al. 2022)."""

    def declare(self) -> None:
        super().declare()
        self.register_buffer("slopes", torch.tensor(slopes(self.size.h)), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(x, self.Wq), heads(x, self.Wk), heads(x, self.Wv)
        place = torch.arange(x.shape[1], device=x.device)
        gap = (place[:, None] - place).abs()  # n m
        bias = -self.slopes.to(x.dtype)[:, None, None] * gap  # h n m
        return out(self.attend(q, k, v, self.size.d**-0.5, self.causal, bias=bias), self.Wo)


def slopes(h: int) -> list[float]:
    """2 ** (-8 i / h); between powers of two, every second slope of the next power fills up."""
    power = 2 ** (h.bit_length() - 1)
    first = [2 ** (-8 * i / power) for i in range(1, power + 1)]
    return first + [2 ** (-8 * i / (2 * power)) for i in range(1, 2 * (h - power), 2)]


class Relative(Layer):
    """q_i k_j + q_i r_{i-j} + u k_j + v r_{i-j}, over sqrt(d) (Dai et al. 2019, section 3.3)."""

    def declare(self) -> None:
        self.weights(Wq="f h d", Wk="f h d", Wv="f h d", Wr="f h d", u="h d", v="h d", Wo="h d f")

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        return out(self.mixed_values(x, memory, heads(memory, self.Wv)), self.Wo)

    def mixed_values(self, x: Tensor, memory: Tensor, values: Tensor) -> Tensor:
        """Attention over values [b h m d]: [b h n d]."""
        scale, q, k = self.size.d**-0.5, heads(x, self.Wq), heads(memory, self.Wk)
        place = self.places(q, x.shape[1], memory.shape[1])
        return self.attend(q + self.u[:, None], k, values, scale, self.causal, bias=place * scale)

    def places(self, q: Tensor, n: int, m: int) -> Tensor:
        """(q + v) times the keys of the relative positions, moved to key positions: [b h n m]."""
        far_first = torch.arange(m - 1, -n, -1, device=q.device)  # distances of query and key
        table = heads(sinusoid(far_first, self.size.f).to(q.dtype)[None], self.Wr)  # 1 h p d
        return shifted((q + self.v[:, None]) @ table.transpose(-2, -1), m)


def shifted(scores: Tensor, m: int) -> Tensor:
    """[b h n p] with distances m - 1 to 1 - n, to [b h n m]: row i starts n - 1 - i entries further right."""
    n, width = scores.shape[-2:]
    padded = torch.nn.functional.pad(scores, (1, 0)).flatten(-2)
    return padded[..., n:].unflatten(-1, (n, width))[..., :m]


def sinusoid(place: Tensor, width: int) -> Tensor:
    """Sines and cosines in turn, [p, f]."""
    entry = torch.arange(width, device=place.device)
    angle = place[:, None] * 10000.0 ** (-2 * (entry // 2).double() / width)
    return torch.where(entry % 2 == 0, angle.sin(), angle.cos())


LAYERS = {
    "mhsa_rope": (Rotary, {}),
    "gqa_rope": (GroupedRotary, {}),
    "alibi": (Alibi, {}),
    "transformer_xl": (Relative, {}),
}
