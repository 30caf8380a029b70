"""Normalised blends of attention maps: each map is applied to the values, and to ones for the row sums.

# A = normalize over m of (b1 near + b2 far);  y = A V Wo
#     ->  A.V = b1 near V + b2 far V;  A.rows = b1 near 1 + b2 far 1;  y = reciprocal(A.rows) A.V Wo
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.attention import NormalizedScores, attentions
from tensornet_attn.graph.distance import with_places
from tensornet_attn.graph.graph import Box, Contraction, Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.ir.arithmetic import Number
from tensornet_attn.ir.steps import without
from tensornet_attn.kernels.implementation import Context, Lowered, Rewriting
from tensornet_attn.plan.distribute import Blend, blend_of
from tensornet_attn.plan.duplicate import duplicated_scores
from tensornet_attn.plan.hoist import hoisted_values
from tensornet_attn.rewrite.change import fresh, read_once, with_steps, with_uses


def rows_of_blends(graph: Graph, context: Context) -> Lowered:
    """Lowers each normalised blend whose maps then all have implementations of their own."""
    rewritten, chosen = graph, dict[str, str]()
    for box in graph.steps:
        trial = _divided(rewritten, rewritten.step[box.name]) if box.name in rewritten.step else None
        if trial is None:
            continue
        others = _others(rewritten, rewritten.step[box.name])
        single = hoisted_values(trial, context).graph  # so that each map has one reader
        duplicated = duplicated_scores(single, context).graph
        if all(context.takes(duplicated, name) for name in attentions(duplicated) if name not in others):
            rewritten, chosen[f"{box.name}.rows"] = (
                single,
                f"the maps of '{box.name}' are applied to ones as well as values",
            )
    return Lowered(rewritten, chosen)


def _others(graph: Graph, box: Step) -> set[str]:
    """The maps that are not part of a blend."""
    blend = _blend(graph, box)
    blended = {*blend.maps} if blend is not None else set[str]()
    return {*attentions(graph)} - blended


def _blend(graph: Graph, box: Step) -> Blend | None:
    """The blend that a box normalises, read as if the box did not exist; None if there is none."""
    reader = read_once(graph, box.name)
    attention = attentions(graph).get(box.name)
    if reader is None or attention is None or not isinstance(attention.weighting, NormalizedScores):
        return None
    of, scores = attention.of, attention.scores
    if scores is None or of.legs != scores.legs or box.legs != of.legs or read_once(graph, of.name) is None:
        return None
    blend = blend_of(_without(graph, box, reader), scores)
    if blend is None or len(blend.reader.values) != 1:
        return None
    map_masks = [{*graph.masks(graph.step[name])} for name in blend.maps]
    alike = all({*graph.step[name].legs} == {*box.legs} for name in blend.maps)
    return blend if alike and all({*graph.masks(box)} <= masks for masks in map_masks) else None


def _without(graph: Graph, box: Step, reader: Step) -> Graph:
    """The graph in which the reader of a box reads the operand of the box."""
    name = attentions(graph)[box.name].of.name
    new = with_uses(reader, lambda use: Use(name, use.legs) if use.name == box.name else use)
    return with_steps(graph, {box.name: [], reader.name: [new]})


def _divided(graph: Graph, box: Step) -> Graph | None:
    blend = _blend(graph, box)
    if blend is None:
        return None
    weighting = attentions(graph)[box.name].weighting
    key, name = str(graph.key), box.name
    ones = Tensor(fresh(graph, f"{name}.{key}"), "constant", (key,), Function("ones"))
    graph = with_places(_without(graph, box, graph.step[blend.reader.step.name]), (ones,))
    legs = without(box.legs, key)
    (value,) = blend.reader.values
    read_legs = legs + without(value.legs, *box.legs)
    eps = weighting.eps if isinstance(weighting, NormalizedScores) else Number(0)
    eps_terms = () if eps == Number(0) else (Term(eps, ()),)
    rows = [replace(term, factors=(*term.factors, ones.use)) for term, _ in blend.terms]
    before = [
        Step(f"{name}.read", Contraction(tuple(_times(term, value) for term, _ in blend.terms)), read_legs),
        Step(f"{name}.sums", Contraction((*rows, *eps_terms)), legs),
    ]
    sums = Use(f"{name}.sums", legs)
    before.append(Step(f"{name}.rows", Box("map", None, (("of", sums),), function=Function("reciprocal")), legs))
    factors = (Use(f"{name}.read", read_legs), Use(f"{name}.rows", legs), *blend.reader.others)
    reader = blend.reader.with_terms([replace(blend.reader.product, factors=factors)])
    return with_steps(graph, {blend.step.name: [], reader.name: [*before, reader]})


def _times(term: Term, value: Use) -> Term:
    return replace(term, factors=(*term.factors, value))


NORMALIZED = Rewriting("rows of a blend", rows_of_blends)
