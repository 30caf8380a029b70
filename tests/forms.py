"""What each reduction over the key leg is: an attention, a recurrence, or neither, with the reason."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.graph.attention import Attention, ScoreTerm, attentions, split
from tensornet_attn.graph.graph import Graph, Step, Term
from tensornet_attn.graph.recurrence import Recurrence, cumulative, erases, linear, scans, sums
from tensornet_attn.ir.arithmetic import ONE
from tests.random_design import random_design


def reductions(graph: Graph) -> Iterator[tuple[str, Attention | Recurrence | str]]:
    """(name, form) of each box along the key leg and each product that sums it; the reason if it has no form."""
    for step in graph.steps:
        if _along_keys(graph, step):
            yield step.name, _form_of(graph, step)
        for i, term in enumerate(step.contraction.terms if step.contraction is not None else (), 1):
            if graph.key not in step.legs and any(graph.key in use.legs for use in term.factors):
                place = step.name if len(step.contraction.terms) == 1 else f"{step.name}, term {i}"  # type: ignore[union-attr]
                yield place, _form_of_term(graph, step, term)


def randoms(count: int) -> Iterator[Graph]:
    """The graphs of the valid ones of so many random designs."""
    for seed in range(count):
        data = random_design(random.Random(seed))
        if not any(problem.severity == "error" for problem in ta.check(data)):
            yield build(ta.load(data))


def recurrences(graph: Graph) -> list[Recurrence]:
    """The recurrences of boxes along the key leg."""
    boxes = (_form_of(graph, step) for step in graph.steps if _along_keys(graph, step))
    forms = (linear(form) if isinstance(form, Attention) else form for form in boxes)
    return [form for form in forms if isinstance(form, Recurrence)]


def _along_keys(graph: Graph, step: Step) -> bool:
    """Whether a box acts as a reduction along the key leg; rope runs along it without reducing."""
    box = step.box
    whole = box is not None and box.leg is not None and box.leg == graph.key
    return whole and (graph.key not in step.legs or step.box.other is None or step.name in attentions(graph))  # type: ignore[union-attr]


def _form_of(graph: Graph, step: Step) -> Attention | Recurrence | str:
    """The form of a box along the key leg, or the reason why it has none."""
    if step.name in attentions(graph):
        return attentions(graph)[step.name]
    assert step.box is not None
    if erases(step):
        roles = dict(step.box.operands)
        query, key, value = (roles[role] for role in ("query", "key", "value"))
        heads = tuple(leg for leg in step.legs if leg in key.legs)
        own = tuple(leg for leg in step.legs if leg not in (*key.legs, graph.query))
        term = ScoreTerm(ONE, (query,), (key,), width=tuple(leg for leg in key.legs if leg not in (*heads, graph.key)))
        return Recurrence(step, (term,), value, heads, (), own)
    if step in sums(graph):
        return cumulative(graph, step)
    if scans(step) or step.box.kind == "sum":  # the same for all queries
        return Recurrence(step, (ScoreTerm(ONE, key=(step.box.operand("of"),)),))
    return f"a '{step.box.kind}' over all keys is not a sum over keys"


def _form_of_term(graph: Graph, step: Step, term: Term) -> Attention | Recurrence | str:
    parts = split(graph, term)
    if not parts.pairwise:
        return Recurrence(step, (parts,))
    found = [name for use in parts.pairwise for name in _maps_in(graph).get(use.name, ())]
    if not found:
        return f"'{parts.pairwise[0].name}' depends on both query and key, and no box over the keys weights it"
    return attentions(graph)[found[0]]


def _maps_in(graph: Graph) -> Mapping[str, tuple[str, ...]]:
    """Maps each step of queries x keys to the attention maps that it is computed from."""
    pair, found = {graph.query, graph.key}, dict[str, tuple[str, ...]]()
    for step in graph.steps:
        if step.name in attentions(graph):
            found[step.name] = (step.name,)
        elif pair <= {*step.legs}:
            each = [term.factors for term in step.contraction.terms] if step.contraction else [step.op.uses]
            maps = [[name for use in uses if pair <= {*use.legs} for name in found.get(use.name, ())] for uses in each]
            found |= {step.name: tuple(dict.fromkeys(name for own in maps for name in own))} if all(maps) else {}
    return found
