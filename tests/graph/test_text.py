"""The text form of graphs."""

from __future__ import annotations

from dataclasses import replace

import tensornet_attn as ta
from tensornet_attn.graph.model import FusedAttention, Step, Use
from tensornet_attn.graph.text import to_text
from tensornet_attn.ir.arithmetic import Number, parse

MHSA = """\
graph mhsa
leg n query
leg m key
leg f = 512
leg h head = 8
leg d 64 = f / h
input x[n f]
input memory[m f] default x
weight Wq[f h d] init xavier
weight Wk[f h d] init xavier
weight Wv[f h d] init xavier
weight Wo[h d f] init xavier
Q[n h d] = x[n f] Wq[f h d]
K[m h d] = memory[m f] Wk[f h d]
V[m h d] = memory[m f] Wv[f h d]
A.of[h n m] = Q[n h d] K[m h d]
A[h n m] = softmax(A.of[h n m]; over m; scale d ** -0.5; dropout 0)
y[n f] = A[h n m] V[m h d] Wo[h d f]
output y
"""


def test_the_text_of_mhsa():
    assert to_text(ta.build(ta.load("mhsa"))) == MHSA


EVERYTHING = """\
tensornet: 1
name: everything
about: A part of each kind.
causal: true
settings: {w: 32, rate: 0.001, tiny: 0.00001}
legs: {n: query 2 ** 6, m: key 2048, p: relative w, f: 16, h: head 2, d: f // h, e: 8}
inputs: {x: n f, memory: {legs: m f, default: x}}
weights:
  W: {legs: f h d, init: normal(f ** -0.5)}
  U: {legs: h e, init: uniform(-tiny), frozen: true}
  s: {legs: "", init: full(1 / 3)}
  bias: {legs: h p, init: zeros}
constants: {C: {legs: d e, value: "kron(eye(2), ones(d / 2, e / 2))"}}
noise:
  eps: {legs: h n m, std: 2 * rate, always: true}
diagram:
  Q: -0.5 * x[n f] W[f h d] -> n h d
  K: memory[m f] W[f h d] - (d ** -0.5) * memory[m f] W[f h d] + 1 -> m h d
  far: {rel_shift: p, to: m, of: "bias[h p]"}
  turned: {rope: n, along: d, of: Q}
  kept: {topk: d, k: 4, of: turned, by: Q}
  cut: {map: "clamp(-1, 2.5)", of: kept}
  S: s[] cut[n h d] K[m h d] + far[h n m] + (1 - rate) * eps[h n m] - 2 -> h n m
  A: {softmax: m, of: S, scale: f ** -0.5, dropout: 0.1, mask: [band(w), "window(2 * w, -1)"]}
  Z: K[m h d] C[d e] -> m h e
  rates: {map: sigmoid, of: "Z[m h e] U[h e] -> m h"}
  F: {delta_rule: m, query: Q, key: K, value: K, rate: rates, normalize: both}
  y: {dropout: 0.1, of: "A[h n m] K[m h d] W[f h d] + F[n h d] W[f h d] -> n f"}
output: y
"""
EVERYTHING_AS_TEXT = """\
graph everything causal
leg n query 64 = 2 ** 6
leg m key = 2048
leg p relative 32 = w
leg f = 16
leg h head = 2
leg d 8 = f // h
leg e = 8
setting w = 32
setting rate = 0.001
setting tiny = 1e-05
input x[n f]
input memory[m f] default x
weight W[f h d] init normal(f ** -0.5)
weight U[h e] frozen init uniform(-tiny)
weight s[] init full(1 / 3)
weight bias[h p] init zeros
constant C[d e] value kron(eye(2), ones(d / 2, e / 2))
noise eps[h n m] always std 2 * rate
Q[n h d] = -0.5 * x[n f] W[f h d]
K[m h d] = memory[m f] W[f h d] - (d ** -0.5) * memory[m f] W[f h d] + 1
far[h n m] = rel_shift(bias[h p]; over p; to m)
turned[n h d] = rope(Q[n h d]; over n; along d; base 10000; fraction 1; blocks 1)
kept[n h d] = topk(turned[n h d]; by Q[n h d]; over d; k 4)
cut[n h d] = map(kept[n h d]; map clamp(-1, 2.5))
S[h n m] = s[] cut[n h d] K[m h d] + far[h n m] + (1 - rate) * eps[h n m] - 2
A[h n m] = softmax(S[h n m]; over m; scale f ** -0.5; dropout 0.1; mask band(w); mask window(2 * w, -1))
Z[m h e] = K[m h d] C[d e]
rates.of[m h] = Z[m h e] U[h e]
rates[m h] = map(rates.of[m h]; map sigmoid)
F[n h d] = delta_rule(query Q[n h d]; key K[m h d]; value K[m h d]; rate rates[m h]; over m; eps 0; normalize both)
y.of[n f] = A[h n m] K[m h d] W[f h d] + F[n h d] W[f h d]
y[n f] = dropout(y.of[n f]; dropout 0.1)
output y
"""


def test_the_text_of_every_part() -> None:
    assert to_text(ta.build(ta.load(EVERYTHING))) == EVERYTHING_AS_TEXT


def test_fused_attention():
    use = {"query": Use("Q", ("n", "h", "d")), "key": Use("K", ("m", "h", "d")), "value": Use("V", ("m", "h", "d"))}
    op = FusedAttention(
        "m", **use, scores=("h", "n", "m"), scale=parse("d ** -0.5"), dropout=Number(0), masks=(), steps=("A.of", "A")
    )
    mhsa = ta.build(ta.load("mhsa"))
    graph = replace(mhsa, steps=(*mhsa.steps[:3], Step("A.o", op, ("n", "h", "d")), mhsa.steps[-1]))
    line = (
        "A.o[n h d] = attention(query Q[n h d]; key K[m h d]; value V[m h d]; over m; scores h n m; "
        "scale d ** -0.5; dropout 0; steps A.of A)"
    )
    assert line in to_text(graph).splitlines()
