"""Building blocks of rules: readers of steps, replacing and inlining of steps, fresh names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from tensornet_attn import limits
from tensornet_attn.graph.attention import attentions
from tensornet_attn.graph.graph import Graph, Leg, Step, Term, Use
from tensornet_attn.ir.arithmetic import Arith, Name, evaluate, names
from tensornet_attn.ir.arithmetic import times as times
from tensornet_attn.ir.steps import legs_in, with_terms, without
from tensornet_attn.ir.steps import with_uses as with_uses

Legs = tuple[str, ...]


def product(step: Step | None) -> Term | None:
    """The one term of a step that is a single product."""
    terms = step.terms if step is not None else ()
    return terms[0] if len(terms) == 1 else None


def kept(graph: Graph, name: str) -> bool:
    """Whether a step is a result of the graph: the output, an update of a state, or a loss."""
    return name in graph.results


def read_once(graph: Graph, name: str) -> Step | None:
    """The only reader of a step. Returns None if it is read more than once or is a result of the graph."""
    readers = graph.readers.get(name, ())
    return readers[0][0] if len(readers) == 1 and not kept(graph, name) else None


def with_steps(graph: Graph, replacements: Mapping[str, Iterable[Step]]) -> Graph:
    """The graph with the named steps replaced by other steps."""
    if not replacements:
        return graph
    return replace(
        graph, steps=tuple(replacement for step in graph.steps for replacement in replacements.get(step.name, [step]))
    )


def settled(before: Graph, after: Graph) -> Graph | None:
    """The graph after a rule, without unread constants. Returns None if another leaf would lose its last reader.

    Weights and inputs stay in the graph, so that each keeps its gradient, possibly of zeros.
    """
    unread = before.readers.keys() - after.readers.keys()
    if any(name in before.tensor and before.tensor[name].role != "constant" for name in unread):
        return None
    return replace(after, tensors=tuple(tensor for tensor in after.tensors if tensor.name not in unread))


def plain_number(graph: Graph, tree: Arith) -> bool:
    """Whether arithmetic is known before run time."""
    return all(name.name in graph.values for name in names(tree))


def fresh(graph: Graph, name: str) -> str:
    """A name that no tensor and no step has."""
    count, candidate = 1, name
    while candidate in graph.step or candidate in graph.tensor:
        count += 1
        candidate = f"{name}{count}"
    return candidate


def leg_like(graph: Graph, name: str, size: int, kind: str, taken: Iterable[str]) -> Leg:
    """A leg of this size that is not taken: the named leg if possible, otherwise one with `_` appended."""
    while name in taken or name in dict(graph.settings) or not _fits(graph.leg.get(name), size):
        name += "_"
    return graph.leg.get(name) or Leg(name, kind, size)


def _fits(leg: Leg | None, size: int) -> bool:
    return leg is None or (leg.size == size and leg.kind in ("size", "head"))


def with_legs(graph: Graph, legs: Iterable[Leg]) -> Graph:
    added = {leg.name: leg for leg in legs if leg.name not in graph.leg}
    return replace(graph, legs=(*graph.legs, *added.values()))


def leaf(graph: Graph, use: Use) -> Use:
    """An operand that a kernel reads from outside, under its own leg names, except that sequence legs are as used."""
    declared = graph.legs_of(use.name)
    return Use(
        use.name,
        tuple(
            used_leg if graph.leg[used_leg].sequence else declared_leg
            for declared_leg, used_leg in zip(declared, use.legs, strict=True)
        ),
    )


def without_dead(graph: Graph, names: Iterable[str]) -> Graph | None:
    """The graph without those of the steps, and of their operands, that have no reader.

    Returns None if a weight would lose its last reader.
    """
    for name in names:
        dead = graph.step.get(name)
        if dead is None or name in graph.readers or kept(graph, name):
            continue
        smaller = settled(graph, with_steps(graph, {name: []}))
        cleaned = None if smaller is None else without_dead(smaller, (use.name for use in dead.uses))
        if cleaned is None:
            return None
        graph = cleaned
    return graph


def draws(graph: Graph, step: Step) -> bool:
    """Whether a step draws random numbers, so that it differs from all other steps."""
    chance = dict(step.box.numbers).get("dropout") if step.box is not None else None
    return chance is not None and not (plain_number(graph, chance) and evaluate(chance, graph.values) == 0)


def read_instead(graph: Graph, step_name: str, name: str, order: tuple[int, ...]) -> Graph | None:
    """The graph in which readers of `step_name` read the step `name` instead; `order` permutes the legs.

    Returns None if a mask of the call would have other legs, or if the step has no reader or is a result.
    """
    if kept(graph, step_name) or step_name not in graph.readers:
        return None

    def change(use: Use) -> Use:
        return Use(name, tuple(use.legs[i] for i in order)) if use.name == step_name else use

    readers = {step.name: [with_uses(step, change)] for step, _ in graph.readers[step_name]}
    if any(seen(graph, graph.step[name]) != seen(graph, reader) for name, (reader,) in readers.items()):
        return None
    return settled(graph, with_steps(graph, {**readers, step_name: []}))


def seen(graph: Graph, step: Step) -> Legs:
    """The legs, other than query and key, of a mask of the call, in its order; empty if masks do not apply."""
    pair = (graph.query, graph.key)
    if step.box is None or not graph.masked(step):
        return ()
    return without(step.box.of.legs, *pair)


def is_map(graph: Graph, step: Step | None) -> bool:
    """Whether a step is an attention map."""
    return step is not None and step.name in attentions(graph)


def spread(graph: Graph, step_name: str, term_index: int, use: Use, source: Step) -> Graph | None:
    """The graph with `source` inlined into a product of the sum `step_name`. Returns None if that is not possible."""
    step = graph.step[step_name]
    terms = list(step.terms)
    expansion = inlined(graph, step.legs, terms[term_index], use, source)
    if expansion is None or any({*use.legs} - legs_in(term.factors) for term in expansion[0]):
        return None
    terms[term_index : term_index + 1] = expansion[0]
    if len(terms) > limits.TERMS:
        return None
    changed = with_steps(graph, {step_name: [with_terms(step, terms)], source.name: []})
    return settled(graph, with_legs(changed, expansion[1]))


def inlined(
    graph: Graph, legs: Legs, outer: Term, use: Use, source: Step
) -> tuple[tuple[Term, ...], tuple[Leg, ...]] | None:
    """(terms, new legs) of a product `outer`, in a step with these legs, after inlining the step of its factor `use`.

    Legs that the source sums are renamed to avoid those of the product. Returns None if this is not possible, or if
    there are too many factors.
    """
    index, new_legs, terms = outer.factors.index(use), dict[str, Leg](), list[Term]()
    rest = (*outer.factors[:index], *outer.factors[index + 1 :])
    taken = {*legs, *legs_in(outer.factors), *source.legs}
    for term in source.terms:
        names = dict(zip(source.legs, use.legs, strict=True))
        for leg in sorted(legs_in(term.factors) - names.keys()):
            declared = graph.leg[leg]
            if declared.size is None or declared.sequence:
                if leg in taken:
                    return None
                names[leg] = leg
                continue
            like = leg_like(
                with_legs(graph, new_legs.values()), leg, declared.size, declared.kind, taken | {*names.values()}
            )
            new_legs[like.name], names[leg] = like, like.name
        inner = tuple(factor.renamed(names) for factor in term.factors)
        if len(rest) + len(inner) > limits.FACTORS:
            return None
        coefficient = times(outer.coefficient, term.coefficient)
        for leg in sorted({*use.legs} - {*legs} - legs_in((*inner, *rest))):  # a sum over a broadcast leg
            if leg == graph.key:  # a key mask decides how many keys are summed
                return None
            coefficient = times(coefficient, Name(leg))
        terms.append(Term(coefficient, (*inner, *rest)))
    return tuple(terms), tuple(new_legs.values())
