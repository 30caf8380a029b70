"""Maps that only mask and divide: the queries that read a product of the map move into its scores.

# P = keep over m of s[m r];  Z = P V;  y = A[n r] Z          ->     P.V.map = keep over m of A s;  y = P.V.map V
# P = normalize over m of s[m r];  Z = P V;  y = A[n r] Z     ->     the same with A / (sum over m of s) for A

Z, with all legs of map and values for each query, is then never stored.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from tensornet_attn.graph.attention import (
    Attention,
    MapReader,
    NormalizedScores,
    UnnormalizedScores,
    attentions,
    readers_of,
)
from tensornet_attn.graph.graph import Box, Contraction, Function, Graph, Step, Term, Use
from tensornet_attn.ir.arithmetic import Number
from tensornet_attn.ir.steps import legs_in, plus, without
from tensornet_attn.kernels.decay import decay_alone
from tensornet_attn.kernels.implementation import Context, Lowered, Rewriting
from tensornet_attn.rewrite.change import fresh, product, read_once, spread, with_steps, without_dead
from tensornet_attn.rewrite.reads import as_map


def through_maps(graph: Graph, context: Context) -> Lowered:
    """Moves queries into the scores of each normalize or keep, wherever they sum a leg of its product with values.

    The scores are one product that sums no leg, without a mask other than `causal`. Z is read once, in a product with
    queries. The leg that these sum may be of the map, as the slots of bounded memory, or of the values; no other factor
    of the product has it.
    """
    rewritten, chosen = graph, dict[str, str]()
    for name, attention in attentions(graph).items():
        scores = product(attention.scores)
        if (
            scores is None
            or not isinstance(attention.weighting, UnnormalizedScores | NormalizedScores)
            or attention.of.legs != attention.box.legs
        ):
            continue
        if legs_in(scores.factors) != {*attention.box.legs} or not attention.terms:
            continue
        moved = _all_moved(*_rows(rewritten, attention, scores), attention, scores)
        moved = None if moved is None else without_dead(moved, (name,))
        if moved is not None:
            rewritten, chosen[name] = moved, "the queries that read its products with values move into the scores"
    return Lowered(rewritten, chosen)


THROUGH = Rewriting("queries through maps", through_maps)


def _rows(graph: Graph, attention: Attention, scores: Term) -> tuple[Graph, tuple[Use, ...]]:
    """The graph with 1 / (row sums + eps) of a normalized map, and their use; none for other maps."""
    if not isinstance(attention.weighting, NormalizedScores):
        return graph, ()
    name = attention.box.name
    steps = _sum(attention, fresh(graph, f"{name}.sums"), scores, attention.box.legs)
    of = steps[-1].use
    if attention.weighting.eps != Number(0):
        divisors = Contraction((plus(of), Term(attention.weighting.eps, ())))
        of = replace(of, name=fresh(graph, f"{name}.divisors"))
        steps.append(Step(of.name, divisors, of.legs))
    rows = replace(of, name=fresh(graph, f"{name}.rows"))
    steps.append(Step(rows.name, Box("map", None, (("of", of),), function=Function("reciprocal")), of.legs))
    return with_steps(graph, {name: [*steps, attention.box]}), (rows,)


def _sum(attention: Attention, name: str, term: Term, legs: tuple[str, ...]) -> list[Step]:
    """The sum of a product over the keys that a map sees."""
    box, of = attention.box.box, Use(f"{name}.of", legs)
    assert box is not None
    total = replace(box, kind="sum", numbers=(), operands=(("of", of),))
    remaining = without(legs, attention.graph.key)
    return [Step(of.name, Contraction((term,)), legs), Step(name, total, remaining)]


def _all_moved(graph: Graph, rows: tuple[Use, ...], attention: Attention, scores: Term) -> Graph | None:
    """The graph with each product of the map that queries read as a map of its own; None if there is none."""
    for reader in readers_of(graph, attention.box.name):
        moved = _moved(graph, rows, attention, scores, reader)
        if moved is not None:
            return _all_moved(moved, rows, attention, scores) or moved
    return None


def _moved(graph: Graph, rows: tuple[Use, ...], attention: Attention, scores: Term, reader: MapReader) -> Graph | None:
    """The graph in which a product of the map is a map of its own, with the queries that read the product."""
    legs, values = attention.box.legs, reader.values
    if (
        not values
        or reader.use.legs != legs
        or attention.graph.query in legs_in(values)
        or graph.key in reader.step.legs
    ):
        return None
    first = f"{attention.box.name}.{'_'.join(use.name for use in values)}"
    names = (first if number == 1 else f"{first}{number}" for number in count(1))
    name = next(name for name in names if not any(f"{existing}.".startswith(f"{name}.") for existing in graph.step))
    all_legs = tuple(dict.fromkeys((*legs, *(leg for use in values for leg in use.legs))))
    of, total = _sum(attention, name, replace(scores, factors=(*scores.factors, *values)), all_legs)
    read = replace(reader.product, factors=(Use(name, total.legs), *rows, *reader.others))
    step = reader.with_terms([read])
    trial = decay_alone(with_steps(graph, {step.name: [of, total, step]}), of.name)
    as_own_map, above = as_map(trial, total), read_once(trial, step.name)
    if as_own_map is not None or above is None or product(step) is None:
        return as_own_map
    (outer,) = readers_of(trial, step.name)
    inside = None if outer.term is None else spread(trial, above.name, outer.term, outer.use, step)
    return None if inside is None else as_map(inside, total)
