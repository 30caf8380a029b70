"""Sums over keys that all queries read alike: one row stands for them, unless a call has a mask."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.agreement import modules, same_outcome

F64 = torch.float64


def design(**changed: str | dict[str, Any] | None) -> dict[str, Any]:
    """A design with changed steps, and without those that are None; `W` [h e] is one more weight, if it is read."""
    made = {
        "tensornet": 1,
        "name": "pooled",
        "legs": {"n": "query", "m": "key", "f": 6, "h": "head 2", "d": 3, "e": 3},
        "inputs": {"x": "n f", "memory": {"legs": "m f", "default": "x"}},
        "weights": {"Wq": "f h d", "Wk": "f h d", "Wv": "f h e", "Wo": "h e f"},
        "constants": {"each": {"legs": "n", "value": "ones"}},
        "diagram": {
            "Q": "x[n f] Wq[f h d] -> n h d",
            "K": "memory[m f] Wk[f h d] -> m h d",
            "V": "memory[m f] Wv[f h e] -> m h e",
            "S": {"sum": "m", "of": "each[n] K[m h d] V[m h e] -> n m h d e"},
            "R": {"map": "tanh", "of": "S"},
        }
        | changed
        | {"y": changed.get("y", "Q[n h d] R[n h d e] Wo[h e f] -> n f")},
        "output": "y",
    }
    made["diagram"] = {name: step for name, step in made["diagram"].items() if step is not None}
    made["weights"] |= {"W": "h e"} if " W[" in str(changed) else {}
    return made


BROADCAST = {
    "a map": {},
    "a sum over another leg": {
        "R": {"sum": "d", "of": "S"},
        "q": {"sum": "d", "of": "Q"},
        "y": "q[n h] R[n h e] Wo[h e f] -> n f",
    },
    "products": {
        "R": "S[n h d e] W[h e] -> n h d e",
        "T": "R[n h d e] S[n h d e] -> n h d e",
        "y": "Q[n h d] T[n h d e] Wo[h e f] -> n f",
    },
    "a projection inside": {"V": None, "S": {"sum": "m", "of": "each[n] K[m h d] memory[m f] Wv[f h e] -> n m h d e"}},
    "a weight of a key factor": {"S": {"sum": "m", "of": "each[n] K[m h d] V[m h e] W[h e] -> n m h d e"}},
}
WHOLE = {
    "a softmax": {"R": {"softmax": "e", "of": "S"}},
    "dropout": {"R": {"dropout": 0.5, "of": "S"}},
    "a norm": {"R": {"rmsnorm": "e", "of": "S"}},
    "nothing else": {
        "Q": "memory[m f] Wq[f h d] -> m h d",
        "S": {"sum": "m", "of": "each[n] K[m h d] Q[m h d] V[m h e] -> n m h d e"},
        "T": {"sum": "d", "of": "R"},
        "y": "T[n h e] Wo[h e f] -> n f",
    },
}


def agree(given: dict[str, Any], n: int, m: int, hidden: float | None = None, **masks: Any) -> None:
    plain, layer = (module.eval() for module in modules(ta.load(given)))
    x, memory = (torch.randn(2, size, 6, dtype=F64) for size in (n, m))
    if hidden is not None:
        memory[:, :1] = hidden
    same_outcome(layer, plain, [x, memory], rtol=1e-10, **masks)


@pytest.mark.parametrize("given", BROADCAST.values(), ids=BROADCAST)
@pytest.mark.parametrize(("n", "m"), [(5, 5), (1, 4), (4, 1), (3, 0), (0, 3)])
def test_one_row_is_read_by_all_queries(given, n: int, m: int) -> None:
    whole = design(**given)
    assert "outer_sums(" in ta.compile(ta.load(whole)).source
    agree(whole, n, m)
    agree(whole, n, m, mask=torch.rand(n, m) > 0.4)
    agree(whole, n, m, hidden=1e6, key_mask=torch.arange(m).expand(2, m) > 0)


@pytest.mark.parametrize(("n", "m"), [(5, 5), (1, 4), (4, 1), (3, 0), (0, 3)])
def test_weights_are_multiplied_once_for_all_queries(n: int, m: int) -> None:
    whole = design(
        Q={"sum": "d", "of": "x[n f] Wq[f h d] -> n h d"},
        K=None,
        V=None,
        S={"sum": "m", "of": "each[n] memory[m f] Wv[f h e] -> n m h e"},
        y="Q[n h] R[n h e] Wo[h e f] -> n f",
    )
    del whole["weights"]["Wk"]
    assert "each" not in ta.compile(ta.load(whole)).source.partition("def forward")[2]
    agree(whole, n, m)
    agree(whole, n, m, mask=torch.rand(n, m) > 0.4)
    agree(whole, n, m, mask=torch.rand(2, 2, 3, n, m) > 0.4)
    agree(whole, n, m, hidden=1e6, key_mask=torch.arange(m).expand(2, m) > 0)


@pytest.mark.parametrize("given", WHOLE.values(), ids=WHOLE)
def test_readers_that_do_not_broadcast_read_all_rows(given) -> None:
    source = ta.compile(ta.load(design(**given))).source
    assert "outer_sums(" not in source
    assert "one_row" not in source
    agree(design(**given), 5, 4)


@pytest.mark.parametrize("kind", [{}, {"frozen": True}])
def test_weights_of_the_queries_are_no_constants(kind: dict[str, Any]) -> None:
    given = design()
    given["legs"]["n"], given["legs"]["m"] = "query 5", "key 5"
    given["weights"]["each"] = {"legs": "n", "init": "ones"} | kind
    del given["constants"]
    layer = ta.compile(ta.load(given), dtype=F64)
    assert "outer_sums(" not in layer.source
    x = torch.randn(2, 5, 6, dtype=F64)
    whole = layer(x)
    with torch.no_grad():
        layer.each[1] = 3
    assert (layer(x) - whole)[:, 1].abs().max() > 1e-3
    agree(given, 5, 5)


def test_each_query_draws_its_own_dropout() -> None:
    layer = ta.compile(ta.load(design(R={"dropout": 0.5, "of": "S"})), dtype=F64).train()
    y = layer(torch.ones(1, 6, dtype=F64).expand(16, 6), torch.randn(4, 6, dtype=F64))
    assert y.std(0).min() > 0


def test_products_of_the_keys_are_not_formed() -> None:
    layer = ta.compile("glfish")
    assert "KV_k" not in layer.source
    assert "one_row=mask is None" in layer.source
    assert "one_row" not in ta.compile("glfish", causal=True).source


def test_hidden_keys_that_are_not_numbers_reach_no_query() -> None:
    layer = ta.compile(ta.load(design()), dtype=F64)
    memory = torch.randn(2, 4, 6, dtype=F64)
    memory[:, 0] = float("nan")
    x = torch.randn(2, 5, 6, dtype=F64)
    y = layer(x, memory.requires_grad_(), key_mask=torch.arange(4).expand(2, 4) > 0)
    (found,) = torch.autograd.grad(y.sum(), memory)
    torch.testing.assert_close(y, layer(x, memory[:, 1:].detach()))
    assert found[:, 0].eq(0).all()
    assert found.isfinite().all()
