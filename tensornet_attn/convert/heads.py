"""Fits a design to the arguments of nn.MultiheadAttention: leg sizes from embed_dim and num_heads."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tensornet_attn.errors import InputError
from tensornet_attn.graph.model import Graph
from tensornet_attn.graph.weighing import map_of, summing
from tensornet_attn.ir.arithmetic import Number

WANTED = "MultiheadAttention needs an input of queries, e.g. 'x: n f', and at most two more, e.g. 'memory: m f'"
Size = int | float | str


def sizes_for(
    graph: Graph, embed_dim: int, num_heads: int, kdim: int | None, vdim: int | None, legs: Mapping[str, Size]
) -> dict[str, Size]:
    """Leg sizes for `load`, including those of `legs`. Raises InputError if the design does not fit.

    embed_dim is the size of the feature leg of the queries, kdim and vdim of those of the other inputs. num_heads is
    the size of head legs that are declared with the number of maps. If a design has one head per feature, as thsa does,
    the size of its head legs is embed_dim.
    """
    found = _features(graph, embed_dim, kdim, vdim)
    for leg, size in found.items():
        if legs.get(leg, size) != size:
            raise InputError(f"{graph.name}: leg '{leg}' is the feature leg of an input, {size}; omit it from 'legs'.")
    return {**_heads(graph, embed_dim, num_heads, legs), **found, **legs}


def check_output(graph: Graph, embed_dim: int) -> None:
    """Raises InputError if the output is not [batch..., queries, embed_dim]."""
    legs = graph.legs_of(graph.output)
    if len(legs) != 2 or legs[0] != graph.query or graph.leg[legs[1]].size != embed_dim:
        shape, wanted = ", ".join(str(graph.leg[leg].size or leg) for leg in legs), f"[{graph.query}, {embed_dim}]"
        raise InputError(f"{graph.name}: its output is [{shape}], but MultiheadAttention returns {wanted}.")


def projections(graph: Graph) -> dict[str, int]:
    """The weights that multiply an input, each with its axis of input features."""
    found: dict[str, int] = {}
    inputs = {tensor.name for tensor in graph.of_role("input")}
    weights = {tensor.name for tensor in graph.of_role("weight")}
    for step in graph.steps:
        for term in step.contraction.terms if step.contraction is not None else ():
            features = {leg for use in term.factors if use.name in inputs for leg in use.legs} - {*step.legs}
            for use in term.factors:
                taken = [axis for axis, leg in enumerate(use.legs) if leg in features]
                if use.name in weights and len(taken) == 1:
                    found[use.name] = taken[0]
    return found


def _features(graph: Graph, embed_dim: int, kdim: int | None, vdim: int | None) -> dict[str, Size]:
    """The sizes of the feature legs of the inputs. Raises InputError."""
    if not summing(graph):
        raise InputError(f"{graph.name}: its output contains no sum over keys, so it is not an attention.")
    inputs = graph.of_role("input")
    shapes = [tensor.legs for tensor in inputs]
    sequences = [legs[0] if len(legs) == 2 else None for legs in shapes]
    if not 1 <= len(inputs) <= 3 or sequences != [graph.query, graph.key, graph.key][: len(inputs)]:
        held = ", ".join(f"'{tensor.name}: {' '.join(tensor.legs)}'" for tensor in inputs)
        raise InputError(f"{graph.name}: its inputs are {held or 'none'}; {WANTED}.")
    wanted = [shapes[0], *(shapes[1:] or shapes), shapes[-1]]
    widths = [("embed_dim", embed_dim), ("kdim", kdim or embed_dim), ("vdim", vdim or embed_dim)]
    found: dict[str, Size] = {}
    for (_, leg), (name, size) in zip(wanted, widths, strict=False):
        if found.setdefault(leg, size) != size:
            raise InputError(
                f"{graph.name}: {name} is {size}, but its features are on leg '{leg}', which is {found[leg]}."
            )
    return found


def _heads(graph: Graph, embed_dim: int, num_heads: int, legs: Mapping[str, Size]) -> dict[str, Size]:
    """The sizes of head legs that are declared with a number and not in `legs`. Raises InputError."""
    heads = {leg.name: int(leg.size or 1) for leg in graph.legs if leg.kind == "head" and isinstance(leg.text, Number)}
    width, reader = graph.leg[graph.of_role("input")[0].legs[1]].size, map_of(graph)
    beside = [leg for leg in reader.use.legs if leg not in (graph.query, graph.key)] if reader else []
    values = {leg for use in reader.values for leg in use.legs} - {graph.key} if reader else set()
    on_map = {leg: heads[leg] for leg in beside if leg in heads}
    many = prod(on_map.values()) if on_map else max(heads.values(), default=1)
    if reader is not None and many == width and values <= {*beside}:  # one head per feature
        return {leg: embed_dim for leg, size in heads.items() if size == width and leg not in legs}
    found: dict[str, Size] = {leg: num_heads for leg, size in heads.items() if size == many and leg not in legs}
    sizes = {leg: legs.get(leg, found.get(leg, size)) for leg, size in on_map.items()}
    free = [leg for leg in on_map if leg not in values and leg not in legs]  # on queries only, as within a group
    if not found and len(free) == 1:
        others = prod(int(size) for leg, size in sizes.items() if leg not in free)
        found[free[0]] = sizes[free[0]] = max(1, num_heads // others)
    if len(on_map) == len(beside) and reader is not None and prod(int(size) for size in sizes.values()) != num_heads:
        held = ", ".join(f"{leg} {size}" for leg, size in sizes.items()) or "none"
        sentence = f"num_heads is {num_heads}, but its head legs are {held}"
        raise InputError(f"{graph.name}: {sentence}; set them with legs={{...}}.")
    return found
