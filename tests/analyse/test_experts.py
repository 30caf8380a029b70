"""Expert selections against a plain search for the largest entries."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta


def test_selections_of_epa_by_loops() -> None:
    layer = ta.compile(ta.load("epa", legs={"f": 8, "h": 2, "e": 5}, settings={"k": 3}), dtype=torch.float64)
    x = torch.randn(2, 4, 8, dtype=torch.float64)
    found = ta.expert_selections(layer, x)
    assert list(found) == ["Gs", "Gd"]
    for step, weight, leg in (("Gs", "Ss", "m"), ("Gd", "Sd", "n")):
        chosen, times = found[step], torch.zeros(2, 5)
        assert (chosen.leg, chosen.size, chosen.legs, chosen.position) == ("e", 5, (leg, "h"), leg)
        gates = torch.einsum("bnf,fhe->bnhe", x, layer.state_dict()[weight]).sigmoid()
        for b in range(2):
            for n in range(4):
                for h in range(2):
                    row = gates[b, n, h].tolist()
                    best = sorted(range(5), key=lambda e: -row[e])[:3]
                    assert chosen.indices[b, n, h].tolist() == best
                    assert chosen.gates[b, n, h].tolist() == pytest.approx([row[e] for e in best], abs=1e-12)
                    dense = [row[e] if e in best else 0 for e in range(5)]
                    assert chosen.dense[b, n, h].tolist() == pytest.approx(dense, abs=1e-12)
                    assert chosen.chosen[b, n, h].tolist() == [e in best for e in range(5)]
                    times[h, best] += 1
        torch.testing.assert_close(chosen.usage, times / 8)


def test_equal_gates_go_to_the_smaller_index_and_zeros_may_be_chosen() -> None:
    layer = ta.compile(ta.load("sigma_moe", legs={"f": 4, "e": 6, "l": 3}, settings={"k": 2}))
    with torch.no_grad():
        layer.Ws.zero_()
    chosen = ta.expert_selections(layer, torch.randn(3, 5, 4))["G"]
    assert chosen.indices.unique().tolist() == [0, 1]
    assert chosen.usage.tolist() == [1, 1, 0, 0, 0, 0]
    assert (chosen.gates == 0.5).all()


def test_by_decides_and_of_is_what_is_kept() -> None:
    design = {
        "tensornet": 1, "name": "own", "legs": {"n": "query", "f": 4, "e": "head 3"}, "inputs": {"x": "n f"},
        "weights": {"W": "f e", "S": "f e", "U": "e f"},
        "diagram": {
            "G": {"topk": "e", "k": 1, "by": "x[n f] S[f e] -> n e", "of": "x[n f] W[f e] -> n e"},
            "y": "G[n e] U[e f] -> n f",
        },
        "output": "y",
    }  # fmt: skip
    layer, x = ta.compile(design), torch.randn(2, 5, 4)
    chosen = ta.expert_selections(layer, x)["G"]
    torch.testing.assert_close(chosen.indices, (x @ layer.S).argmax(-1, keepdim=True))
    torch.testing.assert_close(chosen.gates, (x @ layer.W).detach().gather(-1, chosen.indices))


@pytest.mark.parametrize("name", ta.list_designs())
def test_every_shipped_design(name: str) -> None:
    """What is kept at the chosen entries is the value of the topk step; each row of `usage` sums to k."""
    layer = ta.compile(name).eval()
    graph = layer.plan.graph
    shapes = [[6 if graph.leg[leg].sequence else graph.leg[leg].size for leg in t.legs] for t in graph.of_role("input")]
    inputs = [torch.randn(2, *shape) for shape in shapes]
    for step, found in ta.expert_selections(layer, *inputs).items():
        legs, place = graph.step[step].legs, 1 + graph.step[step].legs.index(found.leg)
        assert found.legs == tuple(leg for leg in legs if leg != found.leg)
        kept = layer.capture(*inputs, step).movedim(place, -1)
        assert torch.equal(found.dense, torch.where(kept.isneginf(), 0, kept))
        k = found.indices.shape[-1]
        torch.testing.assert_close(found.usage.sum(-1), torch.full(found.usage.shape[:-1], float(k)))
    if "topk" not in str(layer.design.as_dict()):
        assert ta.expert_selections(layer, *inputs) == {}
