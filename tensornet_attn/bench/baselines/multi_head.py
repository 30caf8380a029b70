"""Softmax attention of queries, keys and values that are projections: one call of attention each."""

from __future__ import annotations

from torch import Tensor

from tensornet_attn.bench.baselines.layer import Layer, chosen, heads, out


class MultiHead(Layer):
    """softmax(Q K^T / sqrt(d)) V Wo (Vaswani et al. 2017, eq. 1); from another sequence where `memory` is given.

    `band`: only (k - 1) // 2 diagonals on either side of the main one.
    """

    def declare(self, band: bool = False) -> None:
        self.weights(Wq="f h d", Wk="f h d", Wv="f h d", Wo="h d f")
        side = (self.size.k - 1) // 2 if band else 0
        self.reach = (side, side) if band else None

    def forward(self, x: Tensor, memory: Tensor | None = None) -> Tensor:
        memory = x if memory is None else memory
        q, k, v = heads(x, self.Wq), heads(memory, self.Wk), heads(memory, self.Wv)  # b h n d
        return out(self.attend(q, k, v, self.size.d**-0.5, self.causal, self.reach), self.Wo)


class MultiQuery(Layer):
    """All query heads share one key head and one value head (Shazeer 2019)."""

    def declare(self) -> None:
        self.weights(Wq="f h d", Wk="f d", Wv="f d", Wo="h d f")

    def forward(self, x: Tensor) -> Tensor:
        k, v = (x @ self.Wk).unsqueeze(1), (x @ self.Wv).unsqueeze(1)  # b 1 m d
        return out(self.attend(heads(x, self.Wq), k, v, self.size.d**-0.5, self.causal), self.Wo)


class GroupedQuery(Layer):
    """The j query heads of a group share a key head and a value head (Ainslie et al. 2023)."""

    def declare(self) -> None:
        self.weights(Wq="f g j d", Wk="f g d", Wv="f g d", Wo="g j d f")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(x, self.Wq.flatten(1, 2)), heads(x, self.Wk), heads(x, self.Wv)  # b (g j) n d, b g m d
        q, k = self.placed(q), self.placed(k)
        return out(self.attend(q, k, v, self.size.d**-0.5, self.causal), self.Wo.flatten(0, 1))

    def placed(self, x: Tensor) -> Tensor:
        """Where positions enter; here nowhere."""
        return x


class Latent(Layer):
    """Keys and values made from one latent per position (DeepSeek-V2, eq. 9 to 11)."""

    def declare(self) -> None:
        self.weights(Wq="f h d", Wc="f c", Wuk="c h d", Wuv="c h d", Wo="h d f")

    def forward(self, x: Tensor) -> Tensor:
        c = x @ self.Wc
        o = self.attend(heads(x, self.Wq), heads(c, self.Wuk), heads(c, self.Wuv), self.size.d**-0.5, self.causal)
        return out(o, self.Wo)


class Merged(Layer):
    """Multi-head attention whose weights have the legs h d as one (Tuformer, Proposition 1).

    Whoever knows that the core is kron(eye(h), ones(d, d)) writes multi-head attention, and so does this.
    """

    def declare(self) -> None:
        self.weights(Wq="f s", Wk="f s", Wv="f r", Wo="r f")

    def forward(self, x: Tensor) -> Tensor:
        shape = (self.size.h, self.size.d)
        q, k, v = (heads(x, W.unflatten(1, shape)) for W in (self.Wq, self.Wk, self.Wv))
        return out(self.attend(q, k, v, self.size.d**-0.5, self.causal), self.Wo.unflatten(0, shape))


class HeadsOnly(Layer):
    """Heads of one component each (Tuformer, table 2: C = I)."""

    def declare(self) -> None:
        self.weights(Wq="f h", Wk="f h", Wv="f h", Wo="h f")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (heads(x, W.unsqueeze(-1)) for W in (self.Wq, self.Wk, self.Wv))  # b h n 1
        return out(self.attend(q, k, v, self.size.h**-0.5, self.causal), self.Wo.unsqueeze(1))


class HeadGated(Layer):
    """Each query picks k heads by a gate (Few Heads Are Enough, eq. 4 to 6)."""

    def declare(self) -> None:
        self.weights(Wq="f h d", Wk="f h d", Wv="f h d", Sg="f h", Wo="h d f")

    def forward(self, x: Tensor) -> Tensor:
        gate = chosen((x @ self.Sg).sigmoid(), self.size.k)  # b n h
        q, k, v = heads(x, self.Wq), heads(x, self.Wk), heads(x, self.Wv)
        o = self.attend(q, k, v, self.size.d**-0.5, self.causal)
        return out(gate.transpose(1, 2).unsqueeze(-1) * o, self.Wo)


class MixtureOfHeads(Layer):
    """Each query picks k of e heads that share keys and values (Zhang et al. 2022), all heads computed."""

    def declare(self, gate: str = "softmax") -> None:
        self.weights(Sg="f e", Wq="e f d", Wk="f d", Wv="f d", Wo="e d f")
        self.gate = gate

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ self.Sg
        gate = chosen(scores.softmax(-1) if self.gate == "softmax" else scores.sigmoid(), self.size.k)  # b n e
        q, k, v = heads(x, self.Wq.transpose(0, 1)), (x @ self.Wk).unsqueeze(1), (x @ self.Wv).unsqueeze(1)
        o = self.attend(q, k, v, self.size.d**-0.5, self.causal)  # b e n d
        return out(gate.transpose(1, 2).unsqueeze(-1) * o, self.Wo)


class Gaussian(Layer):
    """Scores by the distance of query and key; the query's own norm cancels in the softmax (MGK with one component)."""

    def declare(self) -> None:
        self.weights(Wq="f h d", Wk="f h d", Wv="f h d", Wo="h d f")

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = heads(x, self.Wq), heads(x, self.Wk), heads(x, self.Wv)
        scale = self.size.d**-0.5
        norms = -0.5 * scale * k.square().sum(-1).unsqueeze(-2)  # b h 1 m
        return out(self.attend(q, k, v, scale, self.causal, bias=norms), self.Wo)


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
}
