"""Hoisted values: the product of an attention map and its values is computed once, so that each map has one reader.

# y = g[h] A V Wo + A V Wo     ->     A.V = A V;  y = g[h] A.V Wo + A.V Wo
# y = A V Wo + A U Wu          ->     A.V = A V;  A.copy = A;  A.U = A.copy U;  y = A.V Wo + A.U Wu
# s = sum over m of A          ->     s = A 1[m], if linear attention then computes A
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from tensornet_attn.graph.attention import attentions, readers_of
from tensornet_attn.graph.diagram import on_pairs
from tensornet_attn.graph.distance import with_places
from tensornet_attn.graph.graph import Contraction, Graph, Step, Tensor, Term, Use
from tensornet_attn.graph.recurrence import ONES, sums
from tensornet_attn.ir.steps import with_terms, without
from tensornet_attn.kernels.implementation import Context, Lowered, Rewriting
from tensornet_attn.kernels.linear import LINEAR
from tensornet_attn.plan.duplicate import duplicated_scores
from tensornet_attn.rewrite.change import draws, fresh, kept, with_steps


def hoisted_values(graph: Graph, context: Context) -> Lowered:
    """Hoists the products of maps, or blends of maps, with their values; copies a map for each of several values.

    It makes no copies if a copy would be stored, or if dropout makes them differ.
    """
    hoisted = graph
    for box in graph.steps:
        with_ones = _with_ones(hoisted, box)
        values = list(_values(with_ones, box, 2 if with_ones is hoisted else 1))
        if len(values) == 1 and with_ones is hoisted:
            hoisted = _hoisted(hoisted, box, box.name, values[0])
        elif values and box.name in attentions(graph) and not draws(hoisted, box):
            trial, names = _for_each(with_ones, box, values)
            duplicated = duplicated_scores(trial, context).graph
            takes = context.takes if with_ones is hoisted else partial(LINEAR.takes, context=context)
            hoisted = trial if all(takes(duplicated, name) for name in names) else hoisted
    return Lowered(hoisted)


HOISTS = Rewriting("hoisted values", hoisted_values)


def _with_ones(graph: Graph, box: Step) -> Graph:
    """The graph in which sums of a map over the keys are its products with ones."""
    map_use, key = box.use, str(graph.key)
    ones = Tensor(fresh(graph, f"{box.name}.{key}"), "constant", (key,), ONES)
    product = Contraction.of(map_use, ones.use)
    readers = {
        step.name: [replace(step, op=product)]
        for step in (sums(graph) if box.name in attentions(graph) else ())
        if step.uses == (map_use,) and {*graph.masks(step)} <= {*graph.masks(box)}
    }
    return with_steps(with_places(graph, (ones,)), readers) if readers else graph


def _values(graph: Graph, box: Step, least: int) -> dict[Use, None]:
    """The values of a map's readers, if at least that many products read it, all in the same way; otherwise empty."""
    is_map = on_pairs(graph, box.legs) and not kept(graph, box.name)
    readers = readers_of(graph, box.name) if is_map else ()
    if len(readers) < least or any(graph.key in reader.step.legs or reader.term is None for reader in readers):
        return {}
    alike = all(reader.use.legs == box.legs and len(reader.values) == 1 for reader in readers)
    values = dict.fromkeys(use for reader in readers for use in reader.values if use.name != box.name)
    return values if alike and not any(graph.query in use.legs for use in values) else {}


def _for_each(graph: Graph, box: Step, values: Iterable[Use]) -> tuple[Graph, tuple[str, ...]]:
    """The graph with a copy of the map for each of the values, and the names of the copies."""
    first, *others = values
    graph, names = _hoisted(graph, box, box.name, first), [box.name]
    for value in others:
        names.append(fresh(graph, f"{box.name}.copy"))
        copy = replace(graph.step[box.name], name=names[-1])
        graph = with_steps(graph, {box.name: [graph.step[box.name], copy]})
        graph = _hoisted(graph, box, names[-1], value)
    return graph, tuple(names)


def _hoisted(graph: Graph, box: Step, name: str, value: Use) -> Graph:
    """The graph with a step for the product of the map `name` and a value, before its first reader."""
    legs = without(box.legs, graph.key)
    legs += without(value.legs, *box.legs)
    map_use, product = box.use, fresh(graph, f"{box.name}.{value.name.replace('.', '_')}")
    first = Step(product, Contraction.of(Use(name, box.legs), value), legs)
    steps = list[Step]()
    for step in graph.steps:
        terms = step.terms
        if any({map_use, value} <= {*term.factors} for term in terms):
            steps += [] if first in steps else [first]
            step = with_terms(step, (_reading(term, map_use, value, Use(product, legs)) for term in terms))
        steps.append(step)
    return replace(graph, steps=tuple(steps))


def _reading(term: Term, map_use: Use, value: Use, product: Use) -> Term:
    if not {map_use, value} <= {*term.factors}:
        return term
    return replace(term, factors=tuple(product if use == map_use else use for use in term.factors if use != value))
