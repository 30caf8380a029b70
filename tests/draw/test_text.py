"""The text form is exact: every parameter, every leg, one line a step."""

from typing import Any

import pytest

from tensornet_attn.draw import to_text
from tensornet_attn.draw.text import WIDTH, declaration_lines, step_lines
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Graph
from tensornet_attn.spec import load
from tensornet_attn.spec.library import names as list_designs

PLAIN = """\
plain: scores, then values

legs      n query, m key, f = 512, h head = 8, d = f / h = 64
inputs    x[n f]
weights   Wq[f h d], Wk[f h d], Wv[f h d], Wo[h d f]

Q[n h d] = x[n f] Wq[f h d]
K[m h d] = x[m f] Wk[f h d]
V[m h d] = x[m f] Wv[f h d]
A[h n m] = softmax over m of d ** -0.5 * Q[n h d] K[m h d]
y[n f]   = A[h n m] V[m h d] Wo[h d f]

output y
"""


def test_a_whole_diagram(plain: Graph) -> None:
    assert to_text(plain, about="scores,\nthen values") == PLAIN


SCORES = "Q[n h d] K[m h d]"
BOXES: list[tuple[Any, str]] = [
    ({"softmax": "m", "of": f"{SCORES} -> h n m"}, f"softmax over m of {SCORES}"),
    (
        {"softmax": "m", "scale": "d - 3", "dropout": 0.1, "mask": ["causal", "band(2)"], "of": f"{SCORES} -> h n m"},
        f"softmax over m, dropout = 0.1, causal, band(2) of (d - 3) * {SCORES}",
    ),
    (
        {"softmax": "m", "scale": 0.5, "of": f"-(2 * d) * {SCORES} + 1 - 0.5 * Q[n h d] Q[n h d] -> h n m"},
        f"softmax over m of 0.5 * (-(2 * d) * {SCORES} + 1 - 0.5 * Q[n h d] Q[n h d])",
    ),
    (
        {"normalize": "m", "eps": 0.001, "of": {"map": "softplus", "of": f"{SCORES} -> h n m"}},
        f"normalize over m, eps = 0.001 of softplus({SCORES})",
    ),
    (
        {"softmax": "m", "scale": 2, "of": {"keep": "m", "mask": "causal", "of": f"{SCORES} -> h n m"}},
        f"softmax over m of 2 * (keep over m, causal of {SCORES})",
    ),
    ({"map": "softcap(30)", "of": f"{SCORES} -> h n m"}, f"softcap(30)({SCORES})"),
    ({"dropout": 0.25, "of": f"{SCORES} -> h n m"}, f"dropout, p = 0.25 of {SCORES}"),
]


@pytest.mark.parametrize(("box", "line"), BOXES)
def test_boxes_are_folded_into_a_line(graph_of: Any, box: Any, line: str) -> None:
    assert step_lines(graph_of(diagram={"A": box}))[3] == f"A[h n m] = {line}"


def test_a_box_that_changes_legs_says_its_operands_legs(graph_of: Any) -> None:
    relative = {"rel_shift": "p", "to": "m", "of": "Q[n h d] R[p h d] + 1 -> h n p"}
    graph = graph_of(
        legs={"p": "relative 4"},
        weights={"R": "p h d", "Wk": None},
        diagram={"K": None, "A": {"softmax": "m", "of": relative}},
    )
    line = next(line for line in step_lines(graph) if line.startswith("A"))
    assert line == "A[h n m] = softmax over m of rel_shift over p to m of (Q[n h d] R[p h d] + 1 -> h n p)"
    assert "p relative 4" in "\n".join(declaration_lines(graph))


def test_a_reduction_and_a_choice(graph_of: Any) -> None:
    gate = {"topk": "h", "k": "k", "of": "x[n f] G[f h] -> n h", "by": "x[n f] B[f h] -> n h"}
    diagram = {"A": None, "y": None, "G1": gate, "A2": {"softmax": "m", "of": f"{SCORES} -> h n m"}}
    diagram |= {"y2": "G1[n h] A2[h n m] V[m h d] Wo[h d f] -> n f"}
    graph = graph_of(output="y2", settings={"k": 2}, weights={"G": "f h", "B": "f h"}, diagram=diagram)
    line = next(line for line in step_lines(graph) if line.startswith("G1"))
    assert line == "G1[n h]   = topk over h, k = 2, of (x[n f] G[f h] -> n h), by (x[n f] B[f h] -> n h)"


def test_what_a_line_cannot_hold_gets_lines_of_its_own(graph_of: Any) -> None:
    long = " + ".join(f"{i} * Q[n h d] K[m h d]" for i in range(2, 7))
    lines = step_lines(graph_of(diagram={"A": {"softmax": "m", "scale": 2, "of": f"{long} -> h n m"}}))
    assert lines[3] == f"A.of[h n m] = {long}"
    assert lines[4] == "A[h n m]    = softmax over m of 2 * A.of[h n m]"


@pytest.mark.parametrize("name", list_designs())
def test_shipped_designs_fit_the_page(name: str) -> None:
    graph = build(load(name))
    lines = step_lines(graph)
    assert sum(not step.nested for step in graph.steps) <= len(lines) <= len(graph.steps)
    assert all(len(line) <= WIDTH + 20 for line in declaration_lines(graph))
    text = to_text(graph)
    assert all(tensor.name + "[" in text for tensor in graph.tensors)
