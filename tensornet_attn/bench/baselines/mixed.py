"""Softmax attention that mixes heads or keys: talking heads, differential attention, FiSHformer, Transformer-MGK."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from tensornet_attn.bench.baselines.layer import BaselineLayer, attention_map, eager, heads, out, visible

BEFORE = "mixes scores before its softmax"
MIXTURES = {  # weights of `Fish` by its `mixture`
    "free": "P[g h]",
    "simplex": "logits[g h]",
    "one": "P[g]",
    "one simplex": "logits[g]",
    "relu": "P[g k] W2[h k] b2[h]",
    "release": "W1[k g] b1[k] W2[h k] b2[h]",
}


class TalkingHeads(BaselineLayer):
    """Heads mixed before and after the softmax (Shazeer et al. 2020)."""

    mixed = BEFORE
    legs = "Wq[f g d] Wk[f g d] Wv[f e d] Pl[g h] Pw[h e] Wo[e d f]"

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x)
        scores = (self.size.d**-0.5 * q) @ k.transpose(-2, -1)  # b g n m
        maps = attention_map(torch.einsum("bgnm,gh->bhnm", scores, self.Pl), self.causal)
        return out(torch.einsum("bhnm,he->benm", maps, self.Pw) @ v, self.Wo)


class Differential(BaselineLayer):
    """The difference of two maps, with normalised heads (Ye et al. 2025, eq. 1 to 3)."""

    legs = "Wq1[f h d] Wq2[f h d] Wk1[f h d] Wk2[f h d] Wv[f h e] Wo[h e f] lq1[d] lk1[d] lq2[d] lk2[d]"

    def forward(self, x: Tensor) -> Tensor:
        weight = (self.lq1 @ self.lk1).exp() - (self.lq2 @ self.lk2).exp() + self.size.lambda_init
        o = self.difference(x, weight)  # b h n e
        o = o * (o.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return (1 - self.size.lambda_init) * out(o, self.Wo)

    def difference(self, x: Tensor, weight: Tensor) -> Tensor:
        scale, v = self.size.d**-0.5, heads(x, self.Wv)
        (q1, k1), (q2, k2) = ((heads(x, q), heads(x, k)) for q, k in ((self.Wq1, self.Wk1), (self.Wq2, self.Wk2)))
        if self.attend is not eager:  # the calls return no maps
            first, second = (self.attend(q, k, v, scale, self.causal) for q, k in ((q1, k1), (q2, k2)))
            return first - weight * second
        maps = [attention_map((scale * q) @ k.transpose(-2, -1), self.causal) for q, k in ((q1, k1), (q2, k2))]
        return (maps[0] - weight * maps[1]) @ v


class Fish(BaselineLayer):
    """Local heads as mixtures of global scores (FiSHformer, eq. 8 to 10 and the generalised form).

    `mixture`: free weights, "simplex" (a softmax of logits), "one" for all heads, "one simplex", "relu" (generalised,
    relu before the sum over global heads) or "release" (the released code, relu after the sum). `noise`: added in
    training.
    """

    mixed = BEFORE

    def declare(self, mixture: str = "free", noise: bool = False) -> None:
        self.mixture, self.noise = mixture, noise
        self.weights(f"{MIXTURES[mixture]} Wq[f g d] Wk[f g d] Wv[f h d] Wo[h d f]")
        if noise:
            self.weights("sigma[g]")

    def forward(self, x: Tensor, noise: dict[str, Tensor] | None = None) -> Tensor:
        q, k = heads(x, self.Wq), heads(x, self.Wk)
        scores = (self.size.d**-0.5 * q) @ k.transpose(-2, -1)  # b g n m
        maps, v = attention_map(self.local(scores, self.drawn(scores, noise)), self.causal), heads(x, self.Wv)
        if maps.shape[1] == 1:  # one map for all heads: concatenate their values, because matmul would copy the map
            return (maps.squeeze(1) @ v.transpose(1, 2).flatten(2)) @ self.Wo.flatten(0, 1)
        return out(maps @ v, self.Wo)

    def drawn(self, scores: Tensor, noise: dict[str, Tensor] | None) -> Tensor | None:
        """Noise per local head, [b h n m], or None."""
        if noise is not None:
            return noise["eps"]
        if not (self.noise and self.training):
            return None
        count = self.size.k if self.mixture == "relu" else self.size.h
        return torch.randn(scores.shape[0], count, *scores.shape[2:], dtype=scores.dtype, device=scores.device)

    def local(self, scores: Tensor, eps: Tensor | None) -> Tensor:
        """Scores of the local heads, [b h n m], or [b 1 n m] if they are shared."""
        scale = self.size.d**-0.5  # the scale of the scores also applies to the noise
        if self.mixture == "release":
            hidden = torch.einsum("kg,bgnm->bknm", self.W1, scores) + self.b1[:, None, None]
            return torch.einsum("hk,bknm->bhnm", self.W2, hidden.relu()) + self.b2[:, None, None]
        if self.mixture == "relu":
            shares = self.admixed(scores, None if eps is None else scale * eps)
            return torch.einsum("hk,bknm->bhnm", self.W2, shares) + scale * self.b2[:, None, None]
        P = self.logits.softmax(0) if "simplex" in self.mixture else self.P
        P = P.unsqueeze(-1) if P.ndim == 1 else P  # g h, or g 1 for all heads
        mixed = torch.einsum("gh,bgnm->bhnm", P, scores)
        return mixed if eps is None else mixed + scale * (self.sigma @ P)[:, None, None] * eps

    def admixed(self, scores: Tensor, eps: Tensor | None) -> Tensor:
        """The sum over global heads of the relu of their parts: [b k n m]."""
        shares = scores.unsqueeze(2)  # b g 1 n m
        if eps is not None:
            shares = shares + self.sigma[:, None, None, None] * eps.unsqueeze(1)
        return F.relu(self.P[..., None, None] * shares).sum(1)


class MixtureOfKeys(BaselineLayer):
    """logsumexp (or `hard`: maximum) over r keys of log prior - distance, then softmax (ICML 2022, eq. 10 to 12).

    `shifted`: copies of one key. `dots`: dot products instead of distances. `em`: in training, the prior is updated
    with the mean responsibility (eq. 11). `shared`: all heads share keys and values (A.11).
    """

    mixed = "has r keys per position"

    def declare(
        self, shifted: bool = False, hard: bool = False, dots: bool = False, em: bool = False, shared: bool = False
    ) -> None:
        self.shifted, self.hard, self.dots, self.em, self.shared = shifted, hard, dots, em, shared
        keys, values = ("Wk[f r d]", "Wv[f d]") if shared else ("Wk[f r h d]", "Wv[f h d]")
        self.weights(f"Wq[f h d] {'Wk[f h d] b[r h d]' if shifted else keys} {values} Wo[h d f]")
        if em:
            self.register_buffer("pi", torch.empty(self.size.h, self.size.r))
        elif not hard:
            self.weights("logpi[h r]")

    def forward(self, x: Tensor) -> Tensor:
        scores = self.scores(heads(x, self.Wq), self.keys(x))  # b h r n m
        if self.em and self.training:
            self.update(scores.detach())
        joined = scores.amax(2) if self.hard else scores.logsumexp(2)
        v = (x @ self.Wv).unsqueeze(1) if self.shared else heads(x, self.Wv)
        return out(attention_map(joined, self.causal) @ v, self.Wo)

    def keys(self, x: Tensor) -> Tensor:
        """The keys [b h r m d], or [b 1 r m d] if heads share them."""
        if self.shared:
            return heads(x, self.Wk).unsqueeze(1)
        if self.shifted:
            return heads(x, self.Wk).unsqueeze(2) + self.b.transpose(0, 1).unsqueeze(2)
        return heads(x, self.Wk.flatten(1, 2)).unflatten(1, (self.size.r, self.size.h)).transpose(1, 2)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """Log prior minus distance. The query norm cancels in the softmax."""
        scale = self.size.d**-0.5
        scores = (scale * q).unsqueeze(2) @ k.transpose(-2, -1)
        if not self.dots:
            scores = scores - 0.5 * scale * k.square().sum(-1).unsqueeze(-2)
        if self.hard:
            return scores
        return scores + (self.pi.log() if self.em else self.logpi)[..., None, None]

    @torch.no_grad()
    def update(self, scores: Tensor) -> None:
        """Sets the prior to the mean responsibility over visible keys of each query, then over queries and batch."""
        responsibility = scores.softmax(2)
        n, m = scores.shape[-2:]
        keep = visible(n, m, self.causal, None, scores.device)
        if keep is None:
            self.pi.copy_(responsibility.mean((0, 3, 4)))
            return
        seen = responsibility.masked_fill(~keep, 0).sum(-1) / keep.sum(-1)  # b h r n
        self.pi.copy_(seen.mean((0, 3)))


LAYERS = {
    "talking_heads": (TalkingHeads, {}),
    "differential": (Differential, {}),
    "hard_fish": (Fish, {}),
    "fish": (Fish, {"noise": True}),
    "hard_fish_simplex": (Fish, {"mixture": "simplex"}),
    "fish_simplex": (Fish, {"mixture": "simplex", "noise": True}),
    "mish": (Fish, {"mixture": "one", "noise": True}),
    "mish_simplex": (Fish, {"mixture": "one simplex", "noise": True}),
    "hard_gfish": (Fish, {"mixture": "relu"}),
    "gfish": (Fish, {"mixture": "relu", "noise": True}),
    "gfish_release": (Fish, {"mixture": "release"}),
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
