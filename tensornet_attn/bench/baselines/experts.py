"""Layers with experts, without special kernels: all experts are computed, and gates of unselected experts are zero."""

from __future__ import annotations

import torch
from torch import Tensor

from tensornet_attn.bench.baselines.layer import BaselineLayer, chosen, heads, out
from tensornet_attn.bench.baselines.multi_head import Relative, rotated


def expert_heads(x: Tensor, W: Tensor, gate: Tensor) -> Tensor:
    """The gated sum of all experts W [h e f d] of x [b n f], with gates [b n h e]: [b h n d]."""
    h, e, f, d = W.shape
    outputs = (x @ W.permute(2, 0, 1, 3).reshape(f, h * e * d)).unflatten(-1, (h, e, d))
    return torch.einsum("bnhe,bnhed->bhnd", gate, outputs)


def expert_out(o: Tensor, W: Tensor, gate: Tensor) -> Tensor:
    """The gated sum of all output experts W [h e d f] of o [b h n d], with gates [b n h e]: [b n f]."""
    return (gate.unsqueeze(-1) * o.transpose(1, 2).unsqueeze(3)).flatten(2) @ W.flatten(0, 2)


def gates(x: Tensor, S: Tensor, k: int) -> Tensor:
    """The k largest sigmoids of x S for each head, [b n h e]."""
    return chosen((x @ S.flatten(1)).sigmoid().unflatten(-1, S.shape[1:]), k)


class ExpertAttention(BaselineLayer):
    """Expert projection attention (eq. 10 and table 1). `experts`: letters of the projections with experts.

    Keys and values share the gates of the source side, queries and output those of the destination side.
    """

    def declare(self, experts: str, rope: bool = False) -> None:
        self.experts, self.rope = experts, rope
        for letter in "vkq":
            self.weights(f"W{letter}[{'h e f d' if letter in experts else 'f h d'}]")
        self.weights("Wo[h e d f]" if "o" in experts else "Wo[h d f]")
        if set("vk") & set(experts):
            self.weights("Ss[f h e]")
        if set("qo") & set(experts):
            self.weights("Sd[f h e]")

    def forward(self, x: Tensor) -> Tensor:
        source = gates(x, self.Ss, self.size.k) if set("vk") & set(self.experts) else None
        destination = gates(x, self.Sd, self.size.k) if set("qo") & set(self.experts) else None
        v, k = self.projected(x, "v", source), self.projected(x, "k", source)
        q = self.projected(x, "q", destination)
        if self.rope:
            q, k = rotated(q, self.size.fraction), rotated(k, self.size.fraction)
        o = self.attend(q, k, v, self.size.d**-0.5, self.causal)
        return (
            out(o, self.Wo) if destination is None or "o" not in self.experts else expert_out(o, self.Wo, destination)
        )

    def projected(self, x: Tensor, letter: str, gate: Tensor | None) -> Tensor:
        W = getattr(self, f"W{letter}")
        return heads(x, W) if gate is None or letter not in self.experts else expert_heads(x, W, gate)


class ExpertRelative(Relative):
    """Expert projection attention with experts for values and output, and relative positions as in Transformer-XL."""

    legs = "Wq[f h d] Wk[f h d] Ss[f h e] Wv[h e f d] Wr[f h d] u[h d] v[h d] Sd[f h e] Wo[h e d f]"

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        values = expert_heads(memory, self.Wv, gates(memory, self.Ss, self.size.k))
        return expert_out(self.mixed_values(x, memory, values), self.Wo, gates(x, self.Sd, self.size.k))


class FeedForward(BaselineLayer):
    """relu(x W1 + b1) W2 + b2 (Vaswani et al. 2017, eq. 2)."""

    mixed = "has no attention"
    linear = True
    legs = "W1[f l] b1[l] W2[l f] b2[f]"

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.W1 + self.b1) @ self.W2 + self.b2


class ExpertFeedForward(BaselineLayer):
    """A feed-forward layer of gated experts (sigma-MoE, Csordas et al. 2023)."""

    mixed = "has no attention"
    linear = True
    legs = "Ws[f e] W1[e f l] W2[e l f]"

    def declare(self, dropped: bool = False) -> None:
        self.drop = self.size.drop if dropped else 0.0

    def forward(self, x: Tensor) -> Tensor:
        gate = (x @ self.Ws).sigmoid()  # b n e
        gate = chosen(gate, self.size.k, torch.dropout(gate, self.drop, self.training))
        hidden = torch.relu(torch.einsum("bnf,efl->bnel", x, self.W1))
        return (gate.unsqueeze(-1) * hidden).flatten(2) @ self.W2.flatten(0, 1)


CHOICES = ("v", "k", "q", "o", "vk", "vq", "kq", "ko", "qo", "vkq", "vko", "vqo", "kqo", "vkqo")
LAYERS = {
    "epa": (ExpertAttention, {"experts": "vo"}),
    **{f"epa_{experts}": (ExpertAttention, {"experts": experts}) for experts in CHOICES},
    "epa_rope": (ExpertAttention, {"experts": "vo", "rope": True}),
    "epa_xl": (ExpertRelative, {}),
    "mlp": (FeedForward, {}),
    "sigma_moe": (ExpertFeedForward, {}),
    "sigma_moe_regularised": (ExpertFeedForward, {"dropped": True}),
}
