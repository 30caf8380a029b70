"""Transformer-MGK and MLK: several keys per position."""

from __future__ import annotations

import torch
from torch import Tensor

from .core import Score, Sight, Weights, elu1, merge, project_all, rows_of, zero


def mgk(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """a_ij = sum_r pi_r exp(-|q_i - k_jr|^2 / (2 sigma^2)), over its sum over j; sigma^2 = sqrt(d) (MGK, eq. 10)."""
    K = project_all(memory, w["Wk"])
    return _attend(w, x, memory, K, torch.exp(w["logpi"]), see)


def smgk(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """eq. 10 with k_jr = k_j + b_r."""
    return _attend(w, x, memory, _shifted(w, memory), torch.exp(w["logpi"]), see)


def gaussian(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """eq. 10 with one key: a_ij = exp(-|q_i - k_j|^2 / (2 sigma^2)), divided by its sum over j."""
    K = [k.unsqueeze(0) for k in project_all(memory, w["Wk"])]
    return _attend(w, x, memory, K, torch.ones(K[0].shape[1], 1, dtype=x.dtype), see)


def mgk_hard(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """a_ij = max_r exp(-|q_i - k_jr|^2 / (2 sigma^2)), over its sum over j: the nearest key alone counts (eq. 12)."""
    return _nearest(w, x, memory, project_all(memory, w["Wk"]), see)


def smgk_hard(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """eq. 12 with k_jr = k_j + b_r."""
    return _nearest(w, x, memory, _shifted(w, memory), see)


def softmax_mgk(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """a_ij = sum_r pi_r exp(q_i . k_jr / sigma^2), over its sum over j: eq. 10 with dot products for distances."""
    return _mixed_dots(w, x, memory, project_all(memory, w["Wk"]), see)


def softmax_smgk(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """The same with k_jr = k_j + b_r."""
    return _mixed_dots(w, x, memory, _shifted(w, memory), see)


def mgk_em(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """eq. 10 with the prior held as state."""
    return _attend(w, x, memory, project_all(memory, w["Wk"]), w["pi"], see)


def smgk_em(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """mgk_em with k_jr = k_j + b_r."""
    return _attend(w, x, memory, _shifted(w, memory), w["pi"], see)


def mgk_mqa(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """mgk whose heads share the keys [r, d] and the value [d] of a position (A.11)."""
    h = w["Wq"].shape[1]
    keys = torch.stack([w["Wk"]] * h, 2)
    return mgk(w | {"Wk": keys, "Wv": torch.stack([w["Wv"]] * h, 1)}, x, memory, **see)


def mgk_em_prior(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """gamma_ijr = pi_r N(q_i | k_jr) / sum_r' pi_r' N(q_i | k_jr') (eq. 11); its mean over visible j, then over i."""
    sight = Sight(len(x), len(memory), **see)
    K = _shifted(w, memory) if "b" in w else project_all(memory, w["Wk"])
    joint = _joint(project_all(x, w["Wq"]), K, w["pi"])
    h, r = w["pi"].shape
    prior = torch.zeros(h, r, dtype=x.dtype)
    for a in range(h):
        for i in range(sight.n):
            seen = [joint(a, i, j) for j in range(sight.m) if sight(i, j)]
            for gammas in (amounts / amounts.sum() for amounts in seen):
                prior[a] = prior[a] + gammas / len(seen) / sight.n
    return prior


def _shifted(w: Weights, memory: Tensor) -> list[Tensor]:
    """K[j] is [r, h, d]: k_j + b_r."""
    return [k + w["b"] for k in project_all(memory, w["Wk"])]


def _attend(w: Weights, x: Tensor, memory: Tensor, K: list[Tensor], pi: Tensor, see: dict[str, object]) -> Tensor:
    """K[j] is [r, h, d], pi [h, r]."""
    joint = _joint(project_all(x, w["Wq"]), K, pi)
    A = rows_of(lambda a, i, j: joint(a, i, j).sum(), len(pi), Sight(len(x), len(memory), **see))
    return merge(A, project_all(memory, w["Wv"]), w["Wo"])


def _nearest(w: Weights, x: Tensor, memory: Tensor, K: list[Tensor], see: dict[str, object]) -> Tensor:
    Q = project_all(x, w["Wq"])
    h, d = Q[0].shape

    def amount(a: int, i: int, j: int) -> Tensor:
        squares = [((Q[i][a] - key[a]) ** 2).sum() for key in K[j]]
        return torch.exp(-min(squares) / (2 * d**0.5))

    return merge(rows_of(amount, h, Sight(len(x), len(memory), **see)), project_all(memory, w["Wv"]), w["Wo"])


def _mixed_dots(w: Weights, x: Tensor, memory: Tensor, K: list[Tensor], see: dict[str, object]) -> Tensor:
    Q, pi = project_all(x, w["Wq"]), torch.exp(w["logpi"])
    h, d = Q[0].shape

    def amount(a: int, i: int, j: int) -> Tensor:
        dots = [pi[a, r] * torch.exp(Q[i][a] @ key[a] / d**0.5) for r, key in enumerate(K[j])]
        return sum(dots, zero())

    return merge(rows_of(amount, h, Sight(len(x), len(memory), **see)), project_all(memory, w["Wv"]), w["Wo"])


def _joint(Q: list[Tensor], K: list[Tensor], pi: Tensor) -> Score:
    """(head, query, key) -> [r]: pi_r exp(-|q - k_r|^2 / (2 sqrt(d)))."""
    d = Q[0].shape[1]

    def joint(a: int, i: int, j: int) -> Tensor:
        squares = [((Q[i][a] - K[j][r][a]) ** 2).sum() for r in range(pi.shape[1])]
        return torch.stack([pi[a, r] * torch.exp(-square / (2 * d**0.5)) for r, square in enumerate(squares)])

    return joint


def mlk(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """a_ij = phi(q_i) . sum_r pi_r phi(k_jr), divided by its sum over j; pi a softmax over r (MLK, eq. 13)."""
    return _mixed_kernel(w, x, memory, project_all(memory, w["Wk"]), see)


def smlk(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """eq. 13 with k_jr = k_j + b_r."""
    return _mixed_kernel(w, x, memory, _shifted(w, memory), see)


def _mixed_kernel(w: Weights, x: Tensor, memory: Tensor, K: list[Tensor], see: dict[str, object]) -> Tensor:
    Q, V = project_all(x, w["Wq"]), project_all(memory, w["Wv"])
    h, r = w["logits"].shape
    pi = torch.exp(w["logits"]) / torch.exp(w["logits"]).sum(1, keepdim=True)

    def amount(a: int, i: int, j: int) -> Tensor:
        return sum((pi[a, c] * (elu1(Q[i][a]) @ elu1(K[j][c][a])) for c in range(r)), zero())

    return merge(rows_of(amount, h, Sight(len(x), len(memory), **see)), V, w["Wo"])
