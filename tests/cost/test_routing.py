"""The multiply-adds that routing leaves, against those whose factors and whose effect are not zero in a real run."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost import cost, device_named, sizes_at
from tensornet_attn.cost.order import split_best
from tensornet_attn.cost.routing import Routing, routed_products
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.work import work_of
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Box, Contraction
from tensornet_attn.graph.pairs import split_products
from tensornet_attn.plan.make import make_plan
from tensornet_attn.reference import evaluate
from tensornet_attn.spec import load

ROUTED = [
    ("epa", {"f": 12, "h": 2, "d": 4}),
    ("epa_vkqo", {"f": 12, "h": 2, "d": 4}),
    ("epa_rope", {"f": 12, "h": 2, "d": 4}),
    ("moa", {"f": 12, "e": 10, "d": 3}),
    ("moa_sigmoid", {"f": 12, "e": 10, "d": 3}),
]


def orders(graph, sizes):
    return (split_products(graph), split_best(graph, sizes, device_named("flops"))[0])


def before_topk(graph):
    """Steps that a choice is made from: all their entries are needed, also those without a gradient."""
    choices = [step.op for step in graph.steps if isinstance(step.op, Box) and step.op.kind == "topk"]
    found = {use.name for op in choices for use in op.uses}
    for step in reversed(graph.steps):
        if step.name in found:
            found |= {use.name for use in step.op.uses}
    return found


def run(graph, lengths):
    """Random values of all tensors and steps, and the gradient of the output's random sum by step.

    Small values: a saturated softmax has gradients that round to zero.
    """
    torch.manual_seed(0)
    tensors = {
        tensor.name: 0.3
        * torch.randn([graph.leg[leg].size or lengths[leg] for leg in tensor.legs], dtype=torch.float64)
        for tensor in graph.tensors
        if tensor.role in ("input", "weight")
    }
    values = evaluate(graph, {name: value.requires_grad_() for name, value in tensors.items()}, lengths=lengths)
    output = values[graph.output]
    steps = [step.name for step in graph.steps]
    loss = (output * torch.randn_like(output)).sum()
    return values, dict(zip(steps, torch.autograd.grad(loss, [values[name] for name in steps]), strict=True))


def needed(graph, step, values, gradient):
    """Multiply-adds of a product of two whose factors are not zero and whose result has an effect."""
    number = {leg.name: i for i, leg in enumerate(graph.legs)}
    arguments = []
    for legs, value in [*((use.legs, values[use.name]) for use in step.op.uses), (step.legs, gradient)]:
        arguments += [(value != 0).double(), [number[leg] for leg in legs]]
    return int(torch.einsum(*arguments, []))


@pytest.mark.parametrize(("name", "legs"), ROUTED, ids=[name for name, _ in ROUTED])
@pytest.mark.parametrize("order", [0, 1])
def test_routed_products_are_those_that_matter(name, legs, order):
    lengths = {"n": 4, "m": 4}
    design = build(load(name, legs))
    graph = orders(design, sizes_at(design, lengths))[order]
    scene, routing = SizedGraph(graph, sizes_at(graph, lengths)), Routing.of(graph)
    values, gradients = run(graph, lengths)
    checked = 0
    for step in graph.steps:
        if isinstance(step.op, Contraction) and work_of(scene, step).products and step.name not in before_topk(graph):
            assert routed_products(scene, step, routing)[1] == needed(graph, step, values, gradients[step.name])
            checked += 1
    assert checked >= 5


def formula(source, planned=False, **changes):
    design = build(load(source, **changes))
    return cost(make_plan(design).schedule if planned else design, {"n": 8, "m": 8}).routed_formula


def test_formulas_name_the_setting():
    gates = "m f h e + n f h e"
    products = "n f h d + m f h d + m f h k d + m h k d + 2 n m h d + n f h k d + n f h k"
    assert formula("epa", planned=True) == f"{gates} + {products}"
    assert formula("moa") == "n f e + 2 n f k d + 2 m f d + 2 n m k d"
    assert formula("sigma_moe") == "n f e + 2 n f k l"


@pytest.mark.parametrize("name", ["mhsa", "mgk", "transformer_xl", "fmm_fast_weight1"])
def test_without_topk_nothing_is_routed(name):
    found = cost(build(load(name)), {"n": 8, "m": 8}, batch=3)
    assert (found.routed_formula, found.total.routed_macs) == (found.formula, found.macs)


def test_all_experts_are_no_routing():
    assert formula("epa", settings={"k": 5}) == formula("epa", settings={"k": 5}).replace("k", "e")


def test_the_routed_count_is_batched_and_reported():
    report = ta.cost("sigma_moe", n=8, batch=3)
    written = report.written
    assert written.total.routed_macs == 3 * 8 * 512 * (16 + 2 * 4 * 128)
    assert (
        f"  if only the entries chosen by topk are computed: 12.8 M MACs: {written.routed_formula}" in report.to_text()
    )
    planned = report.as_dict()["planned"]["total"]["routed_macs"]
    assert planned == 3 * 8 * 512 * (16 + 2 * 4 * 128 + 4)  # and the sum with gates


CHOICE = {
    "tensornet": 1,
    "name": "choice",
    "legs": {"n": "query", "f": 4, "e": "head 6", "d": 3},
    "inputs": {"x": "n f"},
    "weights": {"S": "f e", "W": "f e d", "U": "e d f"},
    "output": "y",
}
LOGITS, HIDDEN, OUTPUT = "n f e", "n f e d", "n f (2) d"
MIXING = [  # further steps between H and the gate, the output, the formula
    ({}, "G[n e] H[n e d] U[e d f] -> n f", f"{LOGITS} + 2 {OUTPUT}"),
    ({"T": {"map": "tanh", "of": "H"}}, "G[n e] T[n e d] U[e d f] -> n f", f"{LOGITS} + 2 {OUTPUT}"),
    ({"T": {"softmax": "d", "of": "H"}}, "G[n e] T[n e d] U[e d f] -> n f", f"{LOGITS} + 2 {OUTPUT}"),
    # a softmax over e, a use without the gate, and another position each need all entries
    ({"T": {"softmax": "e", "of": "H"}}, "G[n e] T[n e d] U[e d f] -> n f", f"{LOGITS} + {HIDDEN} + {OUTPUT}"),
    ({}, "G[n e] H[n e d] U[e d f] + H[n e d] U[e d f] -> n f", f"{LOGITS} + 2 {HIDDEN} + {OUTPUT}"),
    ({"T": {"max": "n", "of": "H"}}, "G[n e] T[e d] U[e d f] -> n f", f"{LOGITS} + {HIDDEN} + {OUTPUT}"),
    # two choices along one leg: the smaller one counts
    ({"F": {"topk": "e", "k": 1, "of": "x[n f] S[f e] -> n e"}}, "G[n e] F[n e] H[n e d] U[e d f] -> n f", None),
]


@pytest.mark.parametrize(("steps", "output", "expected"), MIXING)
def test_what_a_choice_passes_through(steps, output, expected):
    gate = {"topk": "e", "k": 2, "of": "x[n f] S[f e] -> n e"}
    diagram = {"G": gate, "H": "x[n f] W[f e d] -> n e d"} | steps | {"y": output}
    expected = expected or f"2 {LOGITS} + 2 n f (1) d"
    found = cost(build(load(CHOICE | {"diagram": diagram})), {"n": 8})
    assert sorted(found.routed_formula.split(" + ")) == sorted(expected.split(" + "))


@pytest.mark.parametrize("name", ["head_gated", "moa"])
def test_kernels_need_the_entries_that_their_steps_need(name):
    """A plan in kernels needs no more than the diagram as written."""
    graph = build(load(name), causal=True)
    written, planned = (cost(one, {"n": 64, "m": 64}) for one in (graph, make_plan(graph, "triton").schedule))
    assert any(step.kernel for step in make_plan(graph, "triton").schedule.steps)
    assert planned.total.routed_macs == written.total.routed_macs
