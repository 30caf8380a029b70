"""The counts against torch's own: FLOPs of every product of every shipped design, and what autograd keeps of mhsa."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from tensornet_attn.cost import cost, sizes_at
from tensornet_attn.cost.order import split_best
from tensornet_attn.cost.scene import SizedGraph
from tensornet_attn.cost.work import macs
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Box, Contraction
from tensornet_attn.graph.pairs import batched, split_products, summed
from tensornet_attn.ops import OPS
from tensornet_attn.spec import load
from tensornet_attn.spec.library import names
from tests.memory import kept

BATCH = 3


def einsum(graph, step, values):
    """A product of one or two uses as one torch.einsum; `values` holds a tensor [batch..., legs] for each use."""
    number = {leg.name: i for i, leg in enumerate(graph.legs)}
    arguments = []
    for use, value in zip(step.op.uses, values, strict=True):
        arguments += [value, [..., *(number[leg] for leg in use.legs)]]
    return torch.einsum(*arguments, [..., *(number[leg] for leg in step.legs)])


def counted(graph, sizes):
    """torch's FLOPs of each product of a primitive graph, run on tensors that have shapes alone.

    A sum over one entry is no product to torch: such legs get 2 here, and half of what it counts then.
    """
    many = batched(graph)
    for step in graph.steps:
        if not isinstance(step.op, Contraction) or len(step.op.terms) > 1 or not step.op.uses:
            continue
        single = [leg for leg in summed(step) if sizes[leg] == 1] if len(step.op.uses) == 2 else []
        wide = dict(sizes) | dict.fromkeys(single, 2)
        shapes = [[BATCH] * (use.name in many) + [wide[leg] for leg in use.legs] for use in step.op.uses]
        with FlopCounterMode(display=False) as counter:
            einsum(graph, step, [torch.empty(shape, device="meta") for shape in shapes])
        yield step.name, counter.get_total_flops() // 2 ** len(single)


@pytest.mark.parametrize("name", names())
def test_flops_are_those_that_torch_counts(name):
    design = build(load(name))
    lengths = {leg: length for leg, length in ((design.query, 48), (design.key, 48)) if leg}
    sizes = sizes_at(design, lengths)
    for graph in (split_products(design), split_best(design, sizes)[0]):
        steps = dict(counted(graph, sizes))
        scene = SizedGraph(graph, sizes, BATCH)
        assert {s.name: 2 * macs(scene, s) for s in graph.steps if s.name in steps} == steps
        rule = sum(2 * macs(scene, s) for s in graph.steps if isinstance(s.op, Box) and s.op.kind == "delta_rule")
        assert cost(graph, lengths, BATCH).flops == sum(steps.values()) + rule


def run(scene, tensors):
    """Products and softmax step by step in plain torch: enough for mhsa."""
    values = dict(tensors)
    for step in scene.graph.steps:
        operands = [values[use.name] for use in step.op.uses]
        if isinstance(step.op, Contraction):
            values[step.name] = einsum(scene.graph, step, operands)
        else:
            values[step.name] = torch.softmax(operands[0] * scene.number(step.op.number("scale")), -1)
    return values[scene.graph.output]


def test_saved_floats_of_mhsa_are_those_that_autograd_keeps():
    graph = split_products(build(load("mhsa", legs={"f": 32, "h": 4})))
    lengths = {"n": 7, "m": 7}
    scene = SizedGraph(graph, sizes_at(graph, lengths), BATCH)
    tensors = {}
    for tensor in graph.tensors:
        shape = [BATCH] * (tensor.role == "input") + [scene.sizes[leg] for leg in tensor.legs]
        tensors[tensor.name] = torch.randn(shape, requires_grad=True)
    tensors["memory"] = tensors["x"]  # as where it is not given
    weights = [tensors[tensor.name] for tensor in graph.of_role("weight")]
    assert kept(lambda: run(scene, tensors), weights) // 4 == cost(graph, lengths, BATCH).total.saved_floats


ROWS, WIDTH = 6, 5
OPERATIONS = [  # rule, operation of torch on [ROWS, WIDTH]
    (OPS["softmax"].saves, lambda x: x.softmax(-1)),
    (OPS["logsumexp"].saves, lambda x: x.logsumexp(-1)),
    (OPS["max"].saves, lambda x: x.amax(-1)),
    (OPS["sum"].saves, lambda x: x.sum(-1)),
    (OPS["mean"].saves, lambda x: x.mean(-1)),
    (OPS["normalize"].saves, lambda x: x / x.sum(-1, keepdim=True)),
    (OPS["layernorm"].saves, lambda x: functional.layer_norm(x, (WIDTH,))),
    *((("result",), function) for function in (torch.exp, torch.tanh, torch.sigmoid, torch.sqrt, torch.relu)),
    (("result",), lambda x: 30 * torch.tanh(x / 30)),
    *(
        (("of",), function)
        for function in (functional.gelu, functional.silu, torch.log, torch.square, torch.abs, functional.softplus)
    ),
]


@pytest.mark.parametrize("at", range(len(OPERATIONS)))
def test_saved_floats_of_a_box_are_those_that_autograd_keeps(at):
    rule, operation = OPERATIONS[at]
    x = torch.rand(ROWS, WIDTH, requires_grad=True)
    reduces = operation(x).ndim == 1
    floats = {"of": ROWS * WIDTH, "row": ROWS, "result": ROWS if reduces else ROWS * WIDTH}
    assert kept(lambda: operation(x)) // 4 == sum(floats[part] for part in rule)
