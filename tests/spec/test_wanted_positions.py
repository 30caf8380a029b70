"""What was wanted of positions, convolutions and mixtures of heads: a small file each, beside plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tensornet_attn as ta

F64, N = torch.float64, 9
Plain = Callable[..., Tensor]
HEAD = """
tensornet: 1
name: wanted
legs: {n: query, m: key, f: 8, h: head 2, d: 4%s}
inputs: {x: n f%s}
weights: {Wq: f h d, Wk: f h d, Wv: f h d, Wo: h d f%s}
"""
ATTENTION = """
  V: x[m f] Wv[f h d] -> m h d
  A: {softmax: m, scale: d ** -0.5, of: "%s -> h n m"}
  y: A[h n m] V[m h d] Wo[h d f] -> n f
output: y
"""
SCORES = "Q[n h d] K[m h d]"
FILES: dict[str, tuple[str, Plain, tuple[Tensor, ...]]] = {}


def wanted(name: str, text: str, *inputs: Tensor) -> Callable[[Plain], Plain]:
    """The row of a function of x, further inputs and the weights by name, which is what the file says."""

    def taken(plain: Plain) -> Plain:
        FILES[name] = text, plain, inputs
        return plain

    return taken


def heads(x: Tensor, weight: Tensor) -> Tensor:
    return torch.einsum("bnf,fhd->bhnd", x, weight)


def attention(q: Tensor, k: Tensor, v: Tensor, out: Tensor, bias: Tensor | None = None, causal: bool = False) -> Tensor:
    scores = q @ k.mT * 0.5 + (0 if bias is None else bias)
    scores = scores.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf) if causal else scores
    return torch.einsum("bhnd,hdf->bnf", scores.softmax(-1) @ v, out)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """Neighbours, [..., n, d], by angles [..., n, d / 2]."""
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(-2)


@wanted(
    "neighbours, at positions of the call",
    HEAD % ("", ", at: n", "")
    + """
diagram:
  Q: {rope: n, along: d, interleaved: true, positions: "at[n]", of: "x[n f] Wq[f h d] -> n h d"}
  K: {rope: m, along: d, interleaved: true, positions: "at[m]", of: "x[m f] Wk[f h d] -> m h d"}"""
    + ATTENTION % SCORES,
    torch.tensor([[0, 0, 1, 2, 3, 4, 5, 6, 7], [3, 4, 5, 6, 0, 1, 2, 3, 4]]),
)
def at_positions(x: Tensor, at: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor) -> Tensor:
    angles = at[:, None, :, None] * torch.tensor([1, 1e-2], dtype=F64)
    return attention(turned(heads(x, Wq), angles), turned(heads(x, Wk), angles), heads(x, Wv), Wo)


@wanted(
    "rows and columns",
    HEAD % (", a: 2", ", at: n a", "")
    + """
diagram:
  Q: {rope: n, along: d, interleaved: true, base: 100, positions: "at[n a]", of: "x[n f] Wq[f h d] -> n h d"}
  K: {rope: m, along: d, interleaved: true, base: 100, positions: "at[m a]", of: "x[m f] Wk[f h d] -> m h d"}"""
    + ATTENTION % SCORES,
    torch.cartesian_prod(torch.arange(3), torch.arange(3)),
)
def two_axes(x: Tensor, at: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor) -> Tensor:
    angles = at.to(F64)  # one pair for each axis, a radian a step
    return attention(turned(heads(x, Wq), angles), turned(heads(x, Wk), angles), heads(x, Wv), Wo)


@wanted(
    "stretched",
    HEAD % ("", "", "")
    + """
diagram:
  Q: {rope: n, along: d, interleaved: true, rope_type: yarn, factor: 8, original_max_position_embeddings: 64,
      attention_factor: 2, beta_fast: 8, of: "x[n f] Wq[f h d] -> n h d"}
  K: {rope: m, along: d, interleaved: true, rope_type: linear, factor: 8, of: "x[m f] Wk[f h d] -> m h d"}"""
    + ATTENTION % SCORES,
)
def stretched(x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor) -> Tensor:
    """Of YaRN's two pairs the first turns fast enough to stay, and the second is half stretched."""
    at = torch.arange(N, dtype=F64)[:, None]
    keys = at * torch.tensor([1, 1e-2], dtype=F64) / 8
    queries = at * torch.tensor([1, 1e-2 * (1 / 8)], dtype=F64)
    return attention(2 * turned(heads(x, Wq), queries), turned(heads(x, Wk), keys), heads(x, Wv), Wo)


@wanted(
    "short convolutions",
    HEAD % (", w: 3, e: d", "", ", Cq: w h d, Ck: w h d e")
    + """
causal: true
diagram:
  q: x[n f] Wq[f h d] -> n h d
  k: x[m f] Wk[f h d] -> m h d
  Q: {conv: n, width: w, of: "q[n h d] Cq[w h d] -> n w h d"}
  K: {conv: m, width: w, of: "k[m h d] Ck[w h d e] -> m w h e"}"""
    + ATTENTION % SCORES,
)
def convolved(x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, Cq: Tensor, Ck: Tensor) -> Tensor:
    q, k = (heads(x, weight).movedim(-2, -1).flatten(1, 2) for weight in (Wq, Wk))  # b (h d) n
    q = F.conv1d(F.pad(q, (2, 0)), Cq.movedim(0, -1).reshape(8, 1, 3), groups=8)
    k = F.conv1d(F.pad(k, (2, 0)), Ck.permute(1, 3, 2, 0).reshape(8, 4, 3), groups=2)
    q, k = (one.unflatten(1, (2, 4)).mT for one in (q, k))
    return attention(q, k, heads(x, Wv), Wo, causal=True)


@wanted(
    "multi-token attention",
    HEAD % (", a: 2, w: 3", "", ", C: a w h")
    + """
causal: true
diagram:
  Q: x[n f] Wq[f h d] -> n h d
  K: x[m f] Wk[f h d] -> m h d
  V: x[m f] Wv[f h d] -> m h d
  S: (d ** -0.5) * Q[n h d] K[m h d] -> h n m
  A: {softmax: m, of: {conv: [n, m], width: [a, w], of: "S[h n m] C[a w h] -> h n m a w"}}
  y: A[h n m] V[m h d] Wo[h d f] -> n f
output: y
""",
)
def multi_token(x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, C: Tensor) -> Tensor:
    scores = (heads(x, Wq) @ heads(x, Wk).mT * 0.5).tril()
    scores = F.conv2d(F.pad(scores, (1, 1, 1, 0)), C.permute(2, 0, 1)[:, None], groups=2)
    later = torch.ones(N, N, dtype=torch.bool).triu(1)
    return torch.einsum("bhnd,hdf->bnf", scores.masked_fill(later, -torch.inf).softmax(-1) @ heads(x, Wv), Wo)


@wanted(
    "buckets of distance",
    HEAD % (", p: relative 6, b: 8", "", ", B: b h")
    + """
constants: {own: {legs: p b, value: "bucket(8, 6, 1)"}}
diagram:
  Q: x[n f] Wq[f h d] -> n h d
  K: x[m f] Wk[f h d] -> m h d
  table: B[b h] own[p b] -> h p
  near: {rel_shift: p, to: m, of: table}"""
    + ATTENTION % f"{SCORES} + 2 * near[h n m]",
)
def buckets(x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, B: Tensor) -> Tensor:
    """Distances 0, 1, 2 to 3 and more, those of keys behind the query apart."""
    ahead = torch.arange(N) - torch.arange(N)[:, None]
    index = torch.tensor([0, 1, 2, 2, 3, 3, 3, 3, 3])[ahead.abs()] + 4 * (ahead > 0)
    return attention(heads(x, Wq), heads(x, Wk), heads(x, Wv), Wo, B[index].movedim(-1, 0))


@wanted(
    "positions of keys",
    HEAD % (", p: relative 3", "", ", R: p h d")
    + """
diagram:
  Q: x[n f] Wq[f h d] -> n h d
  K: x[m f] Wk[f h d] -> m h d
  near: {rel_shift: p, to: n, of: "K[m h d] R[p h d] -> h m p"}"""
    + ATTENTION % f"{SCORES} + 2 * near[h m n]",
)
def of_keys(x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, R: Tensor) -> Tensor:
    gap = (torch.arange(N)[:, None] - torch.arange(N)).clamp(-3, 3) + 3
    bias = torch.einsum("bhmd,nmhd->bhnm", heads(x, Wk), R[gap])
    return attention(heads(x, Wq), heads(x, Wk), heads(x, Wv), Wo, bias)


@wanted(
    "a mixture of heads",
    HEAD % (", s: head 3, e: d", "", ", Sq: f s e, Sk: f s e, Sv: f s e, So: s e f, G: f s")
    + """
diagram:
  Q: x[n f] Wq[f h d] -> n h d
  K: x[m f] Wk[f h d] -> m h d
  V: x[m f] Wv[f h d] -> m h d
  A: {softmax: m, scale: d ** -0.5, of: "Q[n h d] K[m h d] -> h n m"}
  q: x[n f] Sq[f s e] -> n s e
  k: x[m f] Sk[f s e] -> m s e
  v: x[m f] Sv[f s e] -> m s e
  B: {softmax: m, scale: d ** -0.5, of: "q[n s e] k[m s e] -> s n m"}
  gates: {topk: s, k: 1, of: {softmax: s, of: "x[n f] G[f s] -> n s"}}
  y: A[h n m] V[m h d] Wo[h d f] + gates[n s] B[s n m] v[m s e] So[s e f] -> n f
output: y
""",
)
def mixture(
    x: Tensor, Wq: Tensor, Wk: Tensor, Wv: Tensor, Wo: Tensor, Sq: Tensor, Sk: Tensor, Sv: Tensor, So: Tensor, G: Tensor
) -> Tensor:
    """Two heads that all queries have, and one of three others for each."""
    gates = (x @ G).softmax(-1)
    gates = gates * F.one_hot(gates.argmax(-1), 3)
    maps = (heads(x, Sq) @ heads(x, Sk).mT * 0.5).softmax(-1)
    routed = torch.einsum("bns,bsnm,bsme,sef->bnf", gates, maps, heads(x, Sv), So)
    return attention(heads(x, Wq), heads(x, Wk), heads(x, Wv), Wo) + routed


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_is_plain_pytorch(name: str, backend: str) -> None:
    """Outputs and all gradients."""
    text, plain, more = FILES[name]
    torch.manual_seed(0)
    layer = ta.compile(text, backend, dtype=F64)
    x = torch.randn(2, N, 8, dtype=F64, requires_grad=True)
    weights = dict(layer.named_parameters())
    found: list[Any] = []
    for y in (layer(x, *more), plain(x, *more, **weights)):
        like = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=F64)
        found.append([y, *torch.autograd.grad(y, [x, *weights.values()], like)])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_drawn_priced_and_explained(name: str, tmp_path: Path) -> None:
    text, _, _ = FILES[name]
    for suffix in ("svg", "txt", "mmd"):
        ta.draw(text, tmp_path / f"wanted.{suffix}")
        assert (tmp_path / f"wanted.{suffix}").stat().st_size > 0
    assert ta.cost(text, n=64).planned.macs > 0
    assert ta.compile(text).explain()
