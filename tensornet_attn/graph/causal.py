"""Checks that no later key reaches a query of a causal design in spite of the masks.

A value at query n and key m may depend on positions up to the later of the two, and each step preserves this. A sum
over m must therefore exclude later keys. The check derives two facts for each value: `data` (it depends on an input
of the call) and `zero` (it is exactly zero at keys after the query). For a key mask, the check derives the same facts;
`zero` then means that a value is exactly zero at masked keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.graph import Box, Graph, Step, Term, Use
from tensornet_attn.graph.signs import nonnegative
from tensornet_attn.graph.visibility import visible_areas
from tensornet_attn.ir.areas import EVERYWHERE, Areas, union
from tensornet_attn.ops import OPS

Acts = set[str | None]  # legs


@dataclass(frozen=True)
class Fact:
    data: bool = False
    zero: bool = False


class Leak(Exception):
    """A step through which a later key reaches a query; `verb` is what the step does along the sequence leg `leg`."""

    def __init__(self, step: str, verb: str, leg: str):
        super().__init__(step, verb, leg)
        self.step, self.verb, self.leg = step, verb, leg


def causal_leaks(graph: Graph) -> list[tuple[str, str]]:
    """(step, message) pairs, empty for a causal design. Steps that only update a state are exempt."""
    facts = {tensor.name: Fact(tensor.role == "input") for tensor in graph.tensors}
    needed, leaks = behind(graph, [graph.output]), []
    positive = nonnegative(graph)
    for step in graph.steps:
        try:
            facts[step.name] = _fact(graph, step, facts, positive, {graph.query, graph.key})
        except Leak as leak:
            facts[step.name] = Fact(zero=True)  # reported once: its users are not reported
            if step.name in needed:
                leaks.append((step.name, _sentence(graph, leak)))
    output = facts[graph.output]
    if output.data and not output.zero and graph.key in graph.legs_of(graph.output):
        what = f"the output '{graph.output}' has the key leg '{graph.key}' and is not zero at later keys"
        leaks.append((graph.output, f"{what}, so a later position reaches a query."))
    return leaks


def looks_back(graph: Graph) -> bool:
    """Whether all sums over keys exclude later keys for all values of the tensors, constants included."""
    return graph.causal and graph.key not in graph.legs_of(graph.output) and not _leaks(graph)


def areas_seen(graph: Graph) -> Areas:
    """Areas that contain all pairs in which a key affects a query, for all values of the tensors."""
    boxes = [step for step in graph.steps if step.box is not None]
    masked = [step for step in boxes if graph.masked(step) and graph.query in step.uses[0].legs]
    recurrent = any(OPS[step.op.kind].recurrent for step in boxes)  # type: ignore[union-attr]
    if recurrent or not masked or graph.key in graph.legs_of(graph.output) or _leaks(graph):
        return EVERYWHERE
    return reduce(union, (visible_areas(graph.masks(step), graph.values) for step in masked), ())


def leak_of_hidden(graph: Graph) -> Leak | None:
    """The first step through which another query or a masked key reaches a result. Returns None if there is none."""
    return _first_leak(graph, {graph.key})


def _leaks(graph: Graph) -> bool:
    """Whether a later key can reach a query in spite of the masks, for some values of the tensors."""
    return _first_leak(graph, {graph.query, graph.key}) is not None


def _first_leak(graph: Graph, acts: Acts) -> Leak | None:
    facts, unknown = {tensor.name: Fact(data=True) for tensor in graph.tensors}, dict.fromkeys(graph.step, False)
    try:
        for step in graph.steps:
            facts[step.name] = _fact(graph, step, facts, unknown, acts)
    except Leak as leak:
        return leak
    return None


def _fact(graph: Graph, step: Step, facts: dict[str, Fact], positive: dict[str, bool], acts: Acts) -> Fact:
    """The facts of a step. Masks apply only to boxes with the legs `acts`; only results with these can be zero."""
    if step.box is not None:
        return _box(graph, step, step.box, facts, positive, acts)
    terms = [_product(graph, step, term, facts, acts) for term in step.terms]
    return Fact(any(t.data for t in terms), all(t.zero for t in terms))


def _product(graph: Graph, step: Step, term: Term, facts: dict[str, Fact], acts: Acts) -> Fact:
    """The facts of a product. A sum over keys is causal if a factor is zero at all later keys; masked keys are zero."""
    data = any(facts[use.name].data for use in term.factors)
    zero = any(_zero(graph, use, facts) for use in term.factors)
    for leg in (graph.query, graph.key):
        summed = leg not in step.legs and any(facts[use.name].data and leg in use.legs for use in term.factors)
        omits = leg == graph.key and (zero or acts == {leg})
        if leg is not None and summed and not omits:
            raise Leak(step.name, "sums over", leg)
    return Fact(data, zero and acts <= {*step.legs})


def _zero(graph: Graph, use: Use, facts: dict[str, Fact]) -> bool:
    """Whether a use is zero at later keys: the step is, and the use does not exchange query and key."""
    declared = graph.legs_of(use.name)
    straight = all(use.legs[declared.index(leg)] == leg for leg in (graph.query, graph.key) if leg in declared)
    return facts[use.name].zero and straight


def _box(graph: Graph, step: Step, box: Box, facts: dict[str, Fact], positive: dict[str, bool], acts: Acts) -> Fact:
    data = any(facts[use.name].data for use in box.uses)
    zero = all(_zero(graph, use, facts) for use in box.uses)
    op = OPS[box.kind]
    if op.looks_back:
        return Fact(data)
    if graph.masked(step) and acts <= {*box.of.legs}:  # masks apply here
        return Fact(data, op.zero_at_hidden(box))
    if op.runs_along and data and box.leg in (graph.query, graph.key):
        # if zeros count, as in a mean, the number of later keys matters
        sure = op.ignores_zeros == "always" or (
            op.ignores_zeros == "nonnegative" and all(positive[use.name] for use in box.uses)
        )
        if box.leg == graph.query or not (zero and sure):
            raise Leak(step.name, "runs along", str(box.leg))
    return Fact(data, zero and op.zero_at_zero(graph, box))


def _sentence(graph: Graph, leak: Leak) -> str:
    what = "key" if leak.leg == graph.key else "query"
    return (
        f"step '{leak.step}' {leak.verb} the {what} leg '{leak.leg}' without a causal mask, so a later position "
        "reaches a query."
    )
