"""One projection for several products of the same tensor with weights: concatenates the weights, splits the result.

# Q = x Wq;  K = x Wk;  V = x Wv     ->     W = [Wq, Wk, Wv];  P = x W;  Q, K, V = parts of P
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tensornet_attn.graph.model import Contraction, Graph, Kernel, Step, Term, Use
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.rewrite.change import Legs, fresh, leg_like, product, with_legs, with_steps
from tensornet_attn.rewrite.engine import Rule
from tensornet_attn.rewrite.features import Joined


def one_projection(graph: Graph, place: str) -> Graph | None:
    """Q = x Wq;  K = x Wk   ->   P = x [Wq, Wk];  Q, K = parts of P"""
    first = _projection(graph, graph.step[place])
    if first is None:
        return None
    same = [step for step in graph.steps if _same(graph, first, _projection(graph, step))]
    if len(same) < 2 or same[0].name != place:
        return None
    x, _, summed = first
    found = [_projection(graph, step) for step in same]
    own = [tuple(leg for leg in made[1].legs if leg not in made[2]) for made in found if made is not None]
    sizes = [prod(graph.leg[leg].size or 0 for leg in legs) for legs in own]
    if any({*legs} & {*summed} for legs in own):
        return None
    wide = leg_like(graph, "w", sum(sizes), "size", {*graph.leg})
    names = fresh(graph, f"{x.name}.w"), fresh(graph, f"{x.name}.p")
    weights = _side_by_side(names[0], [made for made in found if made is not None], own, summed, wide.name)
    kept = tuple(leg for leg in x.legs if leg not in summed)
    joint = Step(names[1], Contraction((Term(ONE, (x, Use(names[0], weights.legs))),)), (*kept, wide.name))
    parts = {}
    for step, made in zip(same, found, strict=True):
        assert made is not None
        mine = tuple(leg for leg in made[0].legs if leg not in made[2])
        part = replace(step, op=Kernel("part", (Use(names[1], (*mine, wide.name)),), (step,)))
        parts[step.name] = [weights, joint, part] if step.name == place else [part]
    return with_legs(with_steps(graph, parts), [wide])


WHY_NOT = "not applied: slower at short lengths, no clear gain at long ones"
Projection = tuple[Use, Use, Legs]  # the tensor, the weight, the legs that they share


def _projection(graph: Graph, step: Step) -> Projection | None:
    """A step that is a tensor times a weight, which share only summed legs; None for other steps."""
    term = product(step)
    if term is None or term.coefficient != ONE or len(term.factors) != 2:
        return None
    x, weight = term.factors
    if _weight(graph, x):
        x, weight = weight, x
    if not _weight(graph, weight) or _weight(graph, x):
        return None
    summed = tuple(leg for leg in x.legs if leg in weight.legs)
    own = tuple(leg for leg in weight.legs if leg not in summed)
    known = all(graph.leg[leg].size is not None and not graph.leg[leg].sequence for leg in weight.legs)
    whole = {*step.legs} == ({*x.legs} - {*summed}) | {*own}
    return (x, weight, summed) if summed and own and known and whole and not {*summed} & {*step.legs} else None


def _weight(graph: Graph, use: Use) -> bool:
    return use.name in graph.tensor and graph.tensor[use.name].role == "weight"


def _same(graph: Graph, one: Projection, other: Projection | None) -> bool:
    """Whether two projections sum the same legs of the same tensor."""
    if other is None or one[0].name != other[0].name:
        return False
    return [leg in one[2] for leg in one[0].legs] == [leg in other[2] for leg in other[0].legs]


def _side_by_side(name: str, found: list[Projection], own: list[Legs], summed: Legs, wide: str) -> Step:
    """The weights concatenated along one leg; the summed legs have the names of the first weight."""
    parts, uses = list[Step](), dict[str, Use]()
    for place, ((_, weight, theirs), legs) in enumerate(zip(found, own, strict=True)):
        names = dict(zip(theirs, summed, strict=True))
        use = Use(weight.name, tuple(names.get(leg, leg) for leg in weight.legs))
        uses[weight.name] = use
        parts.append(Step(f"{name}.{place}", Contraction((Term(ONE, (use,)),)), (*summed, *legs)))
    return Step(name, Kernel("join", tuple(uses.values()), tuple(parts), Joined(wide)), (*summed, wide))


PROJECTION = Rule(
    "one projection", "x Wq; x Wk; x Wv -> parts of x [Wq, Wk, Wv]", one_projection, "it joins any number of weights"
)
