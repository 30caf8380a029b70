"""Handwritten decoding steps with preallocated caches.

Weights are those of the handwritten layers. Attention uses scaled_dot_product_attention.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tensornet_attn.bench.baselines.kernels import shares
from tensornet_attn.bench.baselines.layer import BaselineLayer, elu1, heads, out

Shape = tuple[int, ...]


class BaselineStep(ABC):
    """A decoding step of a layer. `kept`: the cache tensors. `seen`: the number of positions, at most `room`."""

    of = ""  # the shipped design whose handwritten layer has the weights
    note = ""

    def __init__(self, layer: BaselineLayer, batch: int, room: int):
        self.layer, self.seen = layer, 0
        like = next(layer.parameters())
        self.kept = [like.new_zeros(shape) for shape in self.shapes(layer.size, batch, room)]

    @staticmethod
    @abstractmethod
    def shapes(size: Any, batch: int, room: int) -> list[Shape]:
        """The shapes of the cache tensors."""

    def fill(self, n: int) -> None:
        """Fills the cache as after n positions, with random values, which do not affect the time of a step."""
        self.seen = n
        for cache in self.kept:
            cache.uniform_()

    @abstractmethod
    def step(self, x: Tensor) -> Tensor:
        """The output [b 1 f] of one more position."""

    def grown(self, cache: Tensor, new: Tensor) -> Tensor:
        """Writes `new` [... 1 d] to `cache` [... room d] at this step's position, and returns all positions so far."""
        cache[..., self.seen - 1 : self.seen, :] = new
        return cache[..., : self.seen, :]


class KeysAndValues(BaselineStep):
    """Softmax attention with cached keys and values in the layout of SDPA; query heads may share them."""

    of = "mhsa"

    @staticmethod
    def shapes(size: Any, batch: int, room: int) -> list[Shape]:
        return [(batch, size.h, room, size.d)] * 2

    def step(self, x: Tensor) -> Tensor:
        layer, self.seen = self.layer, self.seen + 1
        q = heads(x, layer.Wq.flatten(1, -2))
        k, v = (self.grown(held, heads(x, W)) for held, W in zip(self.kept, (layer.Wk, layer.Wv), strict=True))
        grouped = q.shape[1] != k.shape[1]
        read = F.scaled_dot_product_attention(q, k, v, scale=layer.size.d**-0.5, enable_gqa=grouped)
        return out(read, layer.Wo.flatten(0, -3))


class GroupedKeysAndValues(KeysAndValues):
    of = "gqa"

    @staticmethod
    def shapes(size: Any, batch: int, room: int) -> list[Shape]:
        return [(batch, size.g, room, size.d)] * 2


class Unabsorbed(BaselineStep):
    """Caches the latent, and computes all keys and values from it at each step."""

    of = "mla"
    note = "computes keys and values from the latent at each step"

    @staticmethod
    def shapes(size: Any, batch: int, room: int) -> list[Shape]:
        return [(batch, room, size.c)]

    def step(self, x: Tensor) -> Tensor:
        layer, self.seen = self.layer, self.seen + 1
        c = self.grown(self.kept[0], x @ layer.Wc)
        q, k, v = heads(x, layer.Wq), heads(c, layer.Wuk), heads(c, layer.Wuv)
        return out(F.scaled_dot_product_attention(q, k, v, scale=layer.size.d**-0.5), layer.Wo)


class LinearState(BaselineStep):
    """S += k v^T and z += k, with output q S / q z."""

    of = "linear"

    @staticmethod
    def shapes(size: Any, batch: int, room: int) -> list[Shape]:
        return [(batch, size.h, size.d, size.d), (batch, size.h, size.d, 1)]

    def step(self, x: Tensor) -> Tensor:
        layer, (S, z), self.seen = self.layer, self.kept, self.seen + 1
        q, k, v = elu1(heads(x, layer.Wq)), elu1(heads(x, layer.Wk)), heads(x, layer.Wv)
        key = k.transpose(-2, -1)
        S += key * v
        z += key
        return out((q @ S) / (q @ z), layer.Wo)


class FastWeightState(BaselineStep):
    """S += rate k (v - k S) and z += k, with output q S / q z."""

    of = "fast_weight1"

    @staticmethod
    def shapes(size: Any, batch: int, room: int) -> list[Shape]:
        return [(batch, size.h, size.d, size.e), (batch, size.h, size.d, 1)]

    def step(self, x: Tensor) -> Tensor:
        layer, (S, z), self.seen = self.layer, self.kept, self.seen + 1
        q, k, v = shares(elu1(heads(x, layer.Wq))), shares(elu1(heads(x, layer.Wk))), heads(x, layer.Wv)
        rate = (x @ layer.Wb).sigmoid().transpose(1, 2).unsqueeze(-1)  # b h 1 1
        key = k.transpose(-2, -1)
        S += key * (rate * (v - k @ S))
        z += key
        return out((q @ S) / (q @ z), layer.Wo)


class GatedState(BaselineStep):
    """S = decay S, then S += rate k (v - k S), with output q S, which is normalised and gated."""

    of = "gated_deltanet"

    @staticmethod
    def shapes(size: Any, batch: int, room: int) -> list[Shape]:
        return [(batch, size.h, size.d, size.e)]

    def step(self, x: Tensor) -> Tensor:
        S, self.seen = self.kept[0], self.seen + 1
        q, k, v, rate, decay = self.layer.operands(x)
        S.mul_(decay)
        S += k.transpose(-2, -1) * (rate * (v - k @ S))
        return self.layer.gated(x, q @ S)


class Retention(BaselineStep):
    """S = decay S + k v^T, with output q S. The decay of a head is exp(-slope)."""

    of = "mhsa"

    def __init__(self, layer: BaselineLayer, batch: int, room: int):
        super().__init__(layer, batch, room)
        places = torch.arange(1, layer.size.h + 1, dtype=torch.float64)
        slopes = 2.0 ** (-8 * places / layer.size.h)  # as in ALiBi, for a power of two heads
        self.decay = torch.exp(-slopes).to(self.kept[0]).view(-1, 1, 1)

    @staticmethod
    def shapes(size: Any, batch: int, room: int) -> list[Shape]:
        return [(batch, size.h, size.d, size.d)]

    def step(self, x: Tensor) -> Tensor:
        layer, S, self.seen = self.layer, self.kept[0], self.seen + 1
        q, k, v = layer.qkv(x)
        S.mul_(self.decay).add_(k.transpose(-2, -1) * v)
        return out((layer.size.d**-0.5 * q) @ S, layer.Wo)


STEPS: Mapping[str, type[BaselineStep]] = {
    "mhsa": KeysAndValues,
    "gqa": GroupedKeysAndValues,
    "mla": Unabsorbed,
    "linear": LinearState,
    "fast_weight1": FastWeightState,
    "gated_deltanet": GatedState,
    "retention": Retention,
}
