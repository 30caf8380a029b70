"""The order of dimensions of intermediate values, which values have batch dimensions, and legs in one dimension."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tensornet_attn.graph.attention import ahead
from tensornet_attn.graph.graph import Box, Contraction, Graph, Kernel, Step, Use
from tensornet_attn.graph.hidden import BY_KEY
from tensornet_attn.ir.steps import within, without
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops import OPS
from tensornet_attn.ops.conv import hides_rows

Readers = Mapping[str, list[tuple[Step, Use]]]


def batched(graph: Graph) -> frozenset[str]:
    """Values that may have batch dimensions: inputs, noise, boxes with run-time masks, and their dependents."""
    sources = {tensor.name for tensor in graph.tensors if tensor.role in ("input", "noise")}
    for step in graph.steps:
        box = step.box
        hides = box is not None and (graph.masked(step) or OPS[box.kind].recurrent or box.seen == BY_KEY)
        if hides or hides_rows(graph, box) or step.kernel is not None:
            sources.add(step.name)
    return frozenset(ahead(graph.steps, sources))


def readers(graph: Graph) -> Readers:
    """The uses of every tensor and step with their steps; outputs and steps that update a state have one more."""
    readers_of: dict[str, list[tuple[Step, Use]]] = defaultdict(list)
    for step, use in graph.uses():
        readers_of[use.name].append((step, use))
    return readers_of


def box_layout(graph: Graph, step: Step, legs: Legs) -> Legs:
    """The legs of the operand of a box: the leg of the box last, with the query leg before it if masks act."""
    assert step.box is not None
    last_legs = (graph.query, step.box.leg) if graph.masked(step) and graph.query in legs else (step.box.leg,)
    return without(legs, *last_legs) + tuple(str(leg) for leg in last_legs)


def wanted(graph: Graph, read: Readers, step: Step) -> Legs:
    """The layout of a step: as written if it has a name, else what its only reader prefers."""
    if not step.nested or len(read[step.name]) != 1:
        return step.legs
    reader, use = read[step.name][0]
    if use.legs != step.legs:
        return step.legs
    if reader.box is not None:
        return _for_box(graph, read, step, reader, reader.box)
    if reader.contraction is not None:
        return _for_contraction(graph, read, step, reader, reader.contraction, use)
    if reader.kernel is not None:
        return _for_kernel(graph, reader.kernel, use)
    return step.legs


def _for_kernel(graph: Graph, kernel: Kernel, use: Use) -> Legs:
    """The width that scores sum last: kernels then read rows of queries or keys without a copy that turns them."""
    inner_readers = [inner for inner in kernel.body if use in inner.uses]
    if len(inner_readers) != 1 or inner_readers[0].contraction is None:
        return use.legs
    other_legs = {leg for other_use in inner_readers[0].uses if other_use != use for leg in other_use.legs}
    summed_legs = within(without(use.legs, *inner_readers[0].legs), other_legs)
    if any(graph.leg[leg].sequence for leg in summed_legs) or not any(graph.leg[leg].sequence for leg in use.legs):
        return use.legs
    return without(use.legs, *summed_legs) + summed_legs


def _for_box(graph: Graph, read: Readers, step: Step, reader: Step, box: Box) -> Legs:
    if OPS[box.kind].elementwise:
        return _like(step.legs, wanted(graph, read, reader))
    spans_leg = graph.masked(reader) and box.leg in step.legs  # a value with one number per row keeps its layout
    return box_layout(graph, reader, step.legs) if spans_leg else step.legs


def _for_contraction(graph: Graph, read: Readers, step: Step, reader: Step, op: Contraction, use: Use) -> Legs:
    """Scores: query and key last. Sums: the order of the result. Products: summed legs last."""
    pair = (graph.query, graph.key)
    reader_layout = wanted(graph, read, reader)
    if set(pair) <= set(step.legs):
        return without(step.legs, *pair) + tuple(str(leg) for leg in pair)
    if len(op.terms) > 1:
        return _like(step.legs, reader_layout)
    other_legs = [other_use.legs for other_use in op.uses if other_use is not use]
    summed_legs = within(without(other_legs[0] if other_legs else (), *reader_layout), step.legs)
    return _like(without(step.legs, *summed_legs), reader_layout) + summed_legs


def _like(legs: Legs, order: Legs) -> Legs:
    """Legs in the given order, other legs last."""
    return within(order, legs) + without(legs, *order)


def split(dimension: int, sizes: Sequence[str]) -> str:
    """The call that unflattens a dimension into legs of these sizes; without legs, it squeezes the dimension."""
    if len(sizes) == 1:
        return ""
    return f".unflatten({dimension}, ({', '.join(sizes)}))" if sizes else f".squeeze({dimension})"


def columns(sizes: Sequence[str]) -> str:
    """The call that unflattens the last dimension, which exists even without legs."""
    return split(-1, sizes) if sizes else "[..., 0]"


def dimensions(*groups: tuple[str, ...]) -> str:
    """The dimensions of groups of legs, in words."""
    return " ".join(f"({' '.join(group)})" if len(group) > 1 else "".join(group) or "1" for group in groups)
