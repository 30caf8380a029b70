"""Distribution: a blend of attention maps times values becomes a blend of the products of each map and the values.

# A = b1 near + b2 far;  y = A V Wo     ->     A.V = b1 near V + b2 far V;  y = A.V Wo
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tensornet_attn.graph.attention import MapReader, attentions, readers_of
from tensornet_attn.graph.diagram import on_pairs, producer_of
from tensornet_attn.graph.graph import Contraction, Graph, Step, Term, Use
from tensornet_attn.ir.arithmetic import times
from tensornet_attn.ir.steps import legs_in, plus, within
from tensornet_attn.kernels.implementation import Context, Lowered, Rewriting
from tensornet_attn.rewrite.change import read_once, with_steps


@dataclass(frozen=True)
class Blend:
    """A sum of attention maps, each times factors without the key leg, and the only product that reads the sum."""

    step: Step
    terms: tuple[tuple[Term, Use], ...]  # each with its map
    reader: MapReader

    @property
    def maps(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(use.name for _, use in self.terms))


def distribution(graph: Graph, context: Context) -> Lowered:
    """Distributes each blend whose maps then all have implementations of their own."""
    rewritten, chosen, refused = graph, dict[str, str](), dict[str, tuple[str, ...]]()
    for step in graph.steps:
        blend = blend_of(rewritten, step)
        if blend is None:
            continue
        separate = distributed(rewritten, blend)
        dense = [name for name in blend.maps if not context.takes(separate, name)]
        if dense:
            refused[step.name] = (f"the map '{dense[0]}' would still be stored",)
        else:
            chosen[_name(rewritten, blend)] = f"{' and '.join(blend.maps)} are applied to the values, then blended"
            rewritten = separate
    return Lowered(rewritten, chosen, refused)


def blend_of(graph: Graph, step: Step) -> Blend | None:
    """The blend that a step is, if its only reader is one product with values."""
    if step.contraction is None or graph.key not in step.legs or read_once(graph, step.name) is None:
        return None
    terms, (reader,) = tuple(_terms(graph, step.contraction, step.legs)), readers_of(graph, step.name)
    if not all(map_use for _, map_use in terms) or not reader.values:
        return None
    if reader.use.legs != step.legs or graph.key in reader.step.legs:
        return None
    # No other tensor may have a leg that is summed inside the blend, and each map has the legs shared with the values.
    inside = legs_in(factor for term, _ in terms for factor in term.factors) - {*step.legs}
    shared = {*step.legs} & legs_in(reader.values)
    outside = {*reader.step.legs} | legs_in((*reader.values, *reader.others))
    if inside & outside or (inside and not all(map_use and shared <= {*map_use.legs} for _, map_use in terms)):
        return None
    return Blend(step, tuple((term, map_use) for term, map_use in terms if map_use), reader)


def _terms(
    graph: Graph, op: Contraction, legs: tuple[str, ...], inner: bool = False
) -> Iterator[tuple[Term, Use | None]]:
    """The terms of a blend, each with its map, or None if it has none; nested blends are expanded."""
    for term in op.terms:
        keys = [use for use in term.factors if on_pairs(graph, use.legs)]
        # A nested blend has its own leg names, so a leg that it sums cannot appear in the outer terms.
        in_scope = all({*use.legs} <= {*legs} for use in term.factors)
        source = producer_of(graph, keys[0]) if len(keys) == 1 else None
        if source is None or keys[0].legs != source.legs:
            yield term, None
        elif source.name in attentions(graph) and (in_scope or not inner):
            yield term, keys[0]
        elif source.contraction is None or not in_scope:
            yield term, None
        else:
            others = tuple(use for use in term.factors if use != keys[0])
            for nested, map_use in _terms(graph, source.contraction, legs, True):
                yield Term(times(term.coefficient, nested.coefficient), (*others, *nested.factors)), map_use


def distributed(graph: Graph, blend: Blend) -> Graph:
    """The graph in which each map of the blend is multiplied with the values; unused steps are removed."""
    outer, others = blend.reader.product, blend.reader.others
    unique, before = _hoisted(graph, blend)
    terms = tuple(_with_values(graph, blend, term, before) for term in unique)
    if others:
        name, legs = _name(graph, blend), _legs(graph, blend, others)
        before.append(Step(name, Contraction(terms), legs))
        terms = (Term(outer.coefficient, (Use(name, legs), *others)),)
    else:
        terms = tuple(Term(times(outer.coefficient, term.coefficient), term.factors) for term in terms)
    step = blend.reader.with_terms(terms)
    return _without_dead(with_steps(graph, {step.name: [*before, step]}))


def _with_values(graph: Graph, blend: Blend, term: Term, before: list[Step]) -> Term:
    """A term with the values instead of the key leg; its other factors on keys are multiplied with them `before`."""
    on_keys = tuple(use for use in term.factors if graph.key in use.legs and graph.query not in use.legs)
    values = blend.reader.values
    if on_keys:
        legs = tuple(dict.fromkeys(leg for use in (*values, *on_keys) for leg in use.legs))
        extended = replace(graph, steps=(*graph.steps, *before))
        name = _fresh(extended, f"{blend.step.name}.{values[0].name.replace('.', '_')}", on_keys)
        before.append(Step(name, Contraction.of(*on_keys, *values), legs))
        values = (Use(name, legs),)
    return Term(term.coefficient, (*(use for use in term.factors if use not in on_keys), *values))


def _hoisted(graph: Graph, blend: Blend) -> tuple[list[Term], list[Step]]:
    """Terms in which each map occurs once, and steps with the sums of the factors of maps that occurred repeatedly."""
    terms, steps = list[Term](), list[Step]()
    for name in blend.maps:
        occurrences = [(term, map_use) for term, map_use in blend.terms if map_use.name == name]
        if len(occurrences) == 1:
            terms.append(occurrences[0][0])
            continue
        weights = tuple(
            replace(term, factors=tuple(factor for factor in term.factors if factor != map_use))
            for term, map_use in occurrences
        )
        used = {leg for term in weights for use in term.factors for leg in use.legs}
        legs = dict.fromkeys((*blend.step.legs, *occurrences[0][1].legs))
        weight = Use(_fresh(graph, blend.step.name, (occurrences[0][1],)), within(legs, used))
        steps.append(Step(weight.name, Contraction(weights), weight.legs))
        terms.append(plus(weight, occurrences[0][1]))
    return terms, steps


def _legs(graph: Graph, blend: Blend, others: tuple[Use, ...]) -> tuple[str, ...]:
    """The legs of the blend applied to the values: its own, and those of the values that others need."""
    needed = {*blend.step.legs, *blend.reader.step.legs, *(leg for use in others for leg in use.legs)} - {graph.key}
    ordered = dict.fromkeys((*blend.step.legs, *(leg for value in blend.reader.values for leg in value.legs)))
    return within(ordered, needed)


def _name(graph: Graph, blend: Blend) -> str:
    return _fresh(graph, blend.step.name, blend.reader.values)


def _fresh(graph: Graph, prefix: str, values: tuple[Use, ...]) -> str:
    """A new step name: `A.V` for map A times values V, `A.B` for the factors of map B in A."""
    name = f"{prefix}.{'_'.join(value.name.replace('.', '_') for value in values)}"
    while name in graph.step:
        name += "_"
    return name


def _without_dead(graph: Graph) -> Graph:
    """The graph without sums that nothing reads: the blend, and blends nested in it."""
    read = {use.name for _, use in graph.uses()} | graph.results
    sums = [step.name for step in graph.steps if step.contraction and graph.key in step.legs]
    dead = set(sums) - read
    pruned = replace(graph, steps=tuple(step for step in graph.steps if step.name not in dead))
    return _without_dead(pruned) if dead else graph


DISTRIBUTION = Rewriting("distribution", distribution)
