"""What is done to every diagram before it is planned, and what became of the steps that it took away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensornet_attn.graph.model import Graph, Step, Use
from tensornet_attn.rewrite.change import kept, seen, with_steps, with_uses
from tensornet_attn.rewrite.engine import Rule, Trace, everywhere
from tensornet_attn.rewrite.relu import RELU
from tensornet_attn.rewrite.simplify import RULES
from tensornet_attn.rewrite.sink import SINK
from tensornet_attn.rewrite.structure import SPLITS, split_kron


def own_names(graph: Graph, place: str) -> Graph | None:
    """B[k n m] = A M[h k]; y = B[h n m] V[m h d]   ->   y = B[k n m] V[m k d]

    Maps of queries and keys are read under the names that their legs have: all that lowers a map asks for that.
    What is read gets the name where it can, as scores do, and the reader another one where not, as here, where A has
    its own. Nothing that stands before is ever worse off for what stands behind, so that this comes to rest.
    """
    step = graph.step[place]
    for use in step.op.uses:
        for own, read in _strange(graph, use):
            source = graph.step[use.name]
            new = _swapped(graph, source, own, read)
            if new is not None and _count(graph, new) <= _count(graph, source):
                made = with_steps(graph, {source.name: [new]})
                pairs = [(_count(made, one), _count(graph, one)) for one, _ in graph.readers[source.name]]
                if all(after <= before for after, before in pairs) and any(after < before for after, before in pairs):
                    return made
            reader = _swapped(graph, step, read, own)
            if reader is not None and _count(graph, reader) < _count(graph, step):
                return with_steps(graph, {place: [reader]})
    return None


def _strange(graph: Graph, use: Use) -> Iterator[tuple[str, str]]:
    """The legs of a map under other names than its own: (its own, as read)."""
    source = graph.step.get(use.name)
    if source is None or not {graph.query, graph.key} <= {*source.legs}:
        return
    for own, read in zip(source.legs, use.legs, strict=True):
        a, b = graph.leg[own], graph.leg[read]
        if own != read and a.size is not None and a.size == b.size and {a.kind, b.kind} <= {"size", "head"}:
            yield own, read


def _count(graph: Graph, step: Step) -> int:
    return sum(1 for use in step.op.uses for _ in _strange(graph, use))


def _swapped(graph: Graph, step: Step, one: str, other: str) -> Step | None:
    """The step with two names of legs exchanged: its wires are its own. None where others see the names."""
    if step.fused is not None or (kept(graph, step.name) and {one, other} & {*step.legs}):
        return None
    new = {one: other, other: one}
    made = with_uses(step, lambda use: Use(use.name, tuple(new.get(leg, leg) for leg in use.legs)))
    if made.box is not None:
        made = replace(made, op=made.box.renamed(new))
    made = replace(made, legs=tuple(new.get(leg, leg) for leg in step.legs))
    return made if seen(graph, made) == seen(graph, step) else None


OWN_NAMES = Rule(
    "own names", "B[k n m] = ..; y = B[h n m] V[m h d] -> y = B[k n m] V[m k d]", own_names, "structural: names of legs"
)


def simplified(graph: Graph) -> tuple[Graph, Trace]:
    """The graph with everything left out that it can do without, and the rules that did it.

    >>> from tensornet_attn import load
    >>> from tensornet_attn.graph import build
    >>> simplified(build(load("mhsa_core")))[0].hash == build(load("mhsa")).hash
    True
    """
    made, trace = everywhere(graph, (*RULES, OWN_NAMES, RELU, SINK))
    if any(split_kron(made, step.name) is not None for step in made.steps):
        made, more = everywhere(made, (*SPLITS, *RULES, OWN_NAMES))
        trace += more
    return made, trace


def gone(graph: Graph, trace: Trace) -> dict[str, str]:
    """The steps of a diagram that rewriting took away, each with the rule that did it."""
    found: dict[str, str] = {}
    for firing in trace:
        found |= {step.name: firing.rule.name for step in graph.steps if step.name not in firing.graph.step}
        graph = firing.graph
    return found
