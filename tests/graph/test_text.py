"""The text form: what it looks like, and that different graphs have different texts."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

import tensornet_attn as ta
from tensornet_attn.graph.graph import Contraction, Graph, Leg, Step, Tensor, Term
from tensornet_attn.graph.text import to_text
from tensornet_attn.ir.arithmetic import ONE, Binary, FunctionCall, Name, Negative, Number, parse
from tensornet_attn.rewrite.fused import fuse

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


def fused(**softmax) -> Graph:
    box = {"softmax": "m", "scale": "d ** -0.5", "of": "Q[n h d] K[m h d] -> h n m"} | softmax
    return fuse(ta.build(ta.load({"tensornet": 1, "name": "fused", "extends": "mhsa", "diagram": {"A": box}})), "A")


def test_the_text_of_a_kernel_is_that_of_its_body():
    body = "h n m: Q[n h d] K[m h d]; h n m: softmax(A.of[h n m]; over m; scale d ** -0.5; dropout 0)"
    assert f"A.o[h n d] = attention({body}; h n d: A[h n m] V[m h d])" in to_text(fused()).splitlines()


ATTENTIONS = [{}, {"mask": ["band(2)", "causal"]}, {"scale": 1}, {"dropout": 0.1}]


def test_different_attentions_have_different_texts():
    assert len({to_text(fused(**softmax)) for softmax in ATTENTIONS}) == len(ATTENTIONS)


LEGS = [
    Leg("a", "size", 2),
    Leg("a", "size", 2, text=Number(2)),
    Leg("a", "size", 2, text=parse("1 + 1")),
    Leg("a", "head", 2),
    Leg("a", "head"),
    Leg("a", "query"),
    Leg("a", "key", maximum=7),
    Leg("a", "key", size=3, maximum=7, text=parse("3 + 4")),
    Leg("a", "query", size=3),
    Leg("a", "relative"),
    Leg("a", "relative", 65, reach=32, text=Number(32)),
    Leg("a", "relative", 9),
]


def test_different_tensors_have_different_texts():
    graph = ta.build(ta.load("mgk_em"))
    state = next(tensor for tensor in graph.tensors if tensor.update)
    weight, x = graph.of_role("weight")[0], graph.of_role("input")[0]
    others = [
        replace(state, update=graph.steps[0].name),
        replace(weight, frozen=True),
        replace(weight, stored=(weight.legs,)),
        replace(x, finite=True),
    ]
    texts = {to_text(replace(graph, tensors=tuple({**graph.tensor, one.name: one}.values()))) for one in others}
    assert len(texts | {to_text(graph)}) == 5


def test_different_legs_have_different_texts():
    step = Step("y", Contraction((Term(ONE, ()),)), ())
    graphs = [Graph("g", (leg,), (), (), (step,), "y") for leg in LEGS]
    assert len({to_text(graph) for graph in graphs}) == len(LEGS)


numbers = st.one_of(st.integers(0, 10**30), st.floats(0, 1e300, allow_nan=False)).map(Number)
trees = st.recursive(
    st.one_of(numbers, st.sampled_from([Name("a"), Name("init"), Name("size")])),
    lambda inner: st.one_of(
        inner.map(Negative),
        st.builds(Binary, st.sampled_from(["+", "-", "*", "/", "//", "**"]), inner, inner),
        st.builds(lambda one: FunctionCall("sqrt", (one,)), inner),
        st.builds(lambda one, other: FunctionCall("max", (one, other)), inner, inner),
    ),
    max_leaves=8,
)


@given(trees, trees)
def test_different_arithmetic_has_different_texts(one, other):
    """The texts are keys of caches of plans."""
    first, second = (
        Graph("g", (), (), (Tensor("e", "noise", (), std=std),), (Step("y", Contraction((Term(std, ()),)), ()),), "y")
        for std in (one, other)
    )
    assert to_text(first) != to_text(second) or first == second
