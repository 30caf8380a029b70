"""Blends of attention maps whose rows are divided by their sums: the maps read the values, and ones for the sums.

# A = normalize over m of (b1 near + b2 far);  y = A V Wo
#     ->  A.V = b1 near V + b2 far V;  A.rows = b1 near 1 + b2 far 1;  y = reciprocal(A.rows) A.V Wo
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.model import Box, Contraction, Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.plan.distribute import Blend, blend_of, still_made
from tensornet_attn.plan.duplicate import lower_duplicates
from tensornet_attn.plan.hoist import lower_hoists
from tensornet_attn.plan.lowering import Lowered
from tensornet_attn.rewrite.change import ATTENTION_BOXES, fresh, read_once, with_steps, with_terms
from tensornet_attn.rewrite.distance import with_places
from tensornet_attn.spec.arithmetic import Number

NORMALIZED = "rows of a blend"


def lower_normalized(graph: Graph, sizes: Mapping[str, int], device: Device) -> Lowered:
    """Every normalized blend of maps, where each of these can then be lowered by itself."""
    made, chosen = graph, dict[str, str]()
    for box in graph.steps:
        trial = _divided(made, made.step[box.name]) if box.name in made.step else None
        if trial is None:
            continue
        others = _others(made, made.step[box.name])
        once = lower_hoists(trial, sizes, device).graph  # each map reads ones by itself, whoever else could read both
        apart = lower_duplicates(once, sizes, device).graph
        maps = tuple(step.name for step in apart.steps if _is_map(apart, step) and step.name not in others)
        if not still_made(apart, maps, sizes, device):
            made, chosen[f"{box.name}.rows"] = once, f"the maps that '{box.name}' blends read ones as well as values"
    return Lowered(made, chosen)


def _is_map(graph: Graph, step: Step) -> bool:
    return isinstance(step.op, Box) and step.op.kind in ATTENTION_BOXES and graph.masked(step)


def _others(graph: Graph, box: Step) -> set[str]:
    """Maps that a blend does not speak of."""
    blend = _blend(graph, box)
    own = {*blend.maps} if blend is not None else set[str]()
    return {step.name for step in graph.steps if _is_map(graph, step)} - own


def _blend(graph: Graph, box: Step) -> Blend | None:
    """The blend that a box divides by its rows: read as if the box were not there."""
    reader = read_once(graph, box.name)
    if reader is None or not isinstance(box.op, Box) or box.op.kind != "normalize" or not graph.masked(box):
        return None
    of = box.op.operand("of")
    inner = graph.step.get(of.name)
    if inner is None or of.legs != inner.legs or box.legs != of.legs or read_once(graph, of.name) is None:
        return None
    blend = blend_of(_without(graph, box, reader), inner)
    if blend is None or len(blend.values) != 1 or not isinstance(blend.reader.op, Contraction):
        return None
    hidden = [{*graph.masks(graph.step[name])} for name in blend.maps]
    alike = all({*graph.step[name].legs} == {*box.legs} for name in blend.maps)
    return blend if alike and all({*graph.masks(box)} <= masks for masks in hidden) else None


def _without(graph: Graph, box: Step, reader: Step) -> Graph:
    """The graph in which the reader reads what the box divides."""
    name = box.op.operand("of").name  # type: ignore[union-attr]
    terms = [
        replace(term, factors=tuple(Use(name, use.legs) if use.name == box.name else use for use in term.factors))
        for term in (reader.op.terms if isinstance(reader.op, Contraction) else ())
    ]
    return with_steps(graph, {box.name: [], reader.name: [with_terms(reader, terms) if terms else reader]})


def _divided(graph: Graph, box: Step) -> Graph | None:
    blend = _blend(graph, box)
    if blend is None or not isinstance(box.op, Box):
        return None
    key, name = str(graph.key), box.name
    ones = Tensor(fresh(graph, f"{name}.{key}"), "constant", (key,), Function("ones"))
    graph = with_places(_without(graph, box, graph.step[blend.reader.name]), (ones,))
    legs = tuple(leg for leg in box.legs if leg != key)
    (value,) = blend.values
    own = legs + tuple(leg for leg in value.legs if leg not in box.legs)
    eps = box.op.number("eps")
    added = () if eps == Number(0) else (Term(eps, ()),)
    rows = [replace(term, factors=(*term.factors, Use(ones.name, ones.legs))) for term, _ in blend.terms]
    before = [
        Step(f"{name}.read", Contraction(tuple(_times(term, value) for term, _ in blend.terms)), own),
        Step(f"{name}.sums", Contraction((*rows, *added)), legs),
    ]
    of = Use(f"{name}.sums", legs)
    before.append(Step(f"{name}.rows", Box("map", None, (("of", of),), function=Function("reciprocal")), legs))
    terms = list(blend.reader.op.terms)  # type: ignore[union-attr]
    outer = terms[blend.place]
    rest = tuple(use for use in outer.factors if use.name != blend.step.name and use not in blend.values)
    new = (Use(f"{name}.read", own), Use(f"{name}.rows", legs), *rest)
    terms[blend.place] = Term(outer.coefficient, new)
    reader = with_terms(blend.reader, terms)
    return with_steps(graph, {blend.step.name: [], reader.name: [*before, reader]})


def _times(term: Term, value: Use) -> Term:
    return replace(term, factors=(*term.factors, value))
