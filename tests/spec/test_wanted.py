"""What people wanted to write: each works and is what plain PyTorch has, or the page says why not yet."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tensornet_attn as ta
from tests.agreement import modules
from tests.random_call import F64, assert_same, results

Plain = Callable[[Any, Tensor], Tensor]
Wanted = tuple[dict[str, Any], Plain]
PAGE = Path(__file__).resolve().parents[2] / "docs/language.md"
Q, K, V = "x[n f] Wq[f h d] -> n h d", "x[m f] Wk[f h d] -> m h d", "x[m f] Wv[f h d] -> m h d"
SCORES = "Q[n h d] K[m h d] -> h n m"
OUT = "A[h n m] V[m h d] Wo[h d f] -> n f"
WEIGHTS = {"Wq": "f h d", "Wk": "f h d", "Wv": "f h d", "Wo": "h d f"}
LEGS = {"n": "query", "m": "key", "f": 12, "h": "shared 3", "d": "f / h", "l": 10, "e": "shared 6"}


def design(steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A design of these steps, with the legs and weights that they speak of; the last one is its output."""
    weights = {**WEIGHTS, **more.pop("weights", {})}
    weights = {name: legs for name, legs in weights.items() if f"{name}[" in str(steps)}
    spoken = {*re.findall(r"\w+", str([steps, weights]))}
    spoken |= {"f", "h"} if "d" in spoken else set()
    legs = {leg: size for leg, size in LEGS.items() if leg in spoken}
    made = {"tensornet": 1, "name": "wanted", "legs": legs, "inputs": {"x": "n f"}, "weights": weights}
    return made | {"diagram": steps, "output": [*steps][-1]} | more


def attention(box: dict[str, Any], out: str = OUT, **more: Any) -> dict[str, Any]:
    box = {"softmax": "m", "scale": "d ** -0.5", "of": SCORES} | box
    return design({"Q": Q, "K": K, "V": V, "A": box, "y": out}, **more)


def heads(layer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores and values of three heads."""
    q, k, v = (torch.einsum("bnf,fhd->bhnd", x, weight) for weight in (layer.Wq, layer.Wk, layer.Wv))
    return q, k, v, q @ k.mT / 2


def read(layer: Any, weights: Tensor, v: Tensor) -> Tensor:
    return torch.einsum("bhnm,bhmd,hdf->bnf", weights, v, layer.Wo)


def sink(layer: Any, x: Tensor) -> Tensor:
    _, _, v, scores = heads(layer, x)
    column = layer.b[:, None, None].expand(*scores.shape[:-1], 1)
    return read(layer, torch.cat([scores, column], -1).softmax(-1)[..., :-1], v)


def softmax_off_by_one(layer: Any, x: Tensor) -> Tensor:
    _, _, v, scores = heads(layer, x)
    return read(layer, scores.exp() / (1 + scores.exp().sum(-1, keepdim=True)), v)


def sink_and_window(layer: Any, x: Tensor) -> Tensor:
    _, _, v, scores = heads(layer, x)
    gap = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1])
    scores = scores.masked_fill((gap < 0) | (gap > 3), -torch.inf)
    column = layer.b[:, None, None].expand(*scores.shape[:-1], 1)
    return read(layer, torch.cat([scores, column], -1).softmax(-1)[..., :-1], v)


def normed(layer: Any, x: Tensor) -> Tensor:
    q, k, v, _ = heads(layer, x)
    q, k = (F.rms_norm(t.transpose(1, 2), (3, 4), eps=1e-6).transpose(1, 2) for t in (q, k))
    return read(layer, (q @ k.mT / 2).softmax(-1), v)


def joint(layer: Any, x: Tensor) -> Tensor:
    _, _, v, scores = heads(layer, x)
    weights = scores.transpose(1, 2).flatten(2).softmax(-1).unflatten(-1, (3, -1)).transpose(1, 2)
    return read(layer, weights, v)


def groups(layer: Any, x: Tensor) -> Tensor:
    return F.group_norm(x.flatten(0, 1), 3).view_as(x) @ layer.W


def chosen(layer: Any, x: Tensor) -> Tensor:
    best, places = (x @ layer.Wg).topk(2, -1)
    gates = torch.zeros(*x.shape[:-1], 6, dtype=F64).scatter(-1, places, best.softmax(-1))
    return torch.einsum("bne,bnf,efl,elg->bng", gates, x, layer.W1, layer.W2)


def routed(layer: Any, x: Tensor) -> Tensor:
    """DeepSeek-V3, with a shared expert beside the chosen."""
    scores = torch.sigmoid(x @ layer.Wg)
    choice = scores + layer.b
    best = choice.unflatten(-1, (3, 2)).sum(-1).topk(2, -1).indices
    inside = torch.zeros(*x.shape[:-1], 3, dtype=torch.bool).scatter(-1, best, True).repeat_interleave(2, -1)
    places = choice.masked_fill(~inside, -torch.inf).topk(2, -1).indices
    gates = torch.zeros_like(scores).scatter(-1, places, scores.gather(-1, places))
    gates = 2.5 * gates / gates.sum(-1, keepdim=True)
    hidden = torch.einsum("bnf,efl->bnel", x, layer.W1) + layer.b1
    return torch.einsum("bne,bnel,elf->bnf", gates, hidden, layer.W2) + F.silu(x @ layer.Ws) @ layer.Wt


def gated_unit(layer: Any, x: Tensor) -> Tensor:
    return (F.silu(x @ layer.Wg) * (x @ layer.Wu)) @ layer.Wd


def capped(layer: Any, x: Tensor) -> Tensor:
    _, _, v, scores = heads(layer, x)
    return read(layer, (5 * torch.tanh(scores / 5)).softmax(-1), v)


def einops(layer: Any, x: Tensor) -> Tensor:
    q, k, v = ((x @ w).unflatten(-1, (3, 4)).transpose(1, 2) for w in (layer.Pq, layer.Pk, layer.Pv))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2) @ layer.Po


def multi_head(layer: Any, x: Tensor) -> Tensor:
    _, _, v, scores = heads(layer, x)
    return read(layer, scores.softmax(-1), v)


def mapped(name: str, function: Callable[[Tensor], Tensor]) -> Wanted:
    return design({"y": {"map": name, "of": "x[n f] W[f g] -> n g"}}, weights={"W": "f g"}, legs=SQUARE), (
        lambda layer, x: function(x @ layer.W)
    )


SQUARE = {"n": "query", "f": 12, "g": "f"}
EXPERTS = {"Wg": "f e", "W1": "e f l", "W2": "e l f"}
SHARED = {"b1": "e l", "Ws": "f l", "Wt": "l f", "b": {"legs": "e", "init": "normal(1)"}}
ROUTER = {
    "s": {"map": "sigmoid", "of": "x[n f] Wg[f e] -> n e"},
    "T": {"topk": "e", "k": 2, "groups": 3, "k_groups": 2, "k_in_group": 2, "by": "s[n e] + b[e] -> n e", "of": "s"},
    "G": {"l1norm": "e", "of": "T"},
    "H": "x[n f] W1[e f l] + b1[e l] -> n e l",
    "own": {"map": "silu", "of": "x[n f] Ws[f l] -> n l"},
    "y": "2.5 * G[n e] H[n e l] W2[e l f] + own[n l] Wt[l f] -> n f",
}
B = {"weights": {"b": {"legs": "h", "init": "normal(1)"}}}
WANTED: dict[str, Wanted] = {
    "sinks (gpt-oss)": (attention({"sink": "b[h]"}, **B), sink),
    "a sink of zero (softmax off by one)": (attention({"sink": 0}), softmax_off_by_one),
    "a sink beside a window": (attention({"sink": "b[h]", "mask": "window(3, 0)"}, causal=True, **B), sink_and_window),
    "a sink as a gate": (
        design(
            {
                "Q": Q,
                "K": K,
                "V": V,
                "S": "(d ** -0.5) * Q[n h d] K[m h d] -> h n m",
                "A": {"softmax": "m", "of": "S"},
                "level": {"logsumexp": "m", "of": "S"},
                "g": {"map": "sigmoid", "of": "level[h n] - b[h] -> h n"},
                "y": "A[h n m] g[h n] V[m h d] Wo[h d f] -> n f",
            },
            **B,
        ),
        sink,
    ),
    "norms over several legs": (
        design(
            {
                "Q": {"rmsnorm": ["h", "d"], "eps": 1e-6, "of": Q},
                "K": {"rmsnorm": ["h", "d"], "eps": 1e-6, "of": K},
                "V": V,
                "A": {"softmax": "m", "scale": "d ** -0.5", "of": SCORES},
                "y": OUT,
            }
        ),
        normed,
    ),
    "softmax over heads and keys": (attention({"softmax": ["h", "m"]}), joint),
    "groupnorm": (
        design(
            {"z": {"groupnorm": "f", "groups": 3, "of": "x"}, "y": "z[n f] W[f g] -> n g"},
            weights={"W": "f g"},
            legs=SQUARE,
        ),
        groups,
    ),
    "softmax over the top k (Mixtral)": (
        design(
            {
                "G": {"softmax": "e", "of": {"topk": "e", "k": 2, "fill": "-inf", "of": "x[n f] Wg[f e] -> n e"}},
                "y": "G[n e] x[n f] W1[e f l] W2[e l g] -> n g",
            },
            weights=EXPERTS | {"W2": "e l g"},
            legs={"n": "query", "f": 12, "g": 5, "e": "shared 6", "l": 10},
        ),
        chosen,
    ),
    "groups, a bias that chooses, biases of experts, a shared expert (DeepSeek-V3)": (
        design(ROUTER, weights=EXPERTS | SHARED),
        routed,
    ),
    "a gated unit": (
        design(
            {
                "G": {"map": "silu", "of": "x[n f] Wg[f l] -> n l"},
                "U": "x[n f] Wu[f l] -> n l",
                "GU": "G[n l] U[n l] -> n l",
                "y": "GU[n l] Wd[l f] -> n f",
            },
            weights={"Wg": "f l", "Wu": "f l", "Wd": "l f"},
        ),
        gated_unit,
    ),
    "tanh soft-capping": (
        attention({"scale": 1, "of": {"map": "softcap(5)", "of": "(d ** -0.5) * Q[n h d] K[m h d] -> h n m"}}),
        capped,
    ),
    "legs split and joined (einops)": (
        design(
            {
                "Q": "x[n f] Pq[f (h d)] -> n h d",
                "K": "x[m f] Pk[f (h d)] -> m h d",
                "V": "x[m f] Pv[f (h d)] -> m h d",
                "A": {"softmax": "m", "scale": "d ** -0.5", "of": SCORES},
                "o": "A[h n m] V[m h d] -> n (h d)",
                "y": "o[n f] Po[f g] -> n g",
            },
            weights=dict.fromkeys(("Pq", "Pk", "Pv", "Po"), "f g"),
            legs={leg: LEGS[leg] for leg in "nmfhd"} | {"g": "f"},
        ),
        einops,
    ),
    "1 / sqrt(d)": (attention({"scale": "1 / sqrt(d)"}), multi_head),
    "erf": mapped("erf", torch.erf),
    "gelu_tanh": mapped("gelu_tanh", lambda x: F.gelu(x, approximate="tanh")),
    "quick_gelu": mapped("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
    "clamp on one side": mapped("clamp(-inf, 1)", lambda x: x.clamp(max=1)),
    "logsigmoid": mapped("logsigmoid", F.logsigmoid),
    "pi": mapped("softcap(2 * pi)", lambda x: 2 * torch.pi * torch.tanh(x / 2 / torch.pi)),
    "mish": mapped("mish", F.mish),
    "hardswish": mapped("hardswish", F.hardswish),
    "leaky_relu": mapped("leaky_relu(0.01)", F.leaky_relu),
    "squared relu": mapped("relu_squared", lambda x: F.relu(x).square()),
    "sine and cosine": mapped("sin", torch.sin),
}
LATER = {  # refused, with the reason, in the section "Not supported" of the page
    "sequence in chunks": "**Chunks of the sequence**",
    "sparse use of selected keys or blocks": "**Keys that a query chooses**",
    "two memories": "**Several memories**",
    "outputs on a latent leg": "**Outputs on a latent leg**",
}


@pytest.mark.parametrize("name", WANTED)
def test_it_works(name: str) -> None:
    source, plain = WANTED[name]
    assert ta.check(source) == []
    oracle, layer = modules(source)
    x = torch.randn(2, 9, 12, dtype=F64)
    torch.testing.assert_close(oracle(x), plain(oracle, x))
    assert_same(results(layer, [x], {}), results(oracle, [x], {}))


@pytest.mark.parametrize("name", LATER)
def test_the_page_says_why_not_yet(name: str) -> None:
    section = PAGE.read_text(encoding="utf-8").partition("\n## Not supported\n")[2].partition("\n## ")[0]
    assert LATER[name] in section
