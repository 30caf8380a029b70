"""Convolutions of a product: the convolution reads the convolved factor and the weight of the taps directly.

# c.of = x[n c] W[w c];  c = conv over n, with w, of c.of     ->     c = conv of x and W
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.diagram import on_pairs, producer_of
from tensornet_attn.graph.graph import Contraction, Graph, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, Arith
from tensornet_attn.ir.steps import legs_in
from tensornet_attn.kernels.implementation import Context, Lowered, Rewriting
from tensornet_attn.ops.conv import convolves, source_of
from tensornet_attn.rewrite.change import fresh, product, read_once, with_steps


def with_weights(graph: Graph, context: Context) -> Lowered:
    """Rewrites each convolution of a product without other readers to read its input and its weight separately."""
    for step in graph.steps:
        if step.box is not None and convolves(step.box) and not step.box.joins:
            graph = _with_weight(graph, step)
    return Lowered(graph)


WITH_WEIGHTS = Rewriting("convolutions", with_weights)


def _with_weight(graph: Graph, step: Step) -> Graph:
    """The graph with the convolution as one of two tensors; unchanged if it is not of a suitable product."""
    box = step.box
    assert box is not None
    use, taps, source = box.of, str(box.other), source_of(graph, box)
    source_step = producer_of(graph, use)
    term = product(source_step)
    if source_step is None or term is None or read_once(graph, source_step.name) is None:
        return graph
    if on_pairs(graph, use.legs) or legs_in(term.factors) - {*source_step.legs} & {*use.legs}:
        return graph  # masks may use the legs of the whole product; or legs would collide
    names = dict(zip(source_step.legs, use.legs, strict=True))
    factors = [factor.renamed(names) for factor in term.factors]
    weights = [factor for factor in factors if taps in factor.legs]
    inputs = [factor for factor in factors if factor not in weights]
    if not weights or source not in legs_in(inputs) or source in legs_in(weights):
        return graph
    x, input_steps = _one(graph, f"{step.name}.x", ONE, inputs, {*step.legs, source} | legs_in(weights))
    weight, weight_steps = _one(
        graph, f"{step.name}.taps", term.coefficient, weights, {*step.legs, taps} | legs_in(inputs)
    )
    separate = replace(step, op=replace(box, operands=(("of", x), ("weight", weight))))
    return with_steps(graph, {source_step.name: [], step.name: [*input_steps, *weight_steps, separate]})


def _one(graph: Graph, name: str, coefficient: Arith, factors: list[Use], legs: set[str]) -> tuple[Use, list[Step]]:
    """A product as one value with those legs that others read, and the step that computes it, if one is needed."""
    if len(factors) == 1 and coefficient == ONE:
        return factors[0], []
    kept_legs = tuple(dict.fromkeys(leg for use in factors for leg in use.legs if leg in legs))
    step = Step(fresh(graph, name), Contraction((Term(coefficient, tuple(factors)),)), kept_legs)
    return Use(step.name, kept_legs), [step]
