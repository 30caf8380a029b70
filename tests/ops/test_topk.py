"""Routers: the best groups alone, a bias that chooses and does not weigh, shares of the chosen, as plain PyTorch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tests.agreement import modules
from tests.random_call import F64, same_results

SCORES = {"map": "sigmoid", "of": "x[n f] Wg[f e] -> n e"}


def router(gates: dict[str, Any], scores: Any = SCORES, weights: dict[str, Any] | None = None) -> dict[str, Any]:
    """A layer of 12 experts with gates G."""
    return {
        "tensornet": 1,
        "name": "router",
        "legs": {"n": "query", "f": 8, "e": "shared 12", "l": 16},
        "inputs": {"x": "n f"},
        "weights": {"Wg": "f e", "W1": "e f l", "W2": "e l f"} | (weights or {}),
        "diagram": {
            "s": scores,
            **gates,
            "H": {"map": "silu", "of": "x[n f] W1[e f l] -> n e l"},
            "y": "G[n e] H[n e l] W2[e l f] -> n f",
        },
        "output": "y",
    }


GROUPED = {"topk": "e", "k": 3, "groups": 4, "k_groups": 2, "k_in_group": 2, "by": "s[n e] + b[e] -> n e", "of": "s"}
DEEPSEEK = router({"T": GROUPED, "G": {"l1norm": "e", "of": "T"}}, weights={"b": {"legs": "e", "init": "normal(1)"}})
MIXTRAL = router({"G": {"softmax": "e", "of": {"topk": "e", "k": 2, "fill": "-inf", "of": "s"}}}, SCORES["of"])


def deepseek(layer: Any, x: Tensor) -> Tensor:
    """DeepSeek-V3 (2024), eq. 13 to 16, and its code: groups count as the sum of their two best."""
    scores = torch.sigmoid(x @ layer.Wg)
    choice = scores + layer.b
    best = choice.unflatten(-1, (4, 3)).topk(2, -1).values.sum(-1).topk(2, -1).indices
    inside = torch.zeros(*x.shape[:-1], 4, dtype=torch.bool).scatter(-1, best, True).repeat_interleave(3, -1)
    chosen = choice.masked_fill(~inside, -torch.inf).topk(3, -1).indices
    gates = torch.zeros_like(scores).scatter(-1, chosen, scores.gather(-1, chosen))
    return gates / gates.sum(-1, keepdim=True)


def mixtral(layer: Any, x: Tensor) -> Tensor:
    """The softmax of the logits of the chosen."""
    best, chosen = (x @ layer.Wg).topk(2, -1)
    return torch.zeros(*x.shape[:-1], 12, dtype=F64).scatter(-1, chosen, best.softmax(-1))


@pytest.mark.parametrize("backend", ["torch", "inductor"])
@pytest.mark.parametrize(("design", "gates"), [(DEEPSEEK, deepseek), (MIXTRAL, mixtral)], ids=["deepseek", "mixtral"])
def test_routers(design: dict[str, Any], gates: Any, backend: str) -> None:
    oracle, layer = modules(design, backend)
    x = torch.randn(3, 11, 8, dtype=F64)
    hidden = torch.nn.functional.silu(torch.einsum("bnf,efl->bnel", x, oracle.W1))
    wanted = torch.einsum("bne,bnel,elf->bnf", gates(oracle, x), hidden, oracle.W2)
    torch.testing.assert_close(oracle(x), wanted)
    same_results(layer, oracle, [x])


@pytest.mark.parametrize("design", [DEEPSEEK, MIXTRAL], ids=["deepseek", "mixtral"])
def test_the_chosen_experts_alone_are_computed(design: dict[str, Any]) -> None:
    """Though a box stands between the choice and the products."""
    assert "y: grouped experts: rows sorted by expert" in ta.compile(design, n=1024, device_costs="generic").explain()
    few, every = (part for part in ta.cost(design, n=64).written.formula.split(" + ")[:2])
    assert (few, every) == ("n f e", "2 n f e l")
    assert "e l" not in ta.cost(design, n=64).written.routed_formula


@pytest.mark.parametrize("backend", ["torch", "inductor"])
def test_experts_with_biases(backend: str) -> None:
    """As in gpt-oss: the biases of the chosen experts alone count."""
    biases = {"b1": "e l", "b2": "e f", "c": "l"}
    design = router({"G": MIXTRAL["diagram"]["G"]}, SCORES["of"], biases)
    design["diagram"] |= {
        "H": {"map": "silu", "of": "x[n f] W1[e f l] + b1[e l] + c[l] -> n e l"},
        "y": "G[n e] H[n e l] W2[e l f] + G[n e] b2[e f] -> n f",
    }
    oracle = ta.reference(design, dtype=F64)
    layer = ta.compile(design, backend, dtype=F64, n=1024, device_costs="generic")
    assert "grouped experts: rows sorted by expert, only the 2 chosen of 12 computed, also in 'H'" in layer.explain()
    with torch.no_grad():
        for weight in oracle.parameters():
            weight.normal_(generator=torch.Generator().manual_seed(weight.ndim))
    layer.load_state_dict(oracle.state_dict())
    x = torch.randn(3, 11, 8, dtype=F64)
    hidden = torch.nn.functional.silu(torch.einsum("bnf,efl->bnel", x, oracle.W1) + oracle.b1 + oracle.c)
    gates = mixtral(oracle, x)
    wanted = torch.einsum("bne,bnel,elf->bnf", gates, hidden, oracle.W2) + gates @ oracle.b2
    torch.testing.assert_close(oracle(x), wanted)
    same_results(layer, oracle, [x])


def test_gates_with_negative_scale_are_no_shares_of_the_chosen() -> None:
    """Minus infinity times a negative number weighs most."""
    design = router({"G": {"softmax": "e", "scale": -1, "of": {"topk": "e", "k": 2, "fill": "-inf", "of": "s"}}})
    assert "y: grouped experts" not in ta.compile(design, n=1024, device_costs="generic").explain()


def test_what_chooses_gets_gradients_of_zero() -> None:
    layer = ta.compile(DEEPSEEK, dtype=F64)
    layer(torch.randn(5, 8, dtype=F64)).sum().backward()
    assert layer.b.grad is not None
    assert not layer.b.grad.any()


@pytest.mark.parametrize("fill", [0, "-inf", float("-inf")])
def test_it_reads_back(fill: Any) -> None:
    source = router({"G": {"softmax": "e", "of": {"topk": "e", "k": 2, "fill": fill, "of": "s"}}})
    graph = ta.build(ta.load(source))
    assert ta.build(ta.load(ta.load(source).to_yaml())) == graph


def test_groups_that_say_nothing_change_no_hash() -> None:
    plain = router({"G": {"topk": "e", "k": 2, "of": "s"}})
    assert "groups" not in ta.build(ta.load(plain)).to_text()


BEST: dict[str, Any] = {"T": {"topk": "m", "k": 4, "fill": "-inf", "of": "S"}, "A": {"softmax": "m", "of": "T"}}


def of_keys(diagram: dict[str, Any], causal: bool = False) -> dict[str, Any]:
    """Attention with maps A of the scores S."""
    return {
        "tensornet": 1,
        "name": "chosen",
        "causal": causal,
        "legs": {"n": "query", "m": "key", "h": "head 2", "d": 4},
        "inputs": {"x": "n d"},
        "weights": {"W": "h d", "V": "h d"},
        "diagram": {
            "Q": "x[n d] W[h d] -> n h d",
            "K": "x[m d] V[h d] -> m h d",
            "S": "Q[n h d] K[m h d] -> h n m",
            **diagram,
            "y": "A[h n m] K[m h d] -> n h d",
        },
        "output": "y",
    }


def attends_to_the_best(layer: Any, x: Tensor, keep: Tensor, softmax: bool) -> Tensor:
    """The 4 largest visible scores, or all of them, or their softmax, times the keys: [2, n, h, d]."""
    keys = torch.einsum("bmd,hd->bmhd", x, layer.V)
    scores = torch.einsum("bnd,hd,bmhd->bhnm", x, layer.W, keys).masked_fill(~keep, -torch.inf)
    order = scores.sort(dim=-1, descending=True, stable=True).indices[..., :4]
    chosen = keep & torch.zeros_like(scores, dtype=torch.bool).scatter(-1, order, True)
    weights = torch.where(chosen, scores, -1e300).softmax(-1) if softmax else scores
    return torch.einsum("bhnm,bmhd->bnhd", torch.where(chosen, weights, 0), keys)


@pytest.mark.parametrize("softmax", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("n", [2, 9])
def test_hidden_keys_are_never_chosen(n: int, causal: bool, softmax: bool) -> None:
    """Nor later keys of a causal design; of fewer keys than k all are chosen."""
    boxes = BEST if softmax else {"A": {"topk": "m", "k": 4, "of": "S"}}
    oracle, layer = modules(of_keys(boxes, causal), "torch")
    draw = torch.Generator().manual_seed(n)
    x = torch.randn(2, n, 4, generator=draw, dtype=F64)
    key_mask = torch.rand(2, n, generator=draw) < 0.5
    mask = torch.rand(2, n, n, generator=draw) < 0.7
    seen = torch.ones(n, n, dtype=torch.bool).tril() if causal else torch.ones(n, n, dtype=torch.bool)
    for call in ({}, {"key_mask": key_mask}, {"mask": mask}, {"key_mask": key_mask, "mask": mask}):
        keep = (call.get("mask", seen) & seen).expand(2, n, n) & call.get("key_mask", seen[-1:])[:, None]
        torch.testing.assert_close(oracle(x, **call), attends_to_the_best(oracle, x, keep[:, None], softmax))
        same_results(layer, oracle, [x], call)


def test_nothing_chosen_gives_a_row_of_zeros() -> None:
    """The first query has no earlier key to choose, though the softmax shows it the whole row."""
    boxes = {"T": BEST["T"] | {"mask": ["causal(1)"]}, "A": BEST["A"], "l": {"logsumexp": "m", "of": "T"}}
    design = of_keys(boxes)
    design["diagram"]["y"] = "A[h n m] K[m h d] + l[h n] W[h d] -> n h d"
    oracle, layer = modules(design, "torch")
    x = torch.randn(2, 5, 4, dtype=F64)
    for call in ({}, {"key_mask": torch.tensor([[True, False, True, True, True]])}):
        assert oracle.capture(x, "A", **call)[:, :, 0].count_nonzero() == 0
        same_results(layer, oracle, [x], call)


def test_the_best_keys_are_chosen_with_a_cache() -> None:
    layer = ta.compile(of_keys(BEST, causal=True), dtype=F64).eval()
    x, key_mask = torch.randn(2, 9, 4, dtype=F64), torch.arange(9) > torch.tensor([[2], [-1]])
    for call in (None, key_mask):
        cache, parts = layer.new_cache(), []
        for first, last in ((0, 5), (5, 6), (6, 9)):
            shown = {} if call is None else {"key_mask": call[:, :last]}
            parts.append(layer(x[:, first:last], cache=cache, **shown))
        whole = layer(x) if call is None else layer(x, key_mask=call)
        torch.testing.assert_close(torch.cat(parts, 1), whole)


def test_no_number_is_added_to_ranks() -> None:
    """The softmax adds a mask of numbers to the same scores."""
    layer = ta.compile(of_keys(BEST))
    with pytest.raises(ta.InputError, match="a float mask cannot be added in 'T', a topk box; give a boolean one"):
        layer(torch.randn(2, 5, 4), mask=torch.zeros(5, 5))
