"""Maps that only mask and divide: what queries read of their results moves into the scores.

# P = keep over m of s[m r];  Z = P V;  y = A[n r] Z     ->     P.V.map = keep over m of A s;  y = P.V.map V
# P = normalize over m of s;  Z = P V;  y = A Z          ->     the same, divided by P.rows[n r] = sum over m of s
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.attention import Attention, Masked, Normalize, Reader, attentions, readers_of
from tensornet_attn.graph.model import Box, Contraction, Function, Graph, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE, Number
from tensornet_attn.plan.decay import decay_alone
from tensornet_attn.plan.implementation import Context, Lowered, Rewriting
from tensornet_attn.plan.states import as_map
from tensornet_attn.rewrite.change import fresh, legs_in, product, read_once, spread, terms_of, with_steps, without_dead


def through_maps(graph: Graph, context: Context) -> Lowered:
    """Moves products of queries with the results of a map into the scores, wherever they sum a leg of the results.

    The map is a normalize or keep of one product of query and key parts that sums no leg itself; its result Z, a
    product with values, is read once, in a product with queries that share a leg with Z that no other factor has. The
    summed leg may be one of the map, such as the slots of bounded memory, or one of the values.
    """
    made, chosen = graph, dict[str, str]()
    for name, found in attentions(graph).items():
        inner = product(found.scores)
        if inner is None or not isinstance(found.weighting, Masked | Normalize) or found.of.legs != found.box.legs:
            continue
        if found.scores.legs != found.of.legs or legs_in(inner.factors) != {*found.of.legs}:
            continue
        trial, rows = _rows(made, found)
        for reader in found.readers:
            trial = _moved(trial, found, inner, rows, reader) or trial
        trial = without_dead(trial, (name, *(use.name for use in rows)))
        if trial is not None and trial.step.keys() != made.step.keys():
            made, chosen[name] = trial, "what queries read of its results moves into the scores"
    return Lowered(made, chosen)


THROUGH = Rewriting("products through maps", through_maps)


def _sum(found: Attention, name: str, term: Term, legs: tuple[str, ...]) -> list[Step]:
    """The sum of a product over the keys that a map sees."""
    box, of = found.box.box, f"{name}.of"
    assert box is not None
    total = replace(box, kind="sum", numbers=(), operands=(("of", Use(of, legs)),))
    return [
        Step(of, Contraction((term,)), legs),
        Step(name, total, tuple(leg for leg in legs if leg != found.graph.key)),
    ]


def _rows(graph: Graph, found: Attention) -> tuple[Graph, tuple[Use, ...]]:
    """The graph with the reciprocals of the row sums of a normalized map, and their use."""
    box, inner = found.box, product(found.scores)
    if not isinstance(found.weighting, Normalize):
        return graph, ()
    assert inner is not None
    *before, total = _sum(found, fresh(graph, f"{box.name}.sums"), inner, box.legs)
    of = Use(total.name, total.legs)
    if found.weighting.eps != Number(0):
        more = Step(f"{total.name}.eps", Contraction((Term(ONE, (of,)), Term(found.weighting.eps, ()))), of.legs)
        before, total, of = [*before, total], more, Use(more.name, of.legs)
    rows = Step(
        fresh(graph, f"{box.name}.rows"),
        Box("map", None, (("of", of),), function=Function("reciprocal")),
        of.legs,
    )
    return with_steps(graph, {box.name: [*before, total, rows, box]}), (Use(rows.name, rows.legs),)


def _moved(graph: Graph, found: Attention, inner: Term, rows: tuple[Use, ...], reader: Reader) -> Graph | None:
    """The graph in which the queries that read a product of the map are part of its scores; None if none do."""
    box, key = found.box, found.graph.key
    if reader.term is None or reader.use.legs != box.legs or key in reader.step.legs:
        return None
    if not reader.values or found.graph.query in legs_in(reader.values):
        return None
    legs = tuple(dict.fromkeys((*box.legs, *(leg for use in reader.values for leg in use.legs))))
    name = fresh(graph, f"{box.name}.{'_'.join(use.name for use in reader.values)}")
    of, total = _sum(found, name, replace(inner, factors=(*inner.factors, *reader.values)), legs)
    product_ = reader.product
    new = replace(product_, factors=(Use(name, total.legs), *rows, *reader.others))
    step = reader.with_terms([new])
    trial = with_steps(graph, {step.name: [of, total, step]})
    trial = decay_alone(trial, of.name)
    made = as_map(trial, total)
    place = read_once(trial, step.name)
    if made is not None or place is None or product(step) is None:
        return made
    (above,) = readers_of(trial, step.name)
    inside = None if above.term is None else spread(trial, place.name, above.term, above.use, step)
    return None if inside is None else as_map(inside, total)
