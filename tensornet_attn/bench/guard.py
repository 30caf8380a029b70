"""Predicted memory of tensors over pairs of positions: what would be too large is left out, with a sentence."""

from __future__ import annotations

from math import prod

from tensornet_attn.bench.case import Case
from tensornet_attn.cost.sizes import dtype_bytes, sizes_at
from tensornet_attn.graph.model import Graph

SAVED = 4  # copies of a pair tensor that autograd keeps where every box is written out
AT_ONCE = 3  # copies alive while one is made: operand, mask applied, result


def pair_elements(graph: Graph, lengths: dict[str, int]) -> list[int]:
    """Elements of one sequence's tensors over both a query and a key, step by step.

    >>> from tensornet_attn import build, load
    >>> pair_elements(build(load("mhsa")), {"n": 4, "m": 4})  # A.of and A: 8 heads, 16 pairs
    [128, 128]
    """
    sizes, pair = sizes_at(graph, lengths), {graph.query, graph.key}
    return [prod(sizes[leg] for leg in step.legs) for step in graph.steps if pair <= set(step.legs)]


def pair_bytes(graph: Graph, case: Case, kept: bool) -> int:
    """What the pair tensors of a graph take where each step is made by itself; `kept`: until the last is made."""
    found = pair_elements(graph, case.lengths)
    elements = AT_ONCE * max(found, default=0) + (sum(found) if kept else 0)
    return case.batch * dtype_bytes(case.dtype) * elements


def reference_bytes(case: Case) -> int:
    """What the comparison with the reference takes: one sequence, float64, everything kept."""
    return SAVED * dtype_bytes("float64") * sum(pair_elements(case.graph, case.lengths))


def gibibytes(size: float) -> str:
    """
    >>> gibibytes(3 * 2**30)
    '3.0 GiB'
    """
    return f"{size / 2**30:.1f} GiB"
