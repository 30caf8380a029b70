"""Steps that kernels of linear attention compute inside: the features of a side, and the sum of several kernels."""

from __future__ import annotations

from math import prod

from tensornet_attn.graph.alike import one_row
from tensornet_attn.graph.attention import cached
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.recurrence import Recurrence, recurrence_of, sums_keys
from tensornet_attn.ir.arithmetic import ONE, names
from tensornet_attn.ops.map import arguments, row

INPUTS = 16  # of a feature, for each operand: its values of small legs


@cached
def linear_in_cpp(graph: Graph) -> frozenset[str]:
    """The kernels of linear attention that C++ computes, and the steps that they compute inside."""
    own = {step.name for step in graph.steps if step.kernel and step.kernel.cpp and isinstance(step.form, Recurrence)}
    for step in graph.steps if own else ():
        if inside_kernels(graph, step):
            made = {one.name for one in _kernels(graph, step)}
        elif summed_with(graph, step):
            made = {use.name for use in step.op.uses}
        else:
            continue
        own |= {step.name} if made <= own else set()
    return frozenset(own)


def summed_with(graph: Graph, step: Step, tiles: bool = False) -> bool:
    """Whether a step is a sum of kernels of the same values, which nothing else reads, and which one call computes.

    `tiles`: Triton computes them.
    """
    if tiles or step.contraction is None or len(step.contraction.terms) < 2:
        return False
    found = set()
    for term in step.contraction.terms:
        one = graph.step.get(term.factors[0].name) if len(term.factors) == 1 and term.coefficient == ONE else None
        if one is None or not _takes_maps(graph, one, tiles) or len(graph.readers[one.name]) != 1:
            return False
        parts = recurrence_of(one)
        same = term.factors[0].legs == one.legs and {*one.legs} == {*step.legs}
        if not same or one.name in graph.results:
            return False
        found.add((one.legs, parts.value, parts.heads, parts.result, parts.box.legs))
    return len(found) == 1


def inside_kernels(graph: Graph, step: Step, tiles: bool = False) -> bool:
    """Whether kernels compute a step themselves, a tile at a time, as part of the features of a side.

    Kernels in C++ compute features of several operands; others apply one map.
    """
    readers = graph.readers.get(step.name, ())
    if step.name in graph.results or not readers or not (step.contraction or _is_map(step)):
        return False
    return all(
        inside_kernels(graph, reader, tiles) and use.legs == step.legs
        if reader.kernel is None
        else _takes_maps(graph, reader, tiles) and _only_side(recurrence_of(reader), step.name)
        for reader, use in readers
    ) and all(_fits(graph, step, reader, tiles) for reader in _kernels(graph, step))


def _is_map(step: Step) -> bool:
    return step.box is not None and step.box.function is not None and not arguments(step.box)


def _kernels(graph: Graph, step: Step) -> list[Step]:
    """The kernels that compute a step."""
    every = [[one] if one.kernel else _kernels(graph, one) for one, _ in graph.readers[step.name]]
    return [reader for some in every for reader in some]


def _fits(graph: Graph, step: Step, reader: Step, tiles: bool) -> bool:
    """Whether features of a side have a step: a map that is the side, or arithmetic of what rows have or share."""
    kernel, parts = reader.kernel, recurrence_of(reader)
    assert kernel is not None
    if step.box is not None:
        text = row(step.box)
        if (tiles or kernel.cpp) and not (text.triton and text.slope):
            return False
        if any(one is reader for one, _ in graph.readers[step.name]):
            return True
    if not kernel.cpp or parts.mixes:
        return False
    terms = step.contraction.terms if step.contraction is not None else ()
    if any(len(term.factors) > 2 or {leg.name for leg in names(term.coefficient)} & {*graph.leg} for term in terms):
        return False
    if any(use.name in one_row(graph) for use in step.op.uses):  # then calls decide which operands rows share
        return False
    sequence, columns = str(graph.query if graph.query in step.legs else graph.key), {*parts.terms[0].features}
    whole = {sequence, *parts.heads, *columns}
    shared = [{*use.legs} for use in step.op.uses if not whole <= {*use.legs}]
    small = {leg for legs in (step.legs, *(use.legs for use in step.op.uses)) for leg in legs} - whole
    return (
        whole <= {*step.legs}
        and len(shared) < len(step.op.uses)
        and all(sequence not in legs and (columns <= legs or not columns & legs) for legs in shared)
        and prod(graph.leg[leg].size or INPUTS for leg in small) < INPUTS
    )


def _takes_maps(graph: Graph, reader: Step, tiles: bool) -> bool:
    """Whether a reader is a kernel that computes tiles in some calls: one term, no decay; causal only in Triton.

    Triton computes no tiles of mixed states.
    """
    parts = reader.form
    if not isinstance(parts, Recurrence) or reader.kernel is None or sums_keys(reader):
        return False
    if parts.mixes and tiles:
        return False
    return parts.one_product and (tiles or not parts.causal(graph))


def _only_side(parts: Recurrence, name: str) -> bool:
    """Whether the kernel reads a step only as the query side or the key side of its term, as it is."""
    (term,) = parts.terms
    others = [use for use in (parts.value, parts.mix, parts.added) if use is not None]
    return term.coefficient == ONE and all(use.name != name for use in others)
