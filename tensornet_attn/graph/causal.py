"""Whether, in a causal design, a later key can reach a query around the masks.

A value at query n and key m may depend on positions up to the later of the two; every step keeps it so. Where m is
summed away, its later keys must therefore count for nothing. Each value is followed with two facts: `data` (it depends
on an input of this call) and `zero` (it is exactly zero where the key stands after the query).
"""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.graph.model import REDUCTIONS, Box, Contraction, Function, Graph, Step, Term, Use
from tensornet_attn.graph.signs import nonnegative
from tensornet_attn.spec.arithmetic import evaluate

_NORMS = frozenset({"l1norm", "l2norm"})  # zeros add nothing to them
_MEANS = frozenset({"rmsnorm", "layernorm"})  # zeros count: the number of later keys would show
_ALONG = REDUCTIONS | _NORMS | _MEANS | {"softmax", "normalize", "topk"}
_KEEP_ZEROS = frozenset("relu gelu silu elu tanh square sqrt abs softcap".split())


@dataclass(frozen=True)
class Fact:
    data: bool = False
    zero: bool = False


class Leak(Exception):
    """A step through which a later key reaches a query."""


def causal_leaks(graph: Graph) -> list[tuple[str, str]]:
    """(step, sentence) pairs; empty for a design that is causal. What only feeds a state is exempt."""
    facts = {tensor.name: Fact(tensor.role == "input") for tensor in graph.tensors}
    needed, found = _needed(graph), []
    positive = nonnegative(graph)
    for step in graph.steps:
        try:
            facts[step.name] = _fact(graph, step, facts, positive)
        except Leak as leak:
            facts[step.name] = Fact(zero=True)  # said once: its users are no cause of their own
            if step.name in needed:
                found.append((step.name, str(leak)))
    output = facts[graph.output]
    if output.data and not output.zero and graph.key in graph.legs_of(graph.output):
        what = f"the output '{graph.output}' has the key leg '{graph.key}' and is not zero at later keys"
        found.append((graph.output, f"{what}, so a later position reaches a query."))
    return found


def looks_back(graph: Graph) -> bool:
    """Whether a sum over keys counts only those up to the query, whatever the tensors hold, constants too."""
    facts, unknown = (
        {tensor.name: Fact(data=True) for tensor in graph.tensors},
        {step.name: False for step in graph.steps},
    )
    try:
        for step in graph.steps:
            facts[step.name] = _fact(graph, step, facts, unknown)
    except Leak:
        return False
    return graph.causal and graph.key not in graph.legs_of(graph.output)


def _needed(graph: Graph) -> set[str]:
    """The steps that reach the output."""
    needed = {graph.output}
    for step in reversed(graph.steps):
        if step.name in needed:
            needed.update(use.name for use in step.op.uses)
    return needed


def _fact(graph: Graph, step: Step, facts: dict[str, Fact], positive: dict[str, bool]) -> Fact:
    if isinstance(step.op, Contraction):
        terms = [_product(graph, step, term, facts) for term in step.op.terms]
        return Fact(any(t.data for t in terms), all(t.zero for t in terms))
    assert isinstance(step.op, Box)
    return _box(graph, step, step.op, facts, positive)


def _product(graph: Graph, step: Step, term: Term, facts: dict[str, Fact]) -> Fact:
    """A sum over keys is causal where one factor is zero at every later key."""
    data = any(facts[use.name].data for use in term.factors)
    zero = any(_zero(graph, use, facts) for use in term.factors)
    for leg in (graph.query, graph.key):
        summed = leg not in step.legs and any(facts[use.name].data and leg in use.legs for use in term.factors)
        if leg is not None and summed and not (zero and leg == graph.key):
            raise Leak(_sentence(graph, step, leg, "sums over"))
    return Fact(data, zero and {graph.query, graph.key} <= {*step.legs})


def _zero(graph: Graph, use: Use, facts: dict[str, Fact]) -> bool:
    """Zero at later keys, provided that query and key stand where the step that made it had them."""
    declared = graph.legs_of(use.name)
    straight = all(use.legs[declared.index(leg)] == leg for leg in (graph.query, graph.key) if leg in declared)
    return facts[use.name].zero and straight


def _box(graph: Graph, step: Step, box: Box, facts: dict[str, Fact], positive: dict[str, bool]) -> Fact:
    data = any(facts[use.name].data for use in box.uses)
    zero = all(_zero(graph, use, facts) for use in box.uses)
    if box.kind in ("rel_shift", "delta_rule"):
        return Fact(data)
    if graph.masked(step) and graph.query in box.operand("of").legs:  # the design's own mask acts here
        return Fact(data, box.kind not in REDUCTIONS)
    if box.kind in _ALONG and data and box.leg in (graph.query, graph.key):
        unseen = zero and (box.kind in _NORMS or (box.kind == "topk" and all(positive[u.name] for u in box.uses)))
        if box.leg == graph.query or not unseen:
            raise Leak(_sentence(graph, step, str(box.leg), "runs along"))
    if box.function is not None:
        return Fact(data, zero and _keeps_zeros(graph, box.function))
    return Fact(data, zero and box.kind not in ("softmax", "layernorm", "logsumexp", "hide"))


def _keeps_zeros(graph: Graph, function: Function) -> bool:
    if function.name in ("power", "clamp"):
        values = [evaluate(value, graph.values) for value in function.arguments if not isinstance(value, Function)]
        return values[0] > 0 if function.name == "power" else values[0] <= 0 <= values[-1]
    return function.name in _KEEP_ZEROS


def _sentence(graph: Graph, step: Step, leg: str, verb: str) -> str:
    what = "key" if leg == graph.key else "query"
    return f"step '{step.name}' {verb} the {what} leg '{leg}' with no causal mask, so a later position reaches a query."
