"""Layers of today's language models that attend by a softmax, straight from their papers and released code."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from .core import (
    Sight,
    Weights,
    attended,
    banded,
    biased,
    headwise,
    joined,
    layer_normed,
    merge,
    project_all,
    projections,
    read,
    rms,
    rotated,
    scaled,
    seen_maps,
    share,
    softmax_of,
    turned_all,
    ungrouped,
)
from .positions import transformer_xl


def llama(w: Weights, x: Tensor, memory: Tensor, sight: Sight, base: float = 10000, part: float = 1) -> Tensor:
    """softmax(R_i q_i . R_j k_j / sqrt(d)) v_j, several query heads to a key head (Llama 2, section 2.2)."""
    return headwise(*ungrouped(w, *turned_all(w, x, memory, sight, base, part)), sight)


def mistral(w: Weights, x: Tensor, memory: Tensor, sight: Sight, window: int = 4096) -> Tensor:
    """A position attends to `window` of them, its own and those before it (Mistral 7B, section 2)."""
    return llama(w, x, memory, banded(sight, window - 1, 0))


def qwen2(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """Biases on queries, keys and values; the base of the angles is 10 ** 6."""
    return llama(w, x, memory, sight, 10**6)


def nemotron(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """Half of each head turns (Nemotron-4, section 2)."""
    return llama(w, x, memory, sight, part=0.5)


def rms_scaled(v: Tensor, scale: Tensor) -> Tensor:
    return rms(v) * scale


def rms_scaled_by_one_more(v: Tensor, scale: Tensor) -> Tensor:
    """The scale is stored less 1."""
    return rms(v) * (1 + scale)


def qwen3(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """RMSNorm of each head's queries and keys, with a scale, before they turn (Qwen3, section 2)."""
    return headwise(*ungrouped(w, *turned_all(w, x, memory, sight, 10**6, 1, rms_scaled)), sight)


def qwen3_next(w: Weights, x: Tensor, memory: Tensor, sight: Sight, turned: float = 0.25) -> Tensor:
    """y = (sigmoid(x Wg) * SDPA(x)) Wo (Qiu et al., eq. 5: a gate on the output of the attention, entry by entry)."""
    gates = torch.sigmoid(project_all(x, w["Wg"])).flatten(1, 2)
    w, Q, K, V = ungrouped(w, *turned_all(w, x, memory, sight, 10**7, turned, rms_scaled_by_one_more))
    return joined(gates * read(softmax_of(Q, K, sight), V), w["Wo"])


def gemma2(w: Weights, x: Tensor, memory: Tensor, sight: Sight, scalar: float = 1, cap: float = 50) -> Tensor:
    """cap tanh(s / cap) of scores that are scaled by query_pre_attn_scalar ** -0.5 (Gemma 2, section 2)."""

    def capped(q: Tensor, k: Tensor) -> Tensor:
        return cap * torch.tanh(q @ k / scalar**0.5 / cap)

    return headwise(*ungrouped(w, *turned_all(w, x, memory, sight)), sight, capped)


def gemma2_local(
    w: Weights, x: Tensor, memory: Tensor, sight: Sight, scalar: float = 1, cap: float = 50, window: int = 4096
) -> Tensor:
    """The same among the last `window` positions."""
    return gemma2(w, x, memory, banded(sight, window - 1, 0), scalar, cap)


def gemma3(w: Weights, x: Tensor, memory: Tensor, sight: Sight, scalar: float = 1, base: float = 10**6) -> Tensor:
    """Norms in place of caps (Gemma 3, section 2); their scales are stored less 1."""
    heads = ungrouped(w, *turned_all(w, x, memory, sight, base, 1, rms_scaled_by_one_more))
    return headwise(*heads, sight, lambda q, k: q @ k / scalar**0.5)


def gemma3_local(w: Weights, x: Tensor, memory: Tensor, sight: Sight, scalar: float = 1, window: int = 1024) -> Tensor:
    """Among the last `window` positions, with the base 10000."""
    return gemma3(w, x, memory, banded(sight, window - 1, 0), scalar, 10000)


def cohere(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """LayerNorm of each head's queries and keys, each head with a scale of its own."""
    heads = turned_all(w, x, memory, sight, 10000, 1, lambda v, scale: layer_normed(v) * scale, True)
    return headwise(*ungrouped(w, *heads), sight)


def olmo2(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """RMSNorm over all heads' queries at once, and over all keys (OLMo 2, section 3.2)."""

    def normed(v: Tensor, scale: Tensor) -> Tensor:
        return v / torch.sqrt((v * v).mean() + 1e-6) * scale

    return headwise(*ungrouped(w, *turned_all(w, x, memory, sight, 500000, 1, normed)), sight)


def gpt_oss(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """A_ij = exp(s_ij) / (exp(sink) + sum over j of exp(s_ij)), a sink a head (gpt-oss, section 2.2)."""
    w, Q, K, V = ungrouped(w, *turned_all(w, x, memory, sight, 10**6))
    amounts = seen_maps(lambda a, i, j: torch.exp(scaled(Q[i][a], K[j][a])), len(Q[0]), sight)
    A = share(amounts, torch.exp(w["sink"]).flatten()[:, None, None])
    return merge(A, V, w["Wo"]) + w["bo"]


def gpt2(w: Weights, x: Tensor, memory: Tensor, sight: Sight, part: float = 0, slope: float = 0) -> Tensor:
    """softmax(q_i . k_j / sqrt(d)) v_j with biases on all four projections."""
    Q, K, V = turned_all(w, x, memory, sight, part=part)
    h, d = Q[0].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return Q[i][a] @ K[j][a] / d**0.5 - slope * 2 ** (-8 * (a + 1) / h) * (sight.position(i) - j)

    return attended(score, w, V, sight) + w["bo"]


def gpt_neox(w: Weights, x: Tensor, memory: Tensor, sight: Sight, turned: float = 0.25) -> Tensor:
    """The first quarter of each head turns (GPT-NeoX-20B, section 2.1.1)."""
    return gpt2(w, x, memory, sight, turned)


def phi(w: Weights, x: Tensor, memory: Tensor, sight: Sight, turned: float = 0.5) -> Tensor:
    """Half of each head turns."""
    return gpt2(w, x, memory, sight, turned)


def bloom(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """Scores lose a head's slope for each position of distance, 2 ** (-8 a / h) in head a."""
    return gpt2(w, x, memory, sight, slope=1)


def mpt(w: Weights, x: Tensor, memory: Tensor, sight: Sight, clip: float = 6) -> Tensor:
    """Queries, keys and values clipped to [-clip, clip], and linear biases."""
    Q, K, V = (torch.clamp(rows, -clip, clip) for rows in projections(w, x, memory))
    h, d = Q[0].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return Q[i][a] @ K[j][a] / d**0.5 - 2 ** (-8 * (a + 1) / h) * (sight.position(i) - j)

    return attended(score, w, V, sight)


def moonshine(w: Weights, x: Tensor, memory: Tensor, sight: Sight, turned: float = 0.9) -> Tensor:
    """Nine tenths of each head turn."""
    return headwise(w, *turned_all(w, x, memory, sight, part=turned, beside=True), sight)


def deberta_v2(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """A_ij = q_i . k_j + q_i . k^r_{i-j} + k_j . q^r_{i-j}, over sqrt(3 d) (He et al., eq. 4).

    The paper's fourth line has the distance j - i beside k_j, and counts it from the key: its table's entry i - j.
    """
    furthest = len(w["R"]) // 2
    Q, K, V = projections(w, x, x)
    keys, queries = biased(w, "p", w["R"]), biased(w, "r", w["R"])
    d = Q[0].shape[1]

    def score(a: int, i: int, j: int) -> Tensor:
        place = max(-furthest, min(furthest, i - j)) + furthest
        parts = Q[i][a] @ K[j][a] + Q[i][a] @ keys[place][a] + K[j][a] @ queries[place][a]
        return parts / (3 * d) ** 0.5

    return attended(score, w, V, sight) + w["bo"]


def t5(w: Weights, x: Tensor, memory: Tensor, sight: Sight, furthest: int = 128) -> Tensor:
    """softmax(q_i . k_j + b) v_j; b is that of the bucket of j - i (Raffel et al., section 2.1).

    Half of the buckets are for keys behind the query. Of each half, half hold one distance, the others ever more.
    """
    half = len(w["B"]) // 2
    Q, K, V = projections(w, x, memory)
    alone = half // 2

    def bucket(distance: int) -> int:
        away = abs(distance)
        if away >= alone:
            step = int(math.log(away / alone) / math.log(furthest / alone) * (half - alone))
            away = min(alone + step, half - 1)
        return away + (half if distance < 0 else 0)

    def score(a: int, i: int, j: int) -> Tensor:
        return Q[i][a] @ K[j][a] + w["B"][bucket(sight.position(i) - j), a]

    return attended(score, w, V, sight)


xlnet = transformer_xl  # the scores of Transformer-XL (Yang et al., section 2.4)


def diffllama(w: Weights, x: Tensor, sight: Sight, lambda_init: float = 0.8) -> Tensor:
    """(A1 - lambda A2) V of each pair of heads, normalised, times 1 - lambda_init; both maps know positions."""
    weight = torch.exp(w["lq1"] @ w["lk1"]) - torch.exp(w["lq2"] @ w["lk2"]) + lambda_init
    pairs = [ungrouped(w, *turned_all(w | {"Wq": w[f"Wq{side}"], "Wk": w[f"Wk{side}"]}, x, x, sight)) for side in "12"]
    first, second = (softmax_of(Q, K, sight) for _, Q, K, _ in pairs)
    w, *_, V = pairs[0]
    return joined((1 - lambda_init) * rms(read(first - weight * second, V), 1e-5), w["Wo"])


def deepseek_v3(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """DeepSeek-V3, eq. 1 to 11: q and k are [q^C; q^R] and [k^C; k^R]; k^R, one for all heads, comes from the input."""
    low = rms(project_all(x, w["Wa"])) * w["a_norm"]
    latent = rms(project_all(x, w["Wc"])) * w["c_norm"]

    def turned(rows: Tensor) -> Tensor:
        return torch.stack([rotated(row, i, beside=True) for i, row in enumerate(rows)])

    Q = torch.cat((project_all(low, w["Wq"]), turned(project_all(low, w["Wqr"]))), -1)
    K = project_all(latent, w["Wk"])
    shared = turned(project_all(x, w["Wkr"])).unsqueeze(1).expand(-1, K.shape[1], -1)
    return headwise(w, Q, torch.cat((K, shared), -1), project_all(latent, w["Wv"]), sight)


def perceiver(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """Attention from LN(x) to LN(memory), each with scale and shift (Perceiver IO, appendix E.1)."""
    X = layer_normed(x) * w["x_scale"] + w["x_shift"]
    M = layer_normed(memory) * w["memory_scale"] + w["memory_shift"]
    return gpt2(w, X, M, sight)


def l2_attention(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """softmax(-|q_i - k_j|^2 / sqrt(d)) v_j (Kim et al., eq. 6)."""
    heads = projections(w, x, memory)
    return headwise(w, *heads, sight, lambda q, k: -((q - k) * (q - k)).sum() / len(q) ** 0.5)


def qk_l2norm(w: Weights, x: Tensor, memory: Tensor, sight: Sight) -> Tensor:
    """softmax(g cos(q_i, k_j)) v_j (Henry et al., eq. 6)."""

    def cosine(q: Tensor, k: Tensor) -> Tensor:
        return w["temperature"] * (q @ k) / torch.sqrt(q @ q) / torch.sqrt(k @ k)

    return headwise(w, *projections(w, x, memory), sight, cosine)


def tpa(w: Weights, x: Tensor, sight: Sight) -> Tensor:
    """Q_i = (1 / R_Q) A_i^T R_i B_i, heads by components, likewise K and V (Zhang et al., eq. 3.1 to 3.4)."""

    def products(letter: str, turn: bool) -> Tensor:
        rows = []
        for i, (A, B) in enumerate(zip(*(project_all(x, w[f"W{letter}{side}"]) for side in "ab"), strict=True)):
            factors = [rotated(b, i) if turn else b for b in B]
            rows.append(sum(map(torch.outer, A, factors)) / len(A))
        return torch.stack(rows)

    return headwise(w, products("q", True), products("k", True), products("v", False), sight)
