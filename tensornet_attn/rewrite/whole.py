"""The simplification of every diagram before planning, and the steps that it removes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tensornet_attn.graph.diagram import on_pairs, producer_of
from tensornet_attn.graph.graph import Graph, Step, Use
from tensornet_attn.rewrite.change import kept, seen, with_steps, with_uses
from tensornet_attn.rewrite.engine import Rule, Trace, everywhere
from tensornet_attn.rewrite.relu import RELU
from tensornet_attn.rewrite.simplify import RULES
from tensornet_attn.rewrite.structure import SPLITS, split_kron


def own_names(graph: Graph, step_name: str) -> Graph | None:
    """B[k n m] = A M[h k]; y = B[h n m] V[m h d]   ->   y = B[k n m] V[m k d]

    Renames legs so that maps of queries and keys are read under their own leg names, which all lowerings of maps
    require. If possible, the source is renamed, as for scores; otherwise the reader, as here, where A has its own
    names. No renaming makes an earlier step worse, so that the rule terminates.
    """
    step = graph.step[step_name]
    for use in step.uses:
        for declared, read in _strange(graph, use):
            source = graph.step[use.name]
            renamed_source = _swapped(graph, source, declared, read)
            if renamed_source is not None and _count(graph, renamed_source) <= _count(graph, source):
                renamed = with_steps(graph, {source.name: [renamed_source]})
                pairs = [
                    (_count(renamed, affected), _count(graph, affected)) for affected, _ in graph.readers[source.name]
                ]
                if all(after <= before for after, before in pairs) and any(after < before for after, before in pairs):
                    return renamed
            reader = _swapped(graph, step, read, declared)
            if reader is not None and _count(graph, reader) < _count(graph, step):
                return with_steps(graph, {step_name: [reader]})
    return None


def _strange(graph: Graph, use: Use) -> Iterator[tuple[str, str]]:
    """(own name, name in the use) of the legs of a map that the use renames."""
    source = producer_of(graph, use)
    if source is None or not on_pairs(graph, source.legs):
        return
    for declared, read in zip(source.legs, use.legs, strict=True):
        a, b = graph.leg[declared], graph.leg[read]
        if declared != read and a.size is not None and a.size == b.size and {a.kind, b.kind} <= {"size", "head"}:
            yield declared, read


def _count(graph: Graph, step: Step) -> int:
    return sum(1 for use in step.uses for _ in _strange(graph, use))


def _swapped(graph: Graph, step: Step, first: str, second: str) -> Step | None:
    """The step with two leg names exchanged. Returns None if the names are visible outside of the step."""
    if step.kernel is not None or (kept(graph, step.name) and {first, second} & {*step.legs}):
        return None
    names = {first: second, second: first}
    swapped = with_uses(step, lambda use: use.renamed(names))
    if swapped.box is not None:
        swapped = replace(swapped, op=swapped.box.renamed(names))
    swapped = replace(swapped, legs=tuple(names.get(leg, leg) for leg in step.legs))
    return swapped if seen(graph, swapped) == seen(graph, step) else None


OWN_NAMES = Rule(
    "own names", "B[k n m] = ..; y = B[h n m] V[m h d] -> y = B[k n m] V[m k d]", own_names, "structural: names of legs"
)


def simplified(graph: Graph) -> tuple[Graph, Trace]:
    """(simplified graph, trace of the rules applied).

    >>> from tensornet_attn import load
    >>> from tensornet_attn.graph import build
    >>> simplified(build(load("mhsa_core")))[0].hash == build(load("mhsa")).hash
    True
    """
    simpler, trace = everywhere(graph, (*RULES, OWN_NAMES, RELU))
    if any(split_kron(simpler, step.name) is not None for step in simpler.steps):
        simpler, more = everywhere(simpler, (*SPLITS, *RULES, OWN_NAMES))
        trace += more
    return simpler, trace


def gone(graph: Graph, trace: Trace) -> dict[str, str]:
    """Maps each step that rewriting removed to the name of the rule."""
    removed_by: dict[str, str] = {}
    for firing in trace:
        removed_by |= {step.name: firing.rule.name for step in graph.steps if step.name not in firing.graph.step}
        graph = firing.graph
    return removed_by
