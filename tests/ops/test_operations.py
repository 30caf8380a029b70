"""Every operation answers every question, and what it says of itself is what the oracle does, kind by kind."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.ops import MAPS, OPS, Operation
from tensornet_attn.reference import evaluate
from tests.agreement import modules
from tests.random_call import same_results

F64 = torch.float64
N, M = 3, 4
OF = "S[h n m]"
BOXES: dict[str, dict[str, Any]] = {
    **{
        kind: {kind: "m", "of": OF}
        for kind in "softmax normalize keep logsumexp max sum mean cumsum reverse_cumsum".split()
    },
    **{kind: {kind: "h", "of": OF} for kind in "rmsnorm layernorm l1norm l2norm".split()},
    "groupnorm": {"groupnorm": "h", "groups": 2, "of": OF},
    "map": {"map": "relu", "of": OF},
    "topk": {"topk": "h", "k": 1, "of": OF},
    "rope": {"rope": "n", "along": "h", "of": OF},
    "rel_shift": {"rel_shift": "p", "to": "m", "of": "T[h p]"},
    "conv": {"conv": "m", "width": "h", "of": OF},
    "dropout": {"dropout": 0.5, "of": OF},
    "delta_rule": {"delta_rule": "m", "query": "Q[n h]", "key": "K[m h]", "value": "K[m h]", "rate": "b[m h]"},
    "scan": {"scan": "m", "decay": "b[m h]", "of": "K[m h]"},
}
MADE = ("delta_state", "hide", "join", "scan_state", "split")  # by decoding, rewriting, `(h d)`: no design names them
KINDS = sorted({*OPS} - {*MADE})


REDUCED = {
    "delta_rule": "n h",
    "scan": "n h",
    **dict.fromkeys("logsumexp max sum mean".split(), "h n"),
}  # legs of the result


def design_of(kind: str) -> dict[str, Any]:
    """A design with a box of this kind, `A`, read by values or by a weight."""
    read = f"A[{REDUCED[kind]}] w[h] -> n" if kind in REDUCED else "A[h n m] V[m h] Q[n h] -> n"
    read = "A[n h] Q[n h] -> n" if kind == "scan" else read  # which lacks an input of queries
    read = "A[n m] V[m h] Q[n h] -> n" if kind == "conv" else read  # whose taps are the heads
    tensors = {"S": "h n m", "Q": "n h", "K": "m h", "b": "m h", "V": "m h"}, {"T": "h p", "w": "h"}
    inputs, weights = ({t: legs for t, legs in own.items() if f"{t}[" in f"{BOXES[kind]} {read}"} for own in tensors)
    return {
        "tensornet": 1,
        "name": "one_box",
        "legs": {"n": "query", "m": "key", "h": "head 2"} | ({"p": "relative 2"} if "T" in weights else {}),
        "inputs": inputs,
        "weights": weights,
        "diagram": {"A": BOXES[kind], "y": read},
        "output": "y",
    }


def graph_of(kind: str) -> Graph:
    return ta.build(ta.Design(**design_of(kind)))


def values(graph: Graph, at: float | None = None) -> dict[str, torch.Tensor]:
    sizes = {"n": N, "m": M, "p": 5, "h": 2}
    draw = torch.Generator().manual_seed(0)
    made = {t.name: torch.randn(*(sizes[leg] for leg in t.legs), generator=draw, dtype=F64) for t in graph.tensors}
    return {name: value if at is None else torch.full_like(value, at) for name, value in made.items()}


def result(graph: Graph, given: dict[str, torch.Tensor]) -> torch.Tensor:
    return evaluate(graph, given, lengths={"n": N, "m": M}, until="A")["A"]


def box_of(kind: str) -> tuple[Operation, Graph, Step]:
    graph = graph_of(kind)
    return OPS[kind], graph, graph.step["A"]


@pytest.mark.parametrize("kind", KINDS)
def test_facts_are_those_of_the_oracle(kind: str) -> None:
    op, graph, step = box_of(kind)
    box = step.box
    assert box is not None
    given = values(graph)
    found = result(graph, given)
    assert [*found.shape] == [{"n": N, "m": M, "h": 2}[leg] for leg in step.legs]
    if op.zero_at_zero(graph, box):
        assert not result(graph, values(graph, at=0.0)).any()
    positive = {name: value.abs() for name, value in given.items()}
    below = op.lower_bound(graph, box, 0)
    assert (result(graph, positive) >= below).all()
    assert (found >= op.lower_bound(graph, box, -torch.inf)).all()
    if op.linear:
        twice = result(graph, {name: 2 * value for name, value in given.items()})
        torch.testing.assert_close(twice, 2 * found)
    assert (box.leg not in step.legs) == (op.reduces or op.makes_leg or op.recurrent or not op.has_leg)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "delta_rule"])
def test_an_entry_depends_on_what_the_operation_says(kind: str) -> None:
    """Along legs that it does not mix, an entry is a function of the operand's entry there alone."""
    op, graph, step = box_of(kind)
    assert step.box is not None
    given, of = values(graph), step.box.operand("of")
    apart = [leg for leg in of.legs if leg in step.legs and leg not in op.legs_mixed(step.box)]
    name = of.name
    for leg in apart:
        given[name] = given[name].detach().requires_grad_()
        found = result(graph, given)
        first = found.select(step.legs.index(leg), 0).sum()
        (gradient,) = torch.autograd.grad(first, given[name])
        others = gradient.narrow(of.legs.index(leg), 1, gradient.shape[of.legs.index(leg)] - 1)
        assert not others.any(), leg


@pytest.mark.parametrize("kind", KINDS)
def test_costs_words_and_code(kind: str) -> None:
    op, graph, step = box_of(kind)
    box = step.box
    assert box is not None
    scene = SizedGraph(graph, {"n": N, "m": M, "p": 5, "h": 2})
    assert op.operations(scene, step, box) >= 0
    assert {*op.saved(box)} <= {"result", "row", "chosen", *dict(box.operands)}
    assert all(count > 0 for count in op.products(scene, step, box).values())
    assert op.words(box)
    assert op.look in ("box", "softmax")
    source = ta.emit_source(design_of(kind), backend="torch")
    assert "A_scores" not in source or op.zero_where_hidden


def test_every_kind_is_here_and_has_a_model_or_is_made_by_rewriting() -> None:
    assert {*BOXES, *MADE} == {*OPS}
    assert sorted(kind for kind, op in OPS.items() if op.model is None) == [*MADE]
    assert all(op.kind == kind and (op.model is None or op.model.key == kind) for kind, op in OPS.items())


def test_the_page_of_the_language_has_every_box_and_map() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs/language-boxes.md").read_text()
    named = {re.match(r"\w+", text)[0] for text in re.findall(r"`([a-z]\w*(?:\([^`]*\))?)[^`]*`", page)}  # type: ignore[index]
    assert {*KINDS, *MAPS} - named == set()


@pytest.mark.parametrize("name", MAPS)
def test_maps_keep_what_their_rows_say(name: str) -> None:
    row = MAPS[name]
    numbers = [2.0] * row.arguments if name != "clamp" else [-0.5, 1.0]
    x = torch.linspace(-6, 6, 241, dtype=F64, requires_grad=True)
    y = row.reference(torch, x, *numbers)
    least = row.least if row.least_of is None else row.least_of(numbers)
    known = y[~y.isnan()]
    assert (known >= least).all()
    zero = row.reference(torch, torch.zeros((), dtype=F64), *numbers)
    assert not row.zero(numbers) or zero == 0
    if row.keeps_sign:
        assert (row.reference(torch, x.detach().clamp(min=0), *numbers) >= 0).all()
    if row.finite:
        assert y.isfinite().all()
        (slope,) = torch.autograd.grad(y.sum(), x)
        assert slope.isfinite().all()
        large = torch.tensor([math.inf, -math.inf], dtype=F64, requires_grad=True)
        (slope,) = torch.autograd.grad(row.reference(torch, large, *numbers), large, torch.zeros(2, dtype=F64))
        assert slope.isnan().all() if row.nan_slope else not slope.any()
    assert row.triton
    assert row.slope
    assert row.saves in ("of", "result", "inner")


@pytest.mark.parametrize("name", MAPS)
def test_code_of_maps_is_the_reference(name: str) -> None:
    """Of entries between 0 and 1, where every map has values and gradients."""
    numbers = "-0.5, 1" if name == "clamp" else ", ".join(["2"] * MAPS[name].arguments)
    design = {"tensornet": 1, "name": "mapped", "legs": {"n": "query", "f": 6}, "inputs": {"x": "n f"}, "output": "y"}
    box = {"map": f"{name}({numbers})" if numbers else name, "of": "x[n f] w[f] -> n f"}
    oracle, module = modules(design | {"weights": {"w": "f"}, "diagram": {"y": box}})
    for layer in (oracle, module):
        torch.nn.init.ones_(layer.w)
    x = [0.1 + 0.8 * torch.rand(2, 5, 6, dtype=F64)]
    same_results(module, oracle, x)
