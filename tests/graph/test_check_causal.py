"""Causal designs: every way in which a later key reaches a query is found, and no honest design is refused."""

from __future__ import annotations

import re

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.graph import build
from tests.shipped import graph_of

HEAD = """\
tensornet: 1
name: t
causal: true
legs: {n: query, m: key 256, p: relative, f: 8, h: head 2, d: f / h}
inputs: {x: n f}
weights: {W: f h d, T: m f, P: m h}
constants: {C: {legs: p f, value: sinusoid}, far: {legs: n m, value: distance}}
noise: {xi: {legs: h n m}}
state: {pi: {legs: h, update: u}}
diagram:
  Q: x[n f] W[f h d] -> n h d
  K: x[m f] W[f h d] -> m h d
  S: Q[n h d] K[m h d] -> h n m
  A: {softmax: m, of: S}
  O: A[h n m] K[m h d] -> n h d
"""
STATE = "  u: {mean: n, of: {mean: m, of: S}}\n"
SILENT = ("unused", "causal-leak", "transpose", "negative-normalize", "rotated-alone")


def leaks(steps: str, head: str = HEAD) -> list[str]:
    """The steps that leak; what a short test leaves unused is no matter here."""
    problems = ta.check(f"{head}{steps}{'' if '  u:' in steps else STATE}output: y\n")
    assert [str(problem) for problem in problems if problem.code not in SILENT] == []
    return [problem.field.removeprefix("diagram.") for problem in problems if problem.code == "causal-leak"]


LEAKS = {
    "a sum over keys": ("  z: {sum: m, of: K}\n  y: Q[n h d] + z[h d] -> n h d\n", ["z"]),
    "a mean over keys without the queries": ("  z: {mean: m, of: K}\n  y: Q[n h d] z[h d] -> n h d\n", ["z"]),
    "the largest key": ("  z: {max: m, of: K}\n  y: Q[n h d] + z[h d] -> n h d\n", ["z"]),
    "a product that sums over keys": ("  z: K[m h d] K[m h d] -> h d\n  y: Q[n h d] z[h d] -> n h d\n", ["z"]),
    "scores that sum over keys": ("  y: S[h n m] K[m h d] -> n h d\n", ["y"]),
    "linear attention, keys first": ("  z: K[m h d] P[m h] -> h d\n  y: Q[n h d] z[h d] -> n h d\n", ["z"]),
    "relu attention without keep": ("  B: {map: relu, of: S}\n  y: B[h n m] K[m h d] -> n h d\n", ["y"]),
    "softmax over queries": ("  B: {softmax: n, of: S}\n  y: B[h n m] K[m h d] -> n h d\n", ["B"]),
    "softmax over the queries of masked scores": ("  B: {softmax: n, of: A}\n  y: B[h n m] K[m h d] -> n h d\n", ["B"]),
    "softmax over the keys of a table": (
        "  B: {softmax: m, of: P}\n  z: B[m h] K[m h d] -> h d\n  y: z[h d] Q[n h d] -> n h d\n",
        ["z"],
    ),
    "softmax over keys without queries": ("  B: {softmax: m, of: K}\n  y: B[m h d] A[h n m] -> n h d\n", ["B"]),
    "normalize over keys without queries": (
        "  B: {normalize: m, of: {map: exp, of: K}}\n  y: B[m h d] A[h n m] -> n h d\n",
        ["B"],
    ),
    "the best keys for all queries": ("  B: {topk: m, k: 2, of: K}\n  y: B[m h d] A[h n m] -> n h d\n", ["B"]),
    "the best keys, others at minus infinity": (
        "  B: {map: exp, of: {topk: m, k: 2, fill: -inf, of: S}}\n  y: B[h n m] K[m h d] -> n h d\n",
        ["y"],
    ),
    "layernorm along keys": ("  B: {layernorm: m, of: S}\n  y: B[h n m] K[m h d] -> n h d\n", ["B"]),
    "layernorm along masked keys": ("  B: {layernorm: m, of: A}\n  y: B[h n m] K[m h d] -> n h d\n", ["B"]),
    "rmsnorm along masked keys": ("  B: {rmsnorm: m, of: A}\n  y: B[h n m] K[m h d] -> n h d\n", ["B"]),
    "l2norm along scores": ("  B: {l2norm: m, of: S}\n  y: B[h n m] K[m h d] -> n h d\n", ["B"]),
    "l1norm along queries": ("  B: {l1norm: n, of: Q}\n  y: B\n", ["B"]),
    "weights that mix positions": ("  z: x[m f] T[m f] -> f\n  y: x[n f] z[f] -> n f\n", ["z"]),
    "a sum over queries": ("  z: {sum: n, of: Q}\n  y: Q[n h d] z[h d] -> n h d\n", ["z"]),
    "a product that sums over queries": ("  z: Q[n h d] Q[n h d] -> h d\n  y: Q[n h d] z[h d] -> n h d\n", ["z"]),
    "what queries hand back to keys": ("  z: A[h n m] Q[n h d] -> m h d\n  y: A[h n m] z[m h d] -> n h d\n", ["z"]),
    "attention with its legs swapped": ("  y: 'A[h m n] K[m h d] -> n h d'\n", ["y"]),
    "masked scores moved by a map": ("  B: {map: exp, of: A}\n  y: B[h n m] K[m h d] -> n h d\n", ["y"]),
    "a number added to masked scores": ("  B: A[h n m] + 1 -> h n m\n  y: B[h n m] K[m h d] -> n h d\n", ["y"]),
    "scores added to masked scores": ("  B: A[h n m] + S[h n m] -> h n m\n  y: B[h n m] K[m h d] -> n h d\n", ["y"]),
    "softmax over heads of masked scores": ("  B: {softmax: h, of: A}\n  y: B[h n m] K[m h d] -> n h d\n", ["y"]),
    "distances times scores": ("  B: far[n m] S[h n m] -> h n m\n  y: B[h n m] K[m h d] -> n h d\n", ["y"]),
    "scores as the output": ("  y: S\n", ["y"]),
    "two leaks": ("  z: {sum: m, of: K}\n  w: {sum: n, of: Q}\n  y: z[h d] w[h d] Q[n h d] -> n h d\n", ["z", "w"]),
    "one leak is told once": ("  z: {sum: m, of: K}\n  w: z\n  y: w[h d] Q[n h d] -> n h d\n", ["z"]),
}


@pytest.mark.parametrize("title", LEAKS)
def test_a_leak_is_found(title: str) -> None:
    steps, found = LEAKS[title]
    assert leaks(steps) == found


HONEST = {
    "softmax attention": "  y: O\n",
    "a second layer of attention": "  K2: 'O[m h d]'\n  B: {softmax: m, of: 'O[n h d] K2[m h d] -> h n m'}\n"
    "  y: B[h n m] K2[m h d] -> n h d\n",
    "relu attention with keep": "  B: {keep: m, of: {map: relu, of: S}}\n  y: B[h n m] K[m h d] -> n h d\n",
    "linear attention": "  B: {normalize: m, of: {map: exp, of: S}}\n  y: B[h n m] K[m h d] -> n h d\n",
    "a window in place of a mask": "  B: {softmax: m, mask: ['window(4, 0)'], of: S}\n"
    "  y: B[h n m] K[m h d] -> n h d\n",
    "a band besides": "  B: {softmax: m, mask: [band(4)], of: S}\n  y: B[h n m] K[m h d] -> n h d\n",
    "reductions over masked keys": "  B: {max: m, of: S}\n  L: {logsumexp: m, of: S}\n  y: B[h n] + L[h n] -> n h\n",
    "a mean over visible keys": "  B: {mean: m, of: S}\n  y: B[h n] -> n h\n",
    "the best keys": "  B: {topk: m, k: 2, of: S}\n  y: B[h n m] K[m h d] -> n h d\n",
    "the best keys by their scores": "  B: {topk: m, k: 2, by: S, of: A}\n  y: B[h n m] K[m h d] -> n h d\n",
    "the best of signed scores": "  B: {topk: m, k: 2, of: {keep: m, of: S}}\n  y: B[h n m] K[m h d] -> n h d\n",
    "a softmax over the best keys": "  B: {softmax: m, of: {topk: m, k: 2, fill: -inf, of: S}}\n"
    "  y: B[h n m] K[m h d] -> n h d\n",
    "the best of masked scores": "  B: {topk: m, k: 2, of: A}\n  y: B[h n m] K[m h d] -> n h d\n",
    "l1norm along masked scores": "  B: {l1norm: m, of: A}\n  y: B[h n m] K[m h d] -> n h d\n",
    "maps that keep zeros": "  B: {map: tanh, of: {map: 'clamp(-1, 1)', of: {map: power(2), of: A}}}\n"
    "  y: B[h n m] K[m h d] -> n h d\n",
    "dropout and rope of masked scores": "  B: {dropout: 0.1, of: A}\n  y: B[h n m] K[m h d] -> n h d\n",
    "heads mixed after the softmax": "  B: {sum: h, of: A}\n  y: B[n m] K[m h d] -> n h d\n",
    "masked scores twice": "  B: A[h n m] A[h n m] + 2 * A[h n m] -> h n m\n  y: B[h n m] K[m h d] -> n h d\n",
    "scores times masked scores": "  B: S[h n m] A[h n m] -> h n m\n  y: B[h n m] K[m h d] -> n h d\n",
    "the transpose of scores under a mask": "  B: {softmax: m, of: 'S[h m n]'}\n  y: B[h m n] K[m h d] -> n h d\n",
    "rope": "  R: {rope: m, along: d, of: K}\n  B: {softmax: m, of: 'Q[n h d] R[m h d] -> h n m'}\n"
    "  y: B[h n m] R[m h d] -> n h d\n",
    "distances": "  B: {softmax: m, of: 'S[h n m] - far[n m] -> h n m'}\n  y: B[h n m] K[m h d] -> n h d\n",
    "rel_shift": "  R: {rel_shift: p, to: m, of: 'x[n f] C[p f] -> n p'}\n"
    "  B: {softmax: m, of: 'S[h n m] + R[n m] -> h n m'}\n  y: B[h n m] K[m h d] -> n h d\n",
    "noise": "  B: {softmax: m, of: 'S[h n m] + xi[h n m] -> h n m'}\n  y: B[h n m] K[m h d] -> n h d\n",
    "a delta rule": "  y: {delta_rule: m, query: Q, key: K, value: K, rate: K}\n",
    "a table summed over keys": "  z: {sum: m, of: P}\n  y: Q[n h d] z[h] -> n h d\n",
    "a table over all keys": "  B: {softmax: m, of: P}\n  z: {sum: m, of: B}\n  y: Q[n h d] z[h] -> n h d\n",
    "norms along features": "  y: {rmsnorm: d, of: {layernorm: h, of: O}}\n",
    "masked scores as the output": "  y: A\n",
    "a leak that feeds a state alone": "  s: {softmax: n, of: S}\n  u: {mean: m, of: {sum: n, of: s}}\n"
    "  y: O[n h d] + 0 * pi[h] -> n h d\n",
}


@pytest.mark.parametrize("title", HONEST)
def test_an_honest_design_is_let_pass(title: str) -> None:
    assert leaks(HONEST[title]) == []


CAUSAL = [name for name in ta.list_designs() if graph_of(name).key is not None]


@pytest.mark.parametrize("name", CAUSAL)
def test_every_shipped_attention_has_a_causal_form(name: str) -> None:
    assert build(ta.load(name), causal=True).causal


def test_what_is_not_causal_is_not_checked() -> None:
    steps, found = LEAKS["softmax over queries"]
    assert found
    assert leaks(steps, HEAD.replace("causal: true\n", "")) == []


def test_the_whole_message() -> None:
    data = ta.load("mhsa").as_dict() | {"causal": True}
    data["diagram"]["A"] = {"softmax": "n", "of": data["diagram"]["A"]["of"]}
    (problem,) = ta.check(data)
    assert str(problem) == (
        "mhsa: diagram.A: causal-leak: step 'A' runs along the query leg 'n' without a causal mask,"
        " so a later position reaches a query.\n"
        "  hint: run it along the key leg 'm', or leave the design non-causal."
    )


def test_a_delta_rule_is_causal_whatever_is_asked() -> None:
    with pytest.raises(ta.DesignError) as raised:
        build(ta.load("fmm_fast_weight1"), causal=False)
    (problem,) = raised.value.problems
    assert (problem.code, problem.field, problem.hint) == ("causal-by-nature", "diagram.far", "remove 'causal=False'.")


BOTH = [
    "softmax attention", "a second layer of attention", "relu attention with keep", "a mean over visible keys",
    "the best of masked scores", "maps that keep zeros", "the transpose of scores under a mask", "rope", "a delta rule",
    "scores that sum over keys", "relu attention without keep", "softmax over queries", "masked scores moved by a map",
    "attention with its legs swapped", "softmax over the queries of masked scores", "what queries hand back to keys",
]  # fmt: skip


@pytest.mark.parametrize("title", BOTH)
def test_the_checker_agrees_with_the_numbers(title: str) -> None:
    """A change of later positions changes nothing before them where the checker is silent, and does where it is not."""
    steps = HONEST.get(title) or LEAKS[title][0]
    text = HEAD.partition("constants:")[0] + "diagram:" + HEAD.partition("diagram:")[2] + steps + "output: y\n"
    text = text.replace("causal: true\n", "").replace(" p: relative,", "").replace(", T: m f, P: m h", "")
    for box in ("softmax: m", "keep: m", "mean: m"):  # the masks by hand, as the checker would refuse the leaks
        text = text.replace(f"{{{box}, of", f"{{{box}, mask: causal, of")
    for name in "OAS":  # what these steps leave unused
        if len(re.findall(rf"\b{name}\b", text)) == 1:
            text = re.sub(rf"  {name}: .*\n", "", text)
    module = ta.compile(text, backend="reference", dtype=torch.float64).eval()
    x = torch.randn(1, 6, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    later = x + (torch.arange(6) >= 4).double()[:, None]
    y, changed = module(x), module(later)
    same = torch.allclose(y[:, :4], changed[:, :4], rtol=0, atol=1e-12)
    assert same is (title in HONEST)
