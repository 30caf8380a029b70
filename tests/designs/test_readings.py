"""The other readings in docs/reproduce/readings: outputs and all gradients are those of the printed equation.

Each equation is written with products of whole maps, [batch, heads, query, key]; `pair` is the weight of a pair.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, einsum
from torch.nn.functional import elu

import tensornet_attn as ta

from .case import FH, N
from .cases import BACKENDS, drawn, equal, normal

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "reproduce" / "readings"
SEEN = {False: torch.ones(N, N), True: torch.ones(N, N).tril()}  # by whether it is causal
Weights = dict[str, Tensor]
BAND = 3  # diagonals


def phi(x: Tensor) -> Tensor:
    return elu(x) + 1


def rows(pair: Tensor, see: Tensor) -> Tensor:
    seen = pair * see
    return seen / seen.sum(-1, keepdim=True)


def heads(w: Weights, x: Tensor, letters: str = "qkv") -> tuple[Tensor, ...]:
    """Queries, keys and values, [batch, position, head, width]."""
    return tuple(einsum("bnf,fhd->bnhd", x, w[f"W{letter}"]) for letter in letters)


def merged(A: Tensor, V: Tensor, w: Weights) -> Tensor:
    return einsum("bhnm,bmhd,hdf->bnf", A, V, w["Wo"])


def dots(Q: Tensor, K: Tensor) -> Tensor:
    return einsum("bnhd,bmhd->bhnm", Q, K)


def gfish_lm_release(w: Weights, x: Tensor, see: Tensor, noise: dict[str, Tensor]) -> Tensor:
    """HDPAttn: global scores + sigma^2 noise, Linear, ReLU, Linear, and then the scale."""
    Q, K, V = heads(w, x)
    G = dots(Q, K) + w["sigma"][:, None, None] ** 2 * noise["eps"]
    hidden = (einsum("kg,bgnm->bknm", w["W1"], G) + w["b1"][:, None, None]).relu()
    mixed = einsum("hk,bknm->bhnm", w["W2"], hidden) + w["b2"][:, None, None]
    return merged(rows((mixed / Q.shape[-1] ** 0.5).exp(), see), V, w)


def hard_mish(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    """Eq. 10 without noise: one map, the same for all heads."""
    Q, K, V = heads(w, x)
    mixed = einsum("g,bgnm->bnm", w["P"], dots(Q, K))[:, None].expand(-1, V.shape[2], -1, -1)
    return merged(rows((mixed / Q.shape[-1] ** 0.5).exp(), see), V, w)


def over_root_of_length(Q: Tensor, K: Tensor, see: Tensor) -> Tensor:
    """phi(q) . phi(k), each divided by the fourth root of the length."""
    return dots(phi(Q) / N**0.25, phi(K) / N**0.25) * see


def linear_lra_release(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    Q, K, V = heads(w, x)
    return merged(over_root_of_length(Q, K, see), V, w)


def mlk_lra_release(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    """K = pi_1 K_1 + pi_2 K_2 before the kernel, pi clamped to [0, 1]."""
    Q, V = heads(w, x, "qv")
    each = w["keys"] if "keys" in w else einsum("bnf,frhd->rbnhd", x, w["Wk"])
    K = sum(p.clamp(0, 1) * key for p, key in zip(w["prior"], each, strict=True))
    return merged(over_root_of_length(Q, torch.as_tensor(K), see), V, w)


def smlk_lra_release(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    keys = einsum("bnf,fhd->bnhd", x, w["Wk"]) + w["b"][:, None, None]
    return mlk_lra_release(w | {"keys": keys}, x, see)


def banded(see: Tensor, right: int) -> Tensor:
    return see.triu(-right).tril(right)


def softmax(Q: Tensor, K: Tensor, see: Tensor) -> Tensor:
    return rows((dots(Q, K) / Q.shape[-1] ** 0.5).exp(), see)


def fmm2_lra_release(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    """sparse_ratio D V + sparse_ratio2 (0.5 X + 0.5 X2), a band of 2 k - 1 diagonals."""
    Q, K, V = heads(w, x)
    far = 0.5 * over_root_of_length(Q, K, see) + 0.5 * over_root_of_length(-Q, -K, see)
    near = softmax(Q, K, banded(see, BAND - 1))
    return merged(w["w1"][:, None, None] * near + w["w2"][:, None, None] * far, V, w)


def fmm3_rows(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    """The rows of sigmoid(w1) D + sigmoid(w2) (L1 + L2 + L3), divided by their sums."""
    Q, K, V = heads(w, x)
    kernels = (phi, lambda z: phi(-z), lambda z: 1 + z.tanh())
    far = sum(rows(dots(kernel(Q), kernel(K)), see) for kernel in kernels)
    near = softmax(Q, K, banded(see, BAND // 2))
    blend1, blend2 = (w[name].sigmoid()[:, None, None] for name in ("w1", "w2"))
    return merged(rows(blend1 * near + blend2 * far, see), V, w)


def fmm1_channels(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    """sigmoid(W1) * (D V) + sigmoid(W2) * (L V), elementwise."""
    Q, K, V = heads(w, x)
    near, far = (
        einsum("bhnm,bmhd->bnhd", A, V)
        for A in (softmax(Q, K, banded(see, BAND // 2)), rows(dots(phi(Q), phi(K)), see))
    )
    return einsum("bnhd,hdf->bnf", w["w1"].sigmoid() * near + w["w2"].sigmoid() * far, w["Wo"])


def fmm_fast_weight1_both(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    """W += beta (z.k) (v - W k') k'^T with k' = k / (z.k), z the sum of the keys before, and z.k = 1 at the first."""
    Q, K, V = heads(w, x)
    q, k = (phi(z) / phi(z).sum(-1, keepdim=True) for z in (Q, K))
    rate = einsum("bnf,fh->bnh", x, w["Wb"]).sigmoid()
    fast, total, reads = 0 * einsum("bhd,bhe->bhde", k[:, 0], V[:, 0]), 0 * k[:, 0], []
    for t in range(N):
        scale = (total * k[:, t]).sum(-1, keepdim=True) if t else torch.ones_like(k[:, t, :, :1])
        key = k[:, t] / scale
        erased = einsum("bhde,bhd->bhe", fast, key)
        fast = fast + einsum("bhd,bhe->bhde", key, rate[:, t, :, None] * scale * (V[:, t] - erased))
        total = total + k[:, t]
        reads.append(einsum("bhde,bhd->bhe", fast, q[:, t]) / (total * q[:, t]).sum(-1, keepdim=True))
    near = einsum("bhnm,bmhd->bnhd", softmax(Q, K, see.triu(1 - BAND)), V)
    blend1, blend2 = (w[name].sigmoid()[:, None] for name in ("w1", "w2"))
    return einsum("bnhd,hdf->bnf", blend1 * near + blend2 * torch.stack(reads, 1), w["Wo"])


def mixture(Q: Tensor, K: Tensor, pi: Tensor, variance: float, see: Tensor) -> Tensor:
    """sum_r pi_jr exp(-|q - k_jr|^2 / 2 variance) over the keys, in rows; K [r, b, m, h, d], pi [r, h, m]."""
    squares = (Q[None, :, :, None] - K[:, :, None]).square().sum(-1)  # r b n m h
    pair = einsum("rhm,rbnmh->bhnm", pi, (-squares / (2 * variance)).exp())
    return rows(pair, see)


def mgk_sigma_printed(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    """sigma = sqrt(D), so that sigma^2 = D."""
    Q, V = heads(w, x, "qv")
    pi = w["logpi"].exp().mT[..., None].expand(-1, -1, N)
    return merged(mixture(Q, einsum("bnf,frhd->rbnhd", x, w["Wk"]), pi, Q.shape[-1], see), V, w)


def mgk_prior_by_key(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    """pi_jr, of sum 1 over r at each position j."""
    Q, V = heads(w, x, "qv")
    pi = w["logpi"][:N].softmax(-1).permute(2, 1, 0)
    return merged(mixture(Q, einsum("bnf,frhd->rbnhd", x, w["Wk"]), pi, Q.shape[-1] ** 0.5, see), V, w)


def smgk_mqa(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    """k_jr = k_j + b_r, the same for all heads, and so the values."""
    Q, V = einsum("bnf,fhd->bnhd", x, w["Wq"]), x @ w["Wv"]
    K = (x @ w["Wk"] + w["b"][:, None, None])[..., None, :].expand(-1, -1, -1, Q.shape[2], -1)
    pi = w["logpi"].exp().mT[..., None].expand(-1, -1, N)
    return merged(mixture(Q, K, pi, Q.shape[-1] ** 0.5, see), V[..., None, :].expand_as(Q), w)


def epa_scale_printed(w: Weights, x: Tensor, see: Tensor) -> Tensor:
    """Eq. 10 with the scale of eq. 1, and a gate on the output."""
    Q, K = heads(w, x, "qk")
    A = rows((dots(Q, K) / x.shape[-1] ** 0.5).exp(), see)
    source, destination = (chosen(einsum("bnf,fhe->bnhe", x, w[name]).sigmoid()) for name in ("Ss", "Sd"))
    V = einsum("bmhe,bmf,hefd->bmhd", source, x, w["Wv"])
    return einsum("bnhe,bhnm,bmhd,hedf->bnf", destination, A, V, w["Wo"])


def chosen(gates: Tensor) -> Tensor:
    """The two largest gates, zeros elsewhere."""
    return torch.where(gates >= gates.topk(2).values[..., -1:], gates, 0)


SIZES = {
    "epa_scale_printed": {"e": 4},
    "gfish_lm_release": {"g": 2},
    "hard_mish": {"g": 2},
    "mgk_prior_by_key": {"m": "key 7"},
}
FILES = sorted(FOLDER.glob("*.yaml"))


CASES = [(file, causal) for file in FILES for causal in (False, True) if causal or "fast" not in file.stem]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("file", "causal"), CASES, ids=lambda value: getattr(value, "stem", None))
def test_a_reading_is_its_equation(file: Path, causal: bool, backend: str) -> None:
    design = ta.load(str(file), legs=FH | SIZES.get(file.stem, {}))
    if "k" in design.settings and file.stem.startswith("fmm"):
        design = ta.load(design, settings={"k": BAND})
    module = drawn(ta.compile(design, backend=backend, causal=causal, dtype=torch.float64))
    equation: Callable[..., Tensor] = globals()[file.stem]
    generator = torch.Generator().manual_seed(1)
    x = normal(generator, 2, N, FH["f"])
    noise = {"noise": {"eps": normal(generator, 2, 2, N, N)}} if design.noise else {}
    equal(module, lambda w, xs: equation(w, *xs, SEEN[causal].double(), **noise), [x], **noise)


def test_the_noise_of_the_released_language_models_is_drawn_in_evaluation() -> None:
    module = ta.compile(str(FOLDER / "gfish_lm_release.yaml"), dtype=torch.float64).eval()
    x = torch.randn(1, N, 512, dtype=torch.float64)
    assert not torch.equal(module(x), module(x))
