"""A picture holds what the graph holds: every tensor, every leg, every box."""

import re
from collections import Counter
from typing import Any

import pytest

from tensornet_attn.cost.kernels import unfolded
from tensornet_attn.draw.core import core
from tensornet_attn.draw.flatten import flatten
from tensornet_attn.draw.scene import COPY, PICTURE, drawn_apart, edges
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Contraction, Graph, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.rewrite.fused import fuse
from tensornet_attn.spec import load
from tensornet_attn.spec.library import names as list_designs


def test_plain_attention_is_one_network(plain: Graph) -> None:
    scene = flatten(plain)
    looks = Counter(node.look for node in scene.nodes)
    assert looks == {"input": 3, "weight": 4, "port": 1, "pass": 11, "open": 2}
    assert [(frame.look, frame.words) for frame in scene.frames] == [
        ("part", ("y[n f]",)),
        ("softmax", ("A: softmax over m", "scale = d ** -0.5")),
        ("step", ("Q",)),
        ("step", ("K",)),
        ("step", ("V",)),
    ]


def test_a_leg_of_three_or_more_meets_in_a_point(plain: Graph) -> None:
    scene, wires = edges(flatten(plain))
    points = [node for node in scene.nodes if node.look in ("leg", "point")]
    arms = Counter(end for wire in wires for end in (wire.tail, wire.head))
    assert {point.label: arms[point.id] for point in points} == {"h = 8": 3, "m": 2, "": 3, "d = 64": 2}
    # h: the box, V and Wo; m ends between box and V; inside the box, h joins Q, K and the border, and d Q and K


def test_the_core_mixes_queries_and_keys(plain: Graph, mixed: Graph) -> None:
    assert core(plain) == frozenset()
    assert core(mixed) == {"P"}


@pytest.mark.parametrize(("name", "names"), [("mhsa", set()), ("thsa", {"C"}), ("hard_fish", {"P"}), ("fish", {"P"})])
def test_the_core_of_shipped_designs(name: str, names: set[str]) -> None:
    assert core(build(load(name))) == names


def test_a_bias_and_noise_are_no_core(graph_of: Any) -> None:
    scores = {"softmax": "m", "of": "Q[n h d] K[m h d] + b[h] + s[h] eps[h n m] -> h n m"}
    graph = graph_of(weights={"b": "h", "s": "h"}, noise={"eps": "h n m"}, diagram={"A": scores})
    assert core(graph) == frozenset()


def test_a_sum_bonds_its_signed_terms(graph_of: Any) -> None:
    scores = {"softmax": "m", "of": "Q[n h d] K[m h d] - 0.5 * b[h] + 2 -> h n m"}
    scene = flatten(graph_of(weights={"b": "h"}, diagram={"A": scores}))
    assert [node.label for node in scene.nodes if node.look == "tap"] == ["+", "\N{MINUS SIGN} 0.5", "+ 2"]
    assert len(scene.bonds) == 3
    assert len({bond.head for bond in scene.bonds}) == 1


def test_a_broadcast_leg_meets_a_vector_of_ones(plain: Graph) -> None:
    spread = Contraction((Term(ONE, (Use("Wo", ("h", "d", "f")),)),))
    graph = Graph("spread", plain.legs, (), plain.tensors, (Step("y", spread, ("n", "f")),), "y")
    scene = flatten(graph)
    assert sum(node.look == "ones" for node in scene.nodes) == 3  # n is broadcast; h and d are summed away
    assert all(len(wire.ends) == 2 for wire in scene.wires)


def test_what_is_used_often_is_drawn_once(graph_of: Any) -> None:
    twice = "A[h n m] V[m h d] Wo[h d f] + A[h n m] V[m h d] U[h d f] -> n f"
    graph = graph_of(weights={"U": "h d f"}, diagram={"y": twice})
    assert drawn_apart(graph) == {"A"}  # Q and V are small: they are drawn again at each use
    labels = Counter(node.label for node in flatten(graph).nodes if node.look == "step")
    assert labels == {"A": 2}


def test_doubling_does_not_double_the_picture(graph_of: Any) -> None:
    chain = {"s0": "x[n f] W[f h] -> n h"}
    chain |= {f"s{i}": f"s{i - 1}[n h] s{i - 1}[n h] -> n h" for i in range(1, 60)}
    graph = build(
        load(
            {
                "tensornet": 1,
                "name": "doubling",
                "legs": {"n": "query", "f": 4, "h": "head 4"},
                "inputs": {"x": "n f"},
                "weights": {"W": "f h"},
                "diagram": chain,
                "output": "s59",
            }
        )
    )
    assert len(flatten(graph).nodes) < 60 * (PICTURE + COPY)


def test_an_unfolded_kernel_is_drawn_as_what_it_computes(plain: Graph) -> None:
    fused = fuse(build(load("mhsa")), "A")
    with pytest.raises(TypeError, match=r"'A\.o' is planned: unfold the graph before drawing it"):
        flatten(fused)
    scene = flatten(unfolded(fused))
    assert [frame.words for frame in scene.frames if frame.look == "softmax"] == [
        ("A: softmax over m", "scale = d ** -0.5")
    ]
    assert Counter(n.label for n in scene.nodes if n.look == "weight") == {"Wq": 1, "Wk": 1, "Wv": 1, "Wo": 1}


@pytest.mark.parametrize("name", list_designs())
def test_shipped_designs_lose_nothing(name: str) -> None:
    graph = build(load(name))
    scene, wires = edges(flatten(graph))
    assert {tensor.name for tensor in graph.tensors} <= {node.label for node in scene.nodes}
    assert all(len(wire.ends) > 1 for wire in scene.wires)
    home = {node.id: node.frame for node in scene.nodes}
    up = {None: None, **{frame.id: frame.parent for frame in scene.frames}}
    for wire in wires:  # a wire crosses at most one border, and only where a node stands on it
        one, other = home[wire.tail], home[wire.head]
        assert one == other or up[one] == other or up[other] == one or up[one] == up[other]


@pytest.mark.parametrize("name", list_designs())
def test_shipped_designs_show_the_names_of_steps(name: str) -> None:
    graph = build(load(name))
    scene = flatten(graph)
    titles = {re.split(r"[\[:]", frame.words[0])[0] for frame in scene.frames if frame.words}
    assert {step.name for step in graph.steps if not step.nested} <= titles


@pytest.mark.parametrize("name", list_designs())
def test_all_that_meets_at_a_plus_is_named(name: str) -> None:
    scene, wires = edges(flatten(build(load(name))))
    look = {node.id: node.look for node in scene.nodes}
    scalars = {(bond.tail, bond.head) for bond in scene.bonds if not bond.legs}
    for wire in wires:
        if "plus" in (look[wire.tail], look[wire.head]) and (wire.tail, wire.head) not in scalars:
            assert wire.label or "leg" in (look[wire.tail], look[wire.head])


def test_a_name_is_not_said_twice_at_one_border(graph_of: Any) -> None:
    graph = graph_of(diagram={"Q": "x[n f] Wq[f h d] + x[n f] Wk[f h d] -> n h d"})
    scene = flatten(graph)
    homes = {node.id: node for node in scene.nodes}
    plus = next(node for node in scene.nodes if node.look == "plus")
    assert sorted(wire.leg.name for wire in scene.wires if plus.id in wire.ends and wire.named) == ["d", "h", "n"]
    outside = [w for w in scene.wires if any(homes[e].border and homes[e].frame == plus.frame for e in w.ends)]
    assert [w.leg.name for w in outside if w.frame != plus.frame and len(w.ends) == 2 and w.named] == ["d"]


def test_legs_stand_in_one_order_everywhere(mixed: Graph) -> None:
    assert flatten(mixed).order == ("n", "f", "h", "d", "g", "m")


def test_a_coefficient_stands_with_what_it_multiplies(graph_of: Any) -> None:
    """Inside the frame of its product, in the sign of its term, beside the role of its operand."""
    fast = {"delta_rule": "m", "query": "Q[n h d]", "key": "K[m h d]", "value": "V[m h d]"}
    fast["rate"] = {"map": "sigmoid", "of": "x[m f] B[f h] -> m h"}
    fast |= {"key": "2 * K[m h d] -> m h d", "normalize": "none"}
    diagram = {"Q": "0.5 * x[n f] Wq[f h d] -> n h d", "A": fast, "y": "A[n h d] Wo[h d f] -> n f"}
    scene = flatten(graph_of(weights={"B": "f h"}, diagram=diagram))
    assert [node.label for node in scene.nodes if node.look == "tap"] == ["query", "2 * key", "value", "rate"]
    (number,) = [node for node in scene.nodes if node.look == "number"]
    assert [(number.label, frame.words) for frame in scene.frames if frame.id == number.frame] == [("0.5", ("Q",))]
