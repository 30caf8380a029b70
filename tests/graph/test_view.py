"""The networkx view: what its nodes and edges are, and questions that it answers."""

from __future__ import annotations

from dataclasses import replace

import networkx as nx
import pytest

import tensornet_attn as ta
from tensornet_attn.graph.model import Contraction, FusedAttention, Step, Term, Use
from tensornet_attn.graph.wires import to_networkx
from tensornet_attn.ir.arithmetic import ONE, Number
from tests.shipped import OWN_KEYS


def view(name):
    return to_networkx(ta.build(ta.load(name)))


def kinds(graph):
    return {
        kind: [node for node, data in graph.nodes.items() if data["kind"] == kind]
        for kind in ("tensor", "step", "wire")
    }


def test_mhsa():
    mhsa = view("mhsa")
    found = kinds(mhsa)
    assert found["tensor"] == ["x", "memory", "Wq", "Wk", "Wv", "Wo"]
    assert found["step"] == ["Q", "K", "V", "A.of", "A", "y"]
    assert len(found["wire"]) == 4 + 4 + 4 + 4 + 3 + 5
    assert mhsa.number_of_edges() == len(found["wire"]) + 3 * (2 + 3) + (3 + 3) + 3 + (3 + 3 + 3)
    assert mhsa.graph == {"name": "mhsa", "output": "y", "causal": False, "losses": {}}
    assert mhsa.nodes["Wq"] == {"kind": "tensor", "role": "weight", "legs": ("f", "h", "d"), "sizes": (512, 8, 64)}
    assert mhsa.nodes["A"] == {
        "kind": "step",
        "role": "softmax",
        "output": False,
        "legs": ("h", "n", "m"),
        "sizes": (8, None, None),
    }
    assert mhsa.nodes["y"]["output"]


def test_what_a_leg_joins():
    mhsa = view("mhsa")
    assert sorted(mhsa.predecessors("A.of:h")) == ["K", "Q"]
    assert sorted(mhsa.predecessors("y:h")) == ["A", "V", "Wo"]
    assert mhsa.nodes["y:h"] == {"kind": "wire", "leg": "h", "size": 8, "summed": True}
    assert not mhsa.nodes["A.of:h"]["summed"]
    assert [data for _, _, data in mhsa.in_edges("K:m", data=True)] == [{"label": "m", "role": "factor", "use": 0}]


def test_a_leg_has_the_name_of_its_tensor_and_of_its_use():
    """Keys of the queries' own input: what `x` calls n meets the wire m."""
    found = view(OWN_KEYS)
    assert [data for _, _, data in found.in_edges("K:m", data=True)] == [{"label": "n", "role": "factor", "use": 0}]


@pytest.mark.rotated
@pytest.mark.parametrize("name", ta.list_designs())
def test_bipartite_and_in_order(name):
    graph = ta.build(ta.load(name))
    made = to_networkx(graph)
    sides = {node: data["kind"] == "wire" for node, data in made.nodes.items()}
    assert all(sides[one] != sides[other] for one, other in made.edges())
    assert all("label" in data for _, _, data in made.edges(data=True))
    assert nx.is_directed_acyclic_graph(made)
    reached = set().union(graph.results, *(nx.ancestors(made, root) for root in graph.results))
    assert {step.name for step in graph.steps} <= reached


def test_a_leg_summed_in_two_terms_is_two_wires():
    found = view("transformer_xl")
    assert sorted(found.predecessors("content:d.1")) == ["K", "Q"]
    assert sorted(found.predecessors("content:d.2")) == ["K", "u"]
    assert sorted(found.predecessors("content:h")) == ["K", "K", "Q", "u"] or set(found.predecessors("content:h")) == {
        "K",
        "Q",
        "u",
    }


def test_a_tensor_used_twice_has_two_edges():
    found = view("mgk")
    edges = [data for _, _, data in found.in_edges("k2:d", data=True)]
    assert edges == [{"label": "d", "role": "factor", "use": 0}, {"label": "d", "role": "factor", "use": 1}]


def test_scalars_hang_on_a_wire_without_a_leg():
    found = view("differential")
    assert found.nodes["A:lambda1[]"] == {"kind": "wire", "leg": None, "size": 1, "summed": False}
    assert list(found.predecessors("A:lambda1[]")) == ["lambda1"]
    assert list(found.successors("A:lambda1[]")) == ["A"]


def test_roles_of_operands():
    found = view("fmm_fast_weight1")
    roles = {source: data["role"] for source, _, data in found.in_edges("far:h", data=True)}
    assert roles == {"phiQ": "query", "phiK": "key", "V": "value", "rate": "rate"}
    assert found.nodes["far"]["role"] == "delta_rule"


def test_losses_are_told_of_the_whole():
    assert view("moa_regularised").graph["losses"] == {name: name for name in ("importance", "balance", "router_z")}
    assert view("moa").graph["losses"] == {}


def test_fused_attention():
    mhsa = ta.build(ta.load("mhsa"))
    uses = (Use("Q", ("n", "h", "d")), Use("K", ("m", "h", "d")), Use("V", ("m", "h", "d")))
    fused = Step("o", FusedAttention("m", *uses, ("h", "n", "m"), ONE, Number(0), (), ("A.of", "A")), ("n", "h", "d"))
    last = Step("y", Contraction((Term(ONE, (Use("o", ("n", "h", "d")), Use("Wo", ("h", "d", "f")))),)), ("n", "f"))
    found = to_networkx(replace(mhsa, steps=(*mhsa.steps[:3], fused, last)))
    assert found.nodes["o"]["role"] == "attention"
    assert sorted(found.predecessors("o:d.1")) == ["K", "Q"]
    assert list(found.predecessors("o:d")) == ["V"]
    assert sorted(found.predecessors("o:h")) == ["K", "Q", "V"]
