"""What rules are written with: who reads what, steps replaced, fresh names, coefficients multiplied."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from tensornet_attn.graph.model import Box, Contraction, Graph, Leg, Step, Term, Use
from tensornet_attn.spec.arithmetic import Arith, names
from tensornet_attn.spec.arithmetic import times as times

Legs = tuple[str, ...]


def product(step: Step | None) -> Term | None:
    """The one term of a step that is a single product."""
    return (
        step.op.terms[0] if step is not None and isinstance(step.op, Contraction) and len(step.op.terms) == 1 else None
    )


def kept(graph: Graph, name: str) -> bool:
    """Whether a step is wanted for itself: the output, what a state stores, or a loss."""
    return name in graph.results


def read_once(graph: Graph, name: str) -> Step | None:
    """The step that alone reads a step, once; None where others do or the step is wanted for itself."""
    readers = graph.readers.get(name, ())
    return readers[0][0] if len(readers) == 1 and not kept(graph, name) else None


def with_steps(graph: Graph, new: Mapping[str, Iterable[Step]]) -> Graph:
    """The graph with steps replaced by others, by name."""
    return replace(graph, steps=tuple(part for step in graph.steps for part in new.get(step.name, [step])))


def with_terms(step: Step, terms: Iterable[Term]) -> Step:
    return replace(step, op=Contraction(tuple(terms)))


def with_uses(step: Step, change: Callable[[Use], Use]) -> Step:
    """The step with every use changed."""
    if isinstance(step.op, Contraction):
        terms = (replace(term, factors=tuple(map(change, term.factors))) for term in step.op.terms)
        return with_terms(step, terms)
    assert isinstance(step.op, Box)
    return replace(step, op=replace(step.op, operands=tuple((role, change(use)) for role, use in step.op.operands)))


def settled(before: Graph, after: Graph) -> Graph | None:
    """The graph after a rule, constants that nothing reads left out; None where a leaf would lose its last reader.

    A weight or an input must still get its gradient, of zeros if need be, so that it may not fall out of the graph.
    """
    gone = before.readers.keys() - after.readers.keys()
    if any(name in before.tensor and before.tensor[name].role != "constant" for name in gone):
        return None
    return replace(after, tensors=tuple(tensor for tensor in after.tensors if tensor.name not in gone))


def plain_number(graph: Graph, value: Arith) -> bool:
    """Whether arithmetic is known before run time."""
    return all(name.name in graph.values for name in names(value))


def fresh(graph: Graph, name: str) -> str:
    """A name that no tensor and no step has."""
    count, own = 1, name
    while own in graph.step or own in graph.tensor:
        count += 1
        own = f"{name}{count}"
    return own


def leg_like(graph: Graph, name: str, size: int, kind: str, taken: Iterable[str]) -> Leg:
    """A leg of this size that none of the taken ones is: the named one if it may be, else one with _ after it."""
    while name in taken or name in dict(graph.settings) or not _fits(graph.leg.get(name), size):
        name += "_"
    return graph.leg.get(name) or Leg(name, kind, size)


def _fits(leg: Leg | None, size: int) -> bool:
    return leg is None or (leg.size == size and leg.kind in ("size", "head"))


def with_legs(graph: Graph, legs: Iterable[Leg]) -> Graph:
    new = {leg.name: leg for leg in legs if leg.name not in graph.leg}
    return replace(graph, legs=(*graph.legs, *new.values()))


def legs_in(factors: Iterable[Use]) -> set[str]:
    return {leg for use in factors for leg in use.legs}
