"""Scans that one product reads: one call computes both, in which no tensor has all states."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensornet_attn.graph.attention import cached
from tensornet_attn.graph.model import Box, Graph, Step, Use
from tensornet_attn.graph.recurrence import scans
from tensornet_attn.ir.values import Legs


@dataclass(frozen=True)
class ReadScan:
    """`box`: the scan. `read`: what its states are multiplied by, which lacks the last leg that remains.

    `legs`: those of the states, the last of which is summed. `inside`: the scan, and the products of its operands.
    """

    box: Box
    read: Use
    legs: Legs
    inside: frozenset[str]


@cached
def read_scans(graph: Graph) -> Mapping[str, ReadScan]:
    """The scans that nothing else reads, by the product that sums over one of their legs."""
    return {step.name: found for step in graph.steps for found in _read(graph, step)}


@cached
def inside_reads(graph: Graph) -> frozenset[str]:
    """The steps that are part of the call of their reader."""
    return frozenset().union(*(found.inside for found in read_scans(graph).values()))


def factors_of(step: Step) -> tuple[Use, ...]:
    """The factors of a product without a sum; else none."""
    terms = step.contraction.terms if step.contraction is not None else ()
    if len(terms) != 1 or {*step.legs} != {leg for use in terms[0].factors for leg in use.legs}:
        return ()
    return terms[0].factors


def _read(graph: Graph, step: Step) -> Iterator[ReadScan]:
    terms = step.contraction.terms if step.contraction is not None else ()
    if len(terms) != 1 or len(terms[0].factors) != 2:
        return
    for use, other in (terms[0].factors, terms[0].factors[::-1]):
        scan = _alone(graph, use)
        if scan is None or scan.box is None or not scans(scan) or "state" in dict(scan.box.operands):
            continue
        summed = [leg for leg in use.legs if leg not in step.legs]
        kept = [leg for leg in step.legs if leg in use.legs and leg != graph.query]
        kept.sort(key=lambda leg: leg not in other.legs)
        fits = (
            graph.query in step.legs
            and {*step.legs} | {*other.legs} <= {*use.legs}
            and {*summed, graph.query} <= {*other.legs}
        )
        if fits and len(summed) == 1 and kept and kept[-1] not in other.legs:
            products = [one for use in scan.box.uses if (one := _alone(graph, use)) and len(factors_of(one)) == 2]
            yield ReadScan(scan.box, other, (*kept, *summed), frozenset(one.name for one in (scan, *products)))


def _alone(graph: Graph, use: Use) -> Step | None:
    """The step of a use that is its only one."""
    step = graph.step.get(use.name)
    alone = step is not None and len(graph.readers[use.name]) == 1 and use.legs == step.legs
    return step if alone and use.name not in graph.results else None
