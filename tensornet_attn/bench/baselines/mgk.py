"""Mixtures of keys (Transformer-MGK, ICML 2022): r keys a position, joined before the softmax."""

from __future__ import annotations

import torch
from torch import Tensor

from tensornet_attn.bench.baselines.attend import attention_map, visible
from tensornet_attn.bench.baselines.layer import Layer, heads, out


class MixtureOfKeys(Layer):
    """logsumexp (or `hard`: maximum) over r of log prior - distance, then softmax (eq. 10 to 12).

    `shifted`: copies of one key. `dots`: dot products in place of distances. `em`: the prior follows the mean
    responsibility while training (eq. 11). `shared`: all heads have one set of keys and values (A.11).
    """

    mixed = "has r keys a position"

    def declare(
        self, shifted: bool = False, hard: bool = False, dots: bool = False, em: bool = False, shared: bool = False
    ) -> None:
        self.shifted, self.hard, self.dots, self.em, self.shared = shifted, hard, dots, em, shared
        keys, values = ("f r d", "f d") if shared else ("f h d" if shifted else "f r h d", "f h d")
        self.weights(Wq="f h d", Wk=keys, Wv=values, Wo="h d f")
        if shifted:
            self.weights(b="r h d")
        if em:
            self.register_buffer("pi", torch.empty(self.size.h, self.size.r))
        elif not hard:
            self.weights(logpi="h r")

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(heads(x, self.Wq), self.keys(x))  # b h r n m
        if self.em and self.training:
            self.update(scores.detach())
        joined = scores.amax(2) if self.hard else scores.logsumexp(2)
        v = (x @ self.Wv).unsqueeze(1) if self.shared else heads(x, self.Wv)
        return out(attention_map(joined, self.causal) @ v, self.Wo)

    def keys(self, x: Tensor) -> Tensor:
        """[b h r m d], or [b 1 r m d] of all heads."""
        if self.shared:
            return heads(x, self.Wk).unsqueeze(1)
        if self.shifted:
            return heads(x, self.Wk).unsqueeze(2) + self.b.transpose(0, 1).unsqueeze(2)
        return heads(x, self.Wk.flatten(1, 2)).unflatten(1, (self.size.r, self.size.h)).transpose(1, 2)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Log prior less distance; the query's own norm cancels in the softmax."""
        scale = self.size.d**-0.5
        scores = (scale * q).unsqueeze(2) @ k.transpose(-2, -1)
        if not self.dots:
            scores = scores - 0.5 * scale * k.square().sum(-1).unsqueeze(-2)
        if self.hard:
            return scores
        return scores + (self.pi.log() if self.em else self.logpi)[..., None, None]

    @torch.no_grad()
    def update(self, scores: Tensor) -> None:
        """The prior becomes the mean responsibility over the keys each query sees, then queries and batch."""
        responsibility = scores.softmax(2)
        keep = visible(*scores.shape[-2:], self.causal, None, scores.device)
        if keep is None:
            self.pi.copy_(responsibility.mean((0, 3, 4)))
            return
        seen = responsibility.masked_fill(~keep, 0).sum(-1) / keep.sum(-1)  # b h r n
        self.pi.copy_(seen.mean((0, 3)))


LAYERS = {
    "mgk": (MixtureOfKeys, {}),
    "smgk": (MixtureOfKeys, {"shifted": True}),
    "mgk_hard": (MixtureOfKeys, {"hard": True}),
    "smgk_hard": (MixtureOfKeys, {"hard": True, "shifted": True}),
    "softmax_mgk": (MixtureOfKeys, {"dots": True}),
    "softmax_smgk": (MixtureOfKeys, {"dots": True, "shifted": True}),
    "mgk_em": (MixtureOfKeys, {"em": True}),
    "smgk_em": (MixtureOfKeys, {"em": True, "shifted": True}),
    "mgk_mqa": (MixtureOfKeys, {"shared": True}),
}
