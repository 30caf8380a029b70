"""Transformer-MGK and MLK: several keys per position."""

from __future__ import annotations

import torch
from torch import Tensor

from .core import Score, Sight, Weights, elu1, merge, project_all, rows_of


def mgk(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """a_ij = sum_r pi_r exp(-|q_i - k_jr|^2 / (2 sigma^2)), over its sum over j; sigma^2 = sqrt(d) (MGK, eq. 10)."""
    return _attend(w, memory, _joint(w, x, memory, torch.exp(w["logpi"])), sight)


smgk = mgk  # eq. 10 with k_jr = k_j + b_r


def gaussian(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """eq. 10 with one key: a_ij = exp(-|q_i - k_j|^2 / (2 sigma^2)), divided by its sum over j."""
    keys = w["Wk"].unsqueeze(1)
    return _attend(w, memory, _joint(w | {"Wk": keys}, x, memory, torch.ones(len(w["Wo"]), 1)), sight)


def mgk_hard(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """a_ij = max_r exp(-|q_i - k_jr|^2 / (2 sigma^2)), over its sum over j: the nearest key alone counts (eq. 12)."""
    Q, K = project_all(x, w["Wq"]), _keys(w, memory)

    def amount(a: int, i: int, j: int) -> Tensor:
        squares = [((Q[i][a] - key[a]) ** 2).sum() for key in K[j]]
        return torch.exp(-min(squares) / (2 * len(Q[i][a]) ** 0.5))

    return _attend(w, memory, amount, sight)


smgk_hard = mgk_hard  # eq. 12 with k_jr = k_j + b_r


def softmax_mgk(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """a_ij = sum_r pi_r exp(q_i . k_jr / sigma^2), over its sum over j: eq. 10 with dot products for distances."""
    Q, K, pi = project_all(x, w["Wq"]), _keys(w, memory), torch.exp(w["logpi"])

    def amount(a: int, i: int, j: int) -> Tensor:
        return sum(pi[a, r] * torch.exp(Q[i][a] @ key[a] / len(key[a]) ** 0.5) for r, key in enumerate(K[j]))

    return _attend(w, memory, amount, sight)


softmax_smgk = softmax_mgk  # the same with k_jr = k_j + b_r


def mgk_em(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """eq. 10 with the prior held as state."""
    return _attend(w, memory, _joint(w, x, memory, w["pi"]), sight)


smgk_em = mgk_em  # with k_jr = k_j + b_r


def mgk_mqa(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """mgk whose heads share the keys [r, d] and the value [d] of a position (A.11)."""
    h = w["Wq"].shape[1]
    keys = torch.stack([w["Wk"]] * h, 2)
    return mgk(w | {"Wk": keys, "Wv": torch.stack([w["Wv"]] * h, 1)}, x, memory, sight)


def mgk_em_prior(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """gamma_ijr = pi_r N(q_i | k_jr) / sum_r' pi_r' N(q_i | k_jr') (eq. 11); its mean over visible j, then over i."""
    joint = _joint(w, x, memory, w["pi"])

    def mean(a: int, i: int) -> Tensor:
        gammas = [joint(a, i, j) / joint(a, i, j).sum() for j in sight.keys(i)]
        return sum(gammas) / max(len(gammas), 1)

    return torch.stack([sum(mean(a, i) for i in range(sight.n)) / sight.n for a in range(len(w["pi"]))])


def mlk(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """a_ij = phi(q_i) . sum_r pi_r phi(k_jr), divided by its sum over j; pi a softmax over r (MLK, eq. 13)."""
    Q, K = project_all(x, w["Wq"]), _keys(w, memory)
    pi = torch.exp(w["logits"]) / torch.exp(w["logits"]).sum(1, keepdim=True)

    def amount(a: int, i: int, j: int) -> Tensor:
        return sum(pi[a, r] * (elu1(Q[i][a]) @ elu1(key[a])) for r, key in enumerate(K[j]))

    return _attend(w, memory, amount, sight)


smlk = mlk  # eq. 13 with k_jr = k_j + b_r


def _keys(w: Weights, memory: Tensor) -> Tensor:
    """K[j] is [r, h, d]: projected for each r, or k_j + b_r."""
    K = project_all(memory, w["Wk"])
    return K.unsqueeze(1) + w["b"] if "b" in w else K


def _attend(w: Weights, memory: Tensor, amount: Score, sight: Sight) -> Tensor:
    A = rows_of(lambda a, i, j: amount(a, i, j).sum(), len(w["Wo"]), sight)
    return merge(A, project_all(memory, w["Wv"]), w["Wo"])


def _joint(w: Weights, x: Tensor, memory: Tensor, pi: Tensor) -> Score:
    """(head, query, key) -> [r]: pi_r exp(-|q - k_r|^2 / (2 sqrt(d)))."""
    Q, K = project_all(x, w["Wq"]), _keys(w, memory)

    def joint(a: int, i: int, j: int) -> Tensor:
        squares = torch.stack([((Q[i][a] - key[a]) ** 2).sum() for key in K[j]])
        return pi[a] * torch.exp(-squares / (2 * len(Q[i][a]) ** 0.5))

    return joint
