"""Layers of today's language models that attend by a softmax, straight from their papers and released code."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .core import Sight, Weights, banded, merge, project, project_all, softmax_rows
from .positions import transformer_xl

Heads = list[Tensor]  # of each position
Pairing = Callable[[Tensor, Tensor], Tensor]


def llama(w: Weights, x: Tensor, memory: Tensor, base: float = 10000, part: float = 1, **see: object) -> Tensor:
    """softmax(R_i q_i . R_j k_j / sqrt(d)) v_j, several query heads to a key head (Llama 2, section 2.2)."""
    return grouped(w, *turned_all(w, x, memory, base, part, see), Sight(len(x), len(memory), **see))


def mistral(w: Weights, x: Tensor, memory: Tensor, window: int = 4096, **see: object) -> Tensor:
    """A position attends to `window` of them, its own and those before it (Mistral 7B, section 2)."""
    near = banded(Sight(len(x), len(memory), **see), window - 1, 0)
    return grouped(w, *turned_all(w, x, memory, 10000, 1, see), near)


def qwen2(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """Biases on queries, keys and values; the base of the angles is 10 ** 6."""
    return grouped(w, *turned_all(w, x, memory, 10**6, 1, see), Sight(len(x), len(memory), **see))


def nemotron(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """Half of each head turns (Nemotron-4, section 2)."""
    return llama(w, x, memory, part=0.5, **see)


def qwen3(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """RMSNorm of each head's queries and keys, with a scale, before they turn (Qwen3, section 2)."""
    normed = (lambda q: rms(q) * w["q_norm"], lambda k: rms(k) * w["k_norm"])
    return grouped(w, *turned_all(w, x, memory, 10**6, 1, see, normed), Sight(len(x), len(memory), **see))


def qwen3_next(w: Weights, x: Tensor, memory: Tensor, turned: float = 0.25, **see: object) -> Tensor:
    """y = (sigmoid(x Wg) * SDPA(x)) Wo (Qiu et al., eq. 5: a gate on the output of the attention, entry by entry)."""
    normed = (lambda q: rms(q) * (1 + w["q_norm"]), lambda k: rms(k) * (1 + w["k_norm"]))
    Q, K, V = turned_all(w, x, memory, 10**7, turned, see, normed)
    gates = [torch.sigmoid(gate) for gate in project_all(x, w["Wg"])]
    return grouped(w, Q, K, V, Sight(len(x), len(memory), **see), after=lambda i, g, j, o: gates[i][g, j] * o)


def gemma2(w: Weights, x: Tensor, memory: Tensor, scalar: float = 1, cap: float = 50, **see: object) -> Tensor:
    """cap tanh(s / cap) of scores that are scaled by query_pre_attn_scalar ** -0.5 (Gemma 2, section 2)."""
    sight = Sight(len(x), len(memory), **see)
    return grouped(w, *turned_all(w, x, memory, 10000, 1, see), sight, capped(scalar, cap))


def gemma2_local(
    w: Weights, x: Tensor, memory: Tensor, scalar: float = 1, cap: float = 50, window: int = 4096, **see: object
) -> Tensor:
    """The same among the last `window` positions."""
    near = banded(Sight(len(x), len(memory), **see), window - 1, 0)
    return grouped(w, *turned_all(w, x, memory, 10000, 1, see), near, capped(scalar, cap))


def capped(scalar: float, cap: float) -> Pairing:
    return lambda q, k: cap * torch.tanh(q @ k / scalar**0.5 / cap)


def gemma3(
    w: Weights, x: Tensor, memory: Tensor, scalar: float = 1, base: float = 10**6, window: int = 0, **see: object
) -> Tensor:
    """Norms in place of caps (Gemma 3, section 2); their scales are stored less 1."""
    sight = Sight(len(x), len(memory), **see)
    normed = (lambda q: rms(q) * (1 + w["q_norm"]), lambda k: rms(k) * (1 + w["k_norm"]))
    Q, K, V = turned_all(w, x, memory, base, 1, see, normed)
    return grouped(w, Q, K, V, banded(sight, window - 1, 0) if window else sight, lambda q, k: q @ k / scalar**0.5)


def gemma3_local(w: Weights, x: Tensor, memory: Tensor, window: int = 1024, **given: object) -> Tensor:
    """Among the last `window` positions, with the base 10000."""
    return gemma3(w, x, memory, base=10000, window=window, **given)


def cohere(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """LayerNorm of each head's queries and keys, each head with a scale of its own."""
    normed = (lambda q: layer_normed(q) * w["q_norm"], lambda k: layer_normed(k) * w["k_norm"])
    return grouped(w, *turned_all(w, x, memory, 10000, 1, see, normed, True), Sight(len(x), len(memory), **see))


def olmo2(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """RMSNorm over all heads' queries at once, and over all keys (OLMo 2, section 3.2)."""

    def normed(letter: str) -> Callable[[Tensor], Tensor]:
        return lambda v: v / torch.sqrt((v * v).mean() + 1e-6) * w[f"{letter}_norm"]

    Q, K, V = turned_all(w, x, memory, 500000, 1, see, (normed("q"), normed("k")))
    return grouped(w, Q, K, V, Sight(len(x), len(memory), **see))


def gpt_oss(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """A_ij = exp(s_ij) / (exp(sink) + sum over j of exp(s_ij)), a sink a head (gpt-oss, section 2.2)."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = turned_all(w, x, memory, 10**6, 1, see)
    (groups, members, d), out = Q[0].shape, []
    for i in range(len(x)):
        y = w["bo"]
        for g in range(groups):
            for j in range(members):
                seen = [t for t in range(len(memory)) if sight(i, t)]
                amounts = [torch.exp(Q[i][g, j] @ K[t][g] / d**0.5) for t in seen]
                total = sum(amounts, torch.exp(w["sink"][g, j]))
                o = sum((a / total * V[t][g] for a, t in zip(amounts, seen, strict=True)), 0 * V[0][g])
                y = y + project(o, w["Wo"][g, j])
        out.append(y)
    return torch.stack(out)


def gpt2(w: Weights, x: Tensor, memory: Tensor, part: float = 0, slope: float = 0, **see: object) -> Tensor:
    """softmax(q_i . k_j / sqrt(d)) v_j with biases on all four projections."""
    sight = Sight(len(x), len(memory), **see)
    Q, K, V = (biased(w, letter, rows) for letter, rows in (("q", x), ("k", memory), ("v", memory)))
    Q = [rotated(q, sight.position(i), 10000, part) for i, q in enumerate(Q)]
    K = [rotated(k, j, 10000, part) for j, k in enumerate(K)]
    h, d = Q[0].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return Q[i][a] @ K[j][a] / d**0.5 - slope * 2 ** (-8 * (a + 1) / h) * (sight.position(i) - j)

    y = merge(softmax_rows(score, h, sight), V, w["Wo"])
    return torch.stack([row + w["bo"] for row in y])


def gpt_neox(w: Weights, x: Tensor, memory: Tensor, turned: float = 0.25, **see: object) -> Tensor:
    """The first quarter of each head turns (GPT-NeoX-20B, section 2.1.1)."""
    return gpt2(w, x, memory, part=turned, **see)


def phi(w: Weights, x: Tensor, memory: Tensor, turned: float = 0.5, **see: object) -> Tensor:
    """Half of each head turns."""
    return gpt2(w, x, memory, part=turned, **see)


def bloom(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """Scores lose a head's slope for each position of distance, 2 ** (-8 a / h) in head a."""
    return gpt2(w, x, memory, slope=1, **see)


def mpt(w: Weights, x: Tensor, memory: Tensor, clip: float = 6, **see: object) -> Tensor:
    """Queries, keys and values clipped to [-clip, clip], and linear biases."""
    sight = Sight(len(x), len(memory), **see)
    rows = (("Wq", x), ("Wk", memory), ("Wv", memory))
    Q, K, V = ([torch.clamp(v, -clip, clip) for v in project_all(side, w[name])] for name, side in rows)
    h, d = Q[0].shape

    def score(a: int, i: int, j: int) -> Tensor:
        return Q[i][a] @ K[j][a] / d**0.5 - 2 ** (-8 * (a + 1) / h) * (sight.position(i) - j)

    return merge(softmax_rows(score, h, sight), V, w["Wo"])


def moonshine(w: Weights, x: Tensor, memory: Tensor, turned: float = 0.9, **see: object) -> Tensor:
    """Nine tenths of each head turn."""
    sight = Sight(len(x), len(memory), **see)
    Q = [rotated(q, sight.position(i), 10000, turned, True) for i, q in enumerate(project_all(x, w["Wq"]))]
    K = [rotated(k, j, 10000, turned, True) for j, k in enumerate(project_all(memory, w["Wk"]))]
    return headwise(w, Q, K, project_all(memory, w["Wv"]), sight)


def deberta_v2(w: Weights, x: Tensor, **see: object) -> Tensor:
    """A_ij = q_i . k_j + q_i . k^r_{i-j} + k_j . q^r_{i-j}, over sqrt(3 d) (He et al., eq. 4).

    The paper's fourth line has the distance j - i beside k_j, and counts it from the key: its table's entry i - j.
    """
    sight, furthest = Sight(len(x), len(x), **see), len(w["R"]) // 2
    Q, K, V = (biased(w, letter, x) for letter in "qkv")
    keys, queries = ([row + w[f"b{letter}"] for row in project_all(w["R"], w[f"W{letter}"])] for letter in ("p", "r"))
    h, d = Q[0].shape

    def score(a: int, i: int, j: int) -> Tensor:
        place = max(-furthest, min(furthest, i - j)) + furthest
        parts = Q[i][a] @ K[j][a] + Q[i][a] @ keys[place][a] + K[j][a] @ queries[place][a]
        return parts / (3 * d) ** 0.5

    y = merge(softmax_rows(score, h, sight), V, w["Wo"])
    return torch.stack([row + w["bo"] for row in y])


def t5(w: Weights, x: Tensor, memory: Tensor, furthest: int = 128, **see: object) -> Tensor:
    """softmax(q_i . k_j + b) v_j; b is that of the bucket of j - i (Raffel et al., section 2.1).

    Half of the buckets are for keys behind the query. Of each half, half hold one distance, the others ever more.
    """
    sight, half = Sight(len(x), len(memory), **see), len(w["B"]) // 2
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    alone = half // 2

    def bucket(distance: int) -> int:
        away = abs(distance)
        if away >= alone:
            step = int(math.log(away / alone) / math.log(furthest / alone) * (half - alone))
            away = min(alone + step, half - 1)
        return away + (half if distance < 0 else 0)

    def score(a: int, i: int, j: int) -> Tensor:
        return Q[i][a] @ K[j][a] + w["B"][bucket(sight.position(i) - j), a]

    return merge(softmax_rows(score, len(Q[0]), sight), V, w["Wo"])


def xlnet(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """The scores of Transformer-XL (Yang et al., section 2.4)."""
    return transformer_xl(w, x, memory, **see)


def diffllama(w: Weights, x: Tensor, lambda_init: float = 0.8, **see: object) -> Tensor:
    """(A1 - lambda A2) V of each pair of heads, normalised, times 1 - lambda_init; both maps know positions."""
    sight = Sight(len(x), len(x), **see)
    weight = torch.exp(w["lq1"] @ w["lk1"]) - torch.exp(w["lq2"] @ w["lk2"]) + lambda_init
    Q1, Q2 = ([rotated(q, i) for i, q in enumerate(project_all(x, w[f"Wq{side}"]))] for side in "12")
    K1, K2 = ([rotated(k, i) for i, k in enumerate(project_all(x, w[f"Wk{side}"]))] for side in "12")
    V, (groups, members, d) = project_all(x, w["Wv"]), Q1[0].shape
    pairs = [(g, j) for g in range(groups) for j in range(members)]
    first = softmax_rows(lambda a, i, t: Q1[i][pairs[a]] @ K1[t][pairs[a][0]] / d**0.5, len(pairs), sight)
    second = softmax_rows(lambda a, i, t: Q2[i][pairs[a]] @ K2[t][pairs[a][0]] / d**0.5, len(pairs), sight)
    out = []
    for i in range(sight.n):
        y = torch.zeros_like(x[i])
        for a, (g, j) in enumerate(pairs):
            row = [one - weight * two for one, two in zip(first[a][i], second[a][i], strict=True)]
            o = sum((row[t] * V[t][g] for t in range(sight.m)), torch.zeros_like(V[0][g]))
            y = y + (1 - lambda_init) * project(o / torch.sqrt((o * o).mean() + 1e-5), w["Wo"][g, j])
        out.append(y)
    return torch.stack(out)


def deepseek_v3(w: Weights, x: Tensor, **see: object) -> Tensor:
    """DeepSeek-V3, eq. 1 to 11: q and k are [q^C; q^R] and [k^C; k^R]; k^R, one for all heads, comes from the input."""
    sight = Sight(len(x), len(x), **see)
    low = [rms(row) * w["a_norm"] for row in project_all(x, w["Wa"])]
    latent = [rms(row) * w["c_norm"] for row in project_all(x, w["Wc"])]
    Q = [torch.cat((project(c, w["Wq"]), rotated(project(c, w["Wqr"]), i, beside=True)), -1) for i, c in enumerate(low)]
    turned = [rotated(project(row, w["Wkr"]), i, beside=True) for i, row in enumerate(x)]
    shared = [project(c, w["Wk"]) for c in latent]
    K = [torch.cat((k, torch.stack([turned[i]] * len(k))), -1) for i, k in enumerate(shared)]
    return headwise(w, Q, K, [project(c, w["Wv"]) for c in latent], sight)


def perceiver(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """Attention from LN(x) to LN(memory), each with scale and shift (Perceiver IO, appendix E.1)."""
    X = torch.stack([layer_normed(row) * w["x_scale"] + w["x_shift"] for row in x])
    M = torch.stack([layer_normed(row) * w["memory_scale"] + w["memory_shift"] for row in memory])
    return gpt2(w, X, M, **see)


def l2_attention(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """softmax(-|q_i - k_j|^2 / sqrt(d)) v_j (Kim et al., eq. 6)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])
    sight = Sight(len(x), len(memory), **see)
    return headwise(w, Q, K, V, sight, lambda q, k: -((q - k) * (q - k)).sum() / len(q) ** 0.5)


def qk_l2norm(w: Weights, x: Tensor, memory: Tensor, **see: object) -> Tensor:
    """softmax(g cos(q_i, k_j)) v_j (Henry et al., eq. 6)."""
    Q, K, V = project_all(x, w["Wq"]), project_all(memory, w["Wk"]), project_all(memory, w["Wv"])

    def cosine(q: Tensor, k: Tensor) -> Tensor:
        return w["temperature"] * (q @ k) / torch.sqrt(q @ q) / torch.sqrt(k @ k)

    return headwise(w, Q, K, V, Sight(len(x), len(memory), **see), cosine)


def tpa(w: Weights, x: Tensor, **see: object) -> Tensor:
    """Q_i = (1 / R_Q) A_i^T R_i B_i, heads by components, likewise K and V (Zhang et al., eq. 3.1 to 3.4)."""
    sight = Sight(len(x), len(x), **see)

    def products(letter: str, turn: bool) -> Heads:
        rows = []
        for i, (A, B) in enumerate(zip(*(project_all(x, w[f"W{letter}{side}"]) for side in "ab"), strict=True)):
            factors = [rotated(b, i) if turn else b for b in B]
            rows.append(sum(torch.outer(a, b) for a, b in zip(A, factors, strict=True)) / len(A))
        return rows

    return headwise(w, products("q", True), products("k", True), products("v", False), sight)


def biased(w: Weights, letter: str, rows: Tensor) -> Heads:
    """x W + b, where there is one."""
    found = project_all(rows, w[f"W{letter}"])
    return [row + w[f"b{letter}"] for row in found] if f"b{letter}" in w else found


def turned_all(
    w: Weights,
    x: Tensor,
    memory: Tensor,
    base: float,
    part: float,
    see: dict[str, object],
    normed: tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]] | None = None,
    beside: bool = False,
) -> tuple[Heads, Heads, Heads]:
    """Queries, keys and values; the first two normed, where they are, and turned by their positions."""
    sight = Sight(len(x), len(memory), **see)
    before = normed or (lambda q: q, lambda k: k)
    Q = [rotated(before[0](q), sight.position(i), base, part, beside) for i, q in enumerate(biased(w, "q", x))]
    K = [rotated(before[1](k), j, base, part, beside) for j, k in enumerate(biased(w, "k", memory))]
    return Q, K, biased(w, "v", memory)


def grouped(
    w: Weights,
    Q: Heads,
    K: Heads,
    V: Heads,
    sight: Sight,
    pairing: Pairing | None = None,
    after: Callable[[int, int, int, Tensor], Tensor] | None = None,
) -> Tensor:
    """Query head (g, j) looks at the keys of its group g. `after`: (query, g, j, output of the head) -> its output."""
    groups, members, d = Q[0].shape
    pairing = pairing or (lambda q, k: q @ k / d**0.5)
    pairs = [(g, j) for g in range(groups) for j in range(members)]
    A = softmax_rows(lambda a, i, t: pairing(Q[i][pairs[a]], K[t][pairs[a][0]]), len(pairs), sight)
    out = []
    for i in range(sight.n):
        y = torch.zeros(w["Wo"].shape[-1], dtype=torch.float64)
        for a, (g, j) in enumerate(pairs):
            o = sum((A[a][i][t] * V[t][g] for t in range(sight.m)), torch.zeros_like(V[0][g]))
            y = y + project(o if after is None else after(i, g, j, o), w["Wo"][g, j])
        out.append(y)
    return torch.stack(out)


def headwise(w: Weights, Q: Heads, K: Heads, V: Heads, sight: Sight, pairing: Pairing | None = None) -> Tensor:
    """softmax over j of the pairing of q_i and k_j, q_i . k_j / sqrt(d) where none is given, head by head."""
    h, d = Q[0].shape
    pairing = pairing or (lambda q, k: q @ k / d**0.5)
    return merge(softmax_rows(lambda a, i, j: pairing(Q[i][a], K[j][a]), h, sight), V, w["Wo"])


def rotated(vector: Tensor, position: int, base: float = 10000, part: float = 1, beside: bool = False) -> Tensor:
    """The first `part` of a vector's last axis, r entries: t and t + r / 2 turned by position * base ** (-2 t / r).

    `beside`: 2 t and 2 t + 1 in their place.
    """
    r = round(part * vector.shape[-1])
    out = list(vector.unbind(-1))
    for t in range(r // 2):
        angle = position * base ** (-2 * t / r)
        one, other = (2 * t, 2 * t + 1) if beside else (t, t + r // 2)
        a, b = vector[..., one], vector[..., other]
        out[one] = a * math.cos(angle) - b * math.sin(angle)
        out[other] = b * math.cos(angle) + a * math.sin(angle)
    return torch.stack(out, -1)


def rms(vector: Tensor, eps: float = 1e-6) -> Tensor:
    """Divided by the root of the mean square of its last axis."""
    return vector / torch.sqrt((vector * vector).mean(-1, keepdim=True) + eps)


def layer_normed(vector: Tensor, eps: float = 1e-5) -> Tensor:
    centred = vector - vector.mean(-1, keepdim=True)
    return rms(centred, eps)
