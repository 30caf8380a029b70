"""FiSHformer's linear attention (NeurIPS 2022, A.6), which mixes the states K^T V over heads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tensornet_attn.bench.baselines.kernels import causal_sums
from tensornet_attn.bench.baselines.layer import BaselineLayer, elu1, heads, out

CHUNK = 64  # positions per chunk; scores are computed within it, and there is one state per chunk
STATES = 16  # positions per batch of individual states
Noise = tuple[Tensor, Tensor]  # of the states [b k d e] and of the key sums [b k d]


class MixedStates(BaselineLayer):
    """States of g global heads, mixed into h local heads. Key sums are mixed with positive weights.

    `noise`: added to both in training.
    """

    mixed = "has no softmax"
    linear = linear_causal = True

    def declare(self, noise: bool = False, mixtures: str = "h") -> None:
        self.noise, self.count = noise, getattr(self.size, mixtures)
        self.weights(f"P[g {mixtures}] Wq[f h d] Wk[f g d] Wv[f g e] Wo[h e f]")
        if noise:
            self.weights("sigma[g]")

    def forward(self, x: Tensor, noise: dict[str, Tensor] | None = None) -> Tensor:
        q, k, v = elu1(heads(x, self.Wq)), elu1(heads(x, self.Wk)), heads(x, self.Wv)
        eps = self.drawn(v, noise)
        if self.causal:
            return out(self.running(q, k, v, eps), self.Wo)
        states, sums = k.transpose(-2, -1) @ v, k.sum(-2)  # b g d e, b g d
        above, below = self.read(q.unsqueeze(2), states.unsqueeze(2), sums.unsqueeze(2), eps)
        return out((above / below).squeeze(2), self.Wo)

    def drawn(self, v: Tensor, noise: dict[str, Tensor] | None) -> Noise | None:
        if noise is not None:
            return noise["eps"], noise["epsz"]
        if not (self.noise and self.training):
            return None
        shape = (len(v), self.count, self.size.d)
        return v.new_empty(*shape, self.size.e).normal_(), v.new_empty(shape).normal_()

    def read(self, q: Tensor, states: Tensor, sums: Tensor, eps: Noise | None) -> tuple[Tensor, Tensor]:
        """Numerators and normalisers of q [b h t c d] with the mixed states [b g t d e] and sums [b g t d]."""
        return q @ self.local_states(states, eps), q @ self.local_sums(sums, eps).unsqueeze(-1)

    def local_states(self, states: Tensor, eps: Noise | None) -> Tensor:
        """[b h t d e]."""
        return self.positive(states, None if eps is None else eps[0])

    def local_sums(self, sums: Tensor, eps: Noise | None) -> Tensor:
        """[b h t d]."""
        return self.positive(sums, None if eps is None else eps[1])

    def positive(self, x: Tensor, eps: Tensor | None) -> Tensor:
        """Mixes x [b g t ...] with softplus(P), and adds noise [b k ...] times the mixed deviations."""
        P = F.softplus(self.P)
        mixed = torch.einsum("gk,bg...->bk...", P, x)
        if eps is None:
            return mixed
        return mixed + torch.einsum("k,bk...->bk...", self.sigma @ P, eps).unsqueeze(2)

    def running(self, q: Tensor, k: Tensor, v: Tensor, eps: Noise | None) -> Tensor:
        """Reads earlier chunks by their states, and the query's own chunk by scores: [b h n e]."""
        n, (q, k, v) = q.shape[2], (chunks(x) for x in (q, k, v))
        above, below = self.read(q, before(k.transpose(-2, -1) @ v), before(k.sum(-2)), eps)
        scores = causal_sums(torch.einsum("bhtnd,bgtmd->bghtnm", q, k))
        scores = F.softplus(self.P)[..., None, None, None] * scores
        above = above + torch.einsum("bghtnm,bgtme->bhtne", scores, v)
        below = below + scores.sum((1, -1)).unsqueeze(-1)
        return above.flatten(2, 3)[:, :, :n] / below.flatten(2, 3)[:, :, :n]


class AdmixedStates(MixedStates):
    """A relu of each global head's part in each of k mixtures, then a linear map; positive weights for the sums.

    Causal attention needs a state per position. They are computed in small batches, and recomputed in the backward.
    """

    def declare(self, noise: bool = False) -> None:  # type: ignore[override]
        super().declare(noise, mixtures="k")
        self.weights("W2[h k] b2[h]")

    def local_states(self, states: Tensor, eps: Noise | None) -> Tensor:
        shares = torch.zeros((), dtype=states.dtype, device=states.device)
        for g, state in enumerate(states.unbind(1)):  # one global head at a time: no tensor has both g and k
            state = state.unsqueeze(1)  # b 1 t d e
            if eps is not None:
                state = state + self.sigma[g] * eps[0].unsqueeze(2)
            shares = shares + F.relu(self.P[g, :, None, None, None] * state)
        return torch.einsum("hk,bktde->bhtde", self.W2, shares) + self.b2[:, None, None, None]

    def local_sums(self, sums: Tensor, eps: Noise | None) -> Tensor:
        mixed = super().local_sums(sums, eps)
        return torch.einsum("hk,bktd->bhtd", F.softplus(self.W2), mixed) + F.softplus(self.b2)[:, None, None]

    def running(self, q: Tensor, k: Tensor, v: Tensor, eps: Noise | None) -> Tensor:
        reads: list[Tensor] = []
        states, sums = v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), v.new_zeros(*k.shape[:2], k.shape[-1])
        for segment in zip(*(x.split(STATES, 2) for x in (q, k, v)), strict=True):
            read, states, sums = checkpoint(
                self.part, *segment, states, sums, eps, use_reentrant=False, preserve_rng_state=False
            )
            reads.append(read)
        return torch.cat(reads, 2)

    def part(
        self, q: Tensor, k: Tensor, v: Tensor, states: Tensor, sums: Tensor, eps: Noise | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Outputs of a few positions after the states [b g d e] and sums [b g d], and the updated states and sums."""
        position_states = states.unsqueeze(2) + (k.unsqueeze(-1) * v.unsqueeze(-2)).cumsum(2)  # b g t d e
        total = sums.unsqueeze(2) + k.cumsum(2)
        above, below = self.read(q.unsqueeze(3), position_states, total, eps)
        return (above / below).squeeze(3), position_states[:, :, -1], total[:, :, -1]


def chunks(x: Tensor) -> Tensor:
    """[b h n d], padded with zeros to a multiple of the chunk length c, as [b h t c d]."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % CHUNK)).unflatten(2, (-1, CHUNK))


def before(x: Tensor) -> Tensor:
    """The sum over all earlier chunks, for each chunk: [b g t ...]."""
    return torch.cat((torch.zeros_like(x[:, :, :1]), x.cumsum(2)[:, :, :-1]), 2)


LAYERS = {
    "hard_lfish": (MixedStates, {}),
    "lfish": (MixedStates, {"noise": True}),
    "hard_glfish": (AdmixedStates, {}),
    "glfish": (AdmixedStates, {"noise": True}),
}
