"""Sums over keys that all queries read alike: one row stands for all of them, in calls without a mask.

Such a sum may be one product of two factors of the keys, each with a leg of its own:

# KV.k[m g d e] = K V;  KV[n g d e] = sum over m of each[n] KV.k     ->     KV[1 g d e] = K^T V
"""

from __future__ import annotations

from tensornet_attn.graph.attention import Legs, cached
from tensornet_attn.graph.model import Graph, Step, Use
from tensornet_attn.graph.recurrence import ONES, Recurrence, sums_keys
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.ops import OPS

Factor = tuple[Use, Legs]  # and its own legs


@cached
def one_row(graph: Graph) -> frozenset[str]:
    """The steps with one row for all queries."""
    return frozenset[str]().union(*(narrow_after(graph, step) for step in graph.steps))


def narrow_after(graph: Graph, step: Step) -> set[str]:
    """The steps with one row for all queries because a sum has; empty if it is none or needs a row for each query.

    What depends on no query but through the sum has one row too; it may be read by products, elementwise maps and sums
    over other legs. A product that keeps the query leg broadcasts it to the rows of its other operand.
    """
    parts, query = step.form, str(graph.query)
    if not isinstance(parts, Recurrence) or not sums_keys(step):
        return set()
    if parts.causal(graph) or not all(_alike(graph, use.name) for term in parts.terms for use in term.query):
        return set()
    narrow = {step.name}
    for reader in graph.steps:
        own = [use for use in reader.op.uses if use.name in narrow]
        if not own:
            continue
        if not all(query in use.legs for use in own):  # read along another leg
            return set()
        box, uses = reader.box, [use for use in reader.op.uses if query in use.legs]
        fits = reader.contraction is not None
        if box is not None:  # what scales by random numbers draws them for each query
            kind = OPS[box.kind]
            fits = box.leg != query if kind.is_sum else kind.elementwise and not kind.scales
        if query not in reader.legs or not fits:
            return set()
        if all(use.name in narrow for use in uses):
            narrow.add(reader.name)
    return set() if narrow & {*graph.results} else narrow


def _alike(graph: Graph, name: str) -> bool:
    """Whether a query side is the same for all queries: ones, or a product of ones with what has no query leg."""
    made = graph.step.get(name)
    if made is None or made.contraction is None:
        return is_ones(graph, name)
    return all(graph.query not in use.legs or is_ones(graph, use.name) for use in made.op.uses)


def is_ones(graph: Graph, name: str) -> bool:
    """Whether a tensor is a constant of ones."""
    leaf = graph.tensor.get(name)
    return leaf is not None and leaf.role == "constant" and leaf.init == ONES


def factors_apart(graph: Graph, step: Step) -> tuple[Factor, Factor] | None:
    """The two factors of the keys of a sum with one row that one product sums, else None.

    The heads of the sum are the legs that the factors share, then one leg of each.
    """
    parts, key = step.form, str(graph.key)
    if not isinstance(parts, Recurrence) or len(parts.terms) != 1 or not parts.terms[0].key:
        return None
    made = graph.step.get(parts.terms[0].key[0].name)
    if made is None or made.contraction is None or parts.terms[0].coefficient != ONE or not narrow_after(graph, step):
        return None
    if not all(is_ones(graph, use.name) for use in parts.terms[0].query):
        return None
    (term, *others), uses = made.contraction.terms, made.op.uses
    alone = len(graph.readers[made.name]) == 1 and made.nested
    if others or term.coefficient != ONE or len(uses) != 2 or not alone or parts.terms[0].key[0].legs != made.legs:
        return None
    for one, other in (uses, uses[::-1]):
        shared = tuple(leg for leg in one.legs if leg in other.legs and leg != key)
        own = [tuple(leg for leg in use.legs if leg not in (*shared, key)) for use in (one, other)]
        apart = all(key in use.legs for use in uses) and [*map(len, own)] == [1, 1]
        if apart and {*shared} == {*parts.heads[:-2]} and parts.heads[-2:] == own[0] + own[1]:
            return (one, own[0]), (other, own[1])
    return None


def summed_by_reader(graph: Graph, step: Step) -> bool:
    """Whether the only reader of a product of two key parts is a sum that computes it itself, see `factors_apart`."""
    readers = graph.readers.get(step.name, ()) if step.contraction is not None and step.nested else ()
    return len(readers) == 1 and factors_apart(graph, readers[0][0]) is not None
