"""Relative positions after a product: the product with a table is shifted, instead of a table for each pair."""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.diagram import operation_of, producer_of
from tensornet_attn.graph.graph import Contraction, Graph, Step, Use
from tensornet_attn.ir.steps import legs_in, with_terms, within
from tensornet_attn.rewrite.change import fresh, read_once, settled, with_steps
from tensornet_attn.rewrite.engine import Rule


def shift_after_product(graph: Graph, step_name: str) -> Graph | None:
    """D = shift(T[p]) over n and m;  Z = .. + c * D X.. R..   ->   Z = .. + c * shift({T X..}) R..

    X are the factors that share the legs that Z sums; they have no key leg, or no query leg: the table of the products
    then is one of queries, or of keys. The rule saves a tensor of n x m elements for each entry of the summed legs, and
    multiplies by each entry of the table once.
    """
    step = graph.step[step_name]
    for at, term in enumerate(step.terms):
        for use in term.factors:
            source = producer_of(graph, use)
            if source is None or source.box is None or not operation_of(source).makes_leg:
                continue
            if use.legs == source.legs and read_once(graph, use.name) is not None:
                for near, far in ((graph.query, graph.key), (graph.key, graph.query)):
                    after = _shifted(graph, step, at, source, str(near), str(far))
                    if after is not None:
                        return after
    return None


def _shifted(graph: Graph, step: Step, at: int, source: Step, near: str, far: str) -> Graph | None:
    """The graph in which the products of a table, with rows for `near` or without, are shifted to `far`."""
    box, term = source.box, step.terms[at]
    assert box is not None
    table, relative = box.of, str(box.leg)
    rest = [use for use in term.factors if use.name != source.name]
    if far in table.legs or not {near, far} <= {*step.legs} or relative in {*step.legs} | legs_in(rest):
        return None
    kept = {*step.legs, relative} | legs_in(use for use in rest if far in use.legs)
    summed, factors = {*table.legs} - kept, list[Use]()
    while more := [use for use in rest if use not in factors and {*use.legs} & summed]:
        factors += more
        summed |= legs_in(more) - kept
    if not factors:
        return None  # no sum is saved
    read = dict.fromkeys((*step.legs, *(leg for use in (table, *factors) for leg in use.legs)))
    left = legs_in((table, *factors)) - summed
    others = within(read, left - {near, relative})
    rows = (near,) if near in left else ()
    name = fresh(graph, f"{step.name}.{source.name}")
    of = Step(f"{name}.of", Contraction.of(table, *factors), (*others, *rows, relative))
    shift = replace(box, operands=(("of", of.use),), other=far)
    moved = Step(name, shift, (*others, near, far))
    terms = list(step.terms)
    terms[at] = replace(term, factors=(Use(name, moved.legs), *(use for use in rest if use not in factors)))
    return settled(graph, with_steps(graph, {step.name: [of, moved, with_terms(step, terms)], source.name: []}))


SHIFT = Rule(
    "shift after the product",
    "D = shift(T[p]); Z = .. + c * D X.. .. -> Z = .. + c * shift({T X..}) ..",
    shift_after_product,
    "the legs of a box change, and with them the uses of it",
)
