"""Rewrites that turn the scores of a softmax over keys into one product of a query and a key tensor.

Each fires only if the steps that it changes have no other reader.
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.diagram import operation_of, producer_of
from tensornet_attn.graph.distance import POSITION, gap_of, two_sides, with_places
from tensornet_attn.graph.graph import Box, Function, Graph, Step, Use
from tensornet_attn.graph.recurrence import without_values
from tensornet_attn.ir.arithmetic import evaluate
from tensornet_attn.ir.steps import legs_in
from tensornet_attn.ops import OPS
from tensornet_attn.ops.softmax import sink_of
from tensornet_attn.rewrite.change import plain_number, read_once, with_steps, with_uses
from tensornet_attn.rewrite.engine import Rule
from tensornet_attn.rewrite.features import SIDE_BY_SIDE, Joined
from tensornet_attn.rewrite.pattern import Choices, Match, pattern


def joint_keys(graph: Graph, step_name: str) -> Graph | None:
    """softmax over m of logsumexp over r of L, times V   ->   softmax over r and m of L, times V, summed over r"""
    step, box = graph.step[step_name], graph.step[step_name].box
    if box is None or box.other is not None:
        return None
    inner = producer_of(graph, box.of)
    sums = inner.box if inner is not None else None
    if (
        inner is None
        or sums is None
        or not OPS[sums.kind].log_of_sum
        or sums.leg == graph.key
        or not _plain(graph, box)
    ):
        return None
    scores, readers = sums.of, graph.readers.get(step_name, ())
    unrenamed = scores.name in graph.step and scores.legs == graph.legs_of(scores.name)
    single_reader = (
        len(readers) == 1 and readers[0][0].contraction is not None and read_once(graph, inner.name) is not None
    )
    if not (unrenamed and single_reader and box.of.legs == inner.legs):
        return None

    def wider(use: Use) -> Use:
        names = dict(zip(step.legs, use.legs, strict=True)) if use.name == step_name else {}
        return Use(step_name, tuple(names.get(leg, leg) for leg in scores.legs)) if names else use

    operands = (("of", scores), *box.operands[1:])
    wide = replace(step, op=replace(box, operands=operands, other=sums.leg), legs=scores.legs)
    reader = with_uses(readers[0][0], wider)
    return with_steps(graph, {step_name: [wide], inner.name: [], reader.name: [reader]})


def _plain(graph: Graph, box: Box) -> bool:
    """Whether a softmax has no scale and no dropout."""
    numbers = dict(box.numbers)
    all_known = all(plain_number(graph, number) for number in numbers.values())
    return all_known and [evaluate(numbers[key], graph.values) for key in ("scale", "dropout")] == [1, 0]


def own_names(match: Match) -> Match | None:
    """The softmax reads the scores under their own leg names."""
    return match if match.first_use("S").legs == match.steps["S"].legs else None


def of_two_sides(match: Match) -> Match | None:
    """D is the distance, or its absolute value if causal; N and M are the positions of query and key."""
    (spot,), scores, graph = match.spots["S"], match.steps["S"], match.graph
    causal = Function("causal") in graph.masks(match.steps["A"])
    if gap_of(graph, match.first_use("D"), causal) is None:
        return None
    separated = two_sides(graph, scores.terms[spot.term], causal)
    if separated is None:
        return None
    position_uses = [(position.use,) for position in separated[2]]
    bound = match.but(uses=dict(zip("NM", position_uses, strict=True)))
    return replace(bound, graph=with_places(graph, separated[2]))


def same_for_all_keys(match: Match, scores: Step, term_index: int) -> Choices:
    """The terms of the scores without the key leg.

    If a term with the key leg grows with the length, terms that grow are kept, because only their difference is small.
    """
    terms = scores.terms
    box = match.steps["A"].box
    if box is not None and sink_of(box) is not None:  # the scores' difference to the sink matters
        return
    read = [term for term in terms if any(match.keys & {*use.legs} for use in term.factors)]
    large = [term for term in terms if any(grows(match.graph, use) for use in term.factors)]
    stay = [*read, *large] if any(term in read for term in large) else read
    dropped = tuple(i for i, term in enumerate(terms) if term not in stay)
    if read and dropped:
        yield "", dropped


def core(match: Match) -> Match | None:
    """Of three or more factors, one has the query leg, and only K has a leg of the keys."""
    others = match.uses["X"]
    queries = [use for use in others if match.graph.query in use.legs]
    return match if len(others) > 1 and len(queries) == 1 and not match.keys & legs_in(others) else None


def same_keys(match: Match) -> Match | None:
    """X + Y has the query leg and not the key leg, and has only legs of F and the scores."""
    legs = match.legs("X", "Y")
    query_only = match.graph.query in legs and match.graph.key not in legs
    return match if query_only and legs <= match.legs("F", "S") else None


def one_side(match: Match, scores: Step, term_index: int) -> Choices:
    """The factors of keys or of queries, if there are factors of the other side; all if legs would be summed."""
    factors = scores.terms[term_index].factors
    keys = [i for i, use in enumerate(factors) if match.keys & {*use.legs}]
    queries = [i for i, use in enumerate(factors) if match.graph.query in use.legs]
    for side, side_factors, others in (("k", keys, queries), ("q", queries, keys)):
        chosen = side_factors if others else range(len(factors))
        beyond = legs_in(factors[i] for i in chosen) - {*scores.legs}
        if side_factors and len(chosen) > 1 and not {*side_factors} & {*others} and (others or beyond):
            yield side, tuple(chosen)


def grows(graph: Graph, use: Use) -> bool:
    """Whether a tensor grows with the length: a position, or a sum over the keys up to a query, also as an operand."""
    tensor, step = graph.tensor.get(use.name), producer_of(graph, use)
    if step is None:
        return tensor is not None and (tensor.init == POSITION or tensor.wide)
    if step.box is not None:
        return operation_of(step).is_sum and graph.masked(step)
    return without_values(step)


RULES = (
    pattern(
        "scores in one sum",
        "R = ..; S = .. + c * R[n m] ..; A = softmax(S) -> S = .. + c * (R) ..; A = softmax(S)",
        own_names,
    ),
    pattern(
        "distance in two",
        "S = .. + c * D ..; A = softmax(S) -> S = .. + c * N .. + -c * M ..; A = softmax(S)",
        own_names,
        of_two_sides,
    ),
    Rule(
        "joint keys",
        "L = logsumexp_r(X); A = softmax_m(L); Y = A V -> A = softmax_(r m)(X); Y = A V, summed over r",
        joint_keys,
        "the legs of a box change, and with them the uses of it",
    ),
    pattern(
        "constant dropped",
        "S = .. + T[terms]..; A = softmax(S) -> S = ..; A = softmax(S)",
        own_names,
        choose=same_for_all_keys,
    ),
    pattern(
        "core into the query",
        "S = .. + c * X.. K[keys no n]; A = softmax(S) -> S = .. + {c * X..} K; A = softmax(S)",
        own_names,
        core,
        new=(("{A}.q", "n S K"),),
    ),
    pattern(
        "sum before the product",
        "S = .. + a * X F[m] + b * Y F; A = softmax(S) -> S = {a * X + b * Y} F + ..; A = softmax(S)",
        own_names,
        same_keys,
        new=(("{S.root}.q", ""),),
    ),
    pattern(
        "one side first",
        "S = .. + c * X[chosen].. ..; A = softmax(S) -> S = .. + c * {X..} ..; A = softmax(S)",
        own_names,
        choose=one_side,
        new=(("{A}.{label}", ""),),
    ),
    SIDE_BY_SIDE,
)


def exact_parts(graph: Graph, step: Step) -> list[Step]:
    """The parts of a join, and of its counterpart, that are added to scores and whose differences matter."""
    joins = [join for join in graph.steps if isinstance(join.form, Joined) and join.form == step.form]  # both sides
    alone = [inner for join in joins if join.kernel for inner in join.kernel.body if {*inner.legs} < {*join.legs}]
    large = any(grows(graph, use) for inner in alone for use in inner.uses)
    return [inner for inner in alone if inner.uses] if large else []
