"""Absorbed weights: keys and values are read before their projections, if that makes the whole plan cheaper.

# K = c Wk; V = c Wv; A.of = Q K; y = A V Wo     ->     A.q = Q Wk; A.of = A.q c; y = (A c) Wv Wo

Each candidate is planned completely and priced, forward and, in training, backward. It saves K and V for all keys, but
scores and the results of the map become as wide as `c`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain, product
from math import prod

from tensornet_attn.cost.figures import duration, instead
from tensornet_attn.cost.kernels import cost_of
from tensornet_attn.cost.price import time_of
from tensornet_attn.graph.attention import attentions
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.recurrence import Recurrence
from tensornet_attn.kernels import KERNELS
from tensornet_attn.kernels.implementation import Context, Lowered
from tensornet_attn.rewrite.engine import Rule, rewritten
from tensornet_attn.rewrite.fused import operation, softmaxes
from tensornet_attn.rewrite.products import ABSORPTIONS, CHAIN, KEY, VALUE
from tensornet_attn.rewrite.scores import RULES as SCORES
from tensornet_attn.tiles.legs import quadratic

ABSORBED = "absorbed weights"
HOW = {
    KEY.name: "with {0} on the query side and {1} as keys",
    VALUE.name: "with {0} after the map and {1} as values",
    CHAIN.name: "with {0} in one product with the weights that follow",
}


@dataclass(frozen=True)
class Whole:
    """The cost of a schedule: time in the device's units; `pairs`: elements with both a query and a key leg.

    `fused`: the number of operations that never store scores.
    """

    time: int
    pairs: int
    fused: int

    def less(self, other: Whole) -> bool:
        return self.time < other.time and self.pairs <= other.pairs and self.fused >= other.fused


@dataclass(frozen=True)
class Absorption:
    """Rules at places, the graph after them, and its cost."""

    fired: tuple[tuple[Rule, str], ...]
    graph: Graph
    cost: Whole


def absorbed(graph: Graph, context: Context, schedule_of: Callable[[Graph], Graph]) -> Lowered:
    """Applies the best move repeatedly, as long as it reduces the time of the whole plan.

    Moves that store more scores or prevent fused attention are skipped.
    """

    @cache
    def cost(moved: Graph) -> Whole:
        return _whole(schedule_of(fusable(graph, moved)), context)

    moved, chosen = graph, dict[str, str]()
    while moves := [Absorption(fired, after, cost(after)) for fired, after in _moves(moved)]:
        improving = [move for move in moves if move.cost.less(cost(moved))]
        if ABSORBED in context.forced and not chosen:
            improving = improving or moves
        if not improving:
            return Lowered(fusable(graph, moved), chosen, _refusals(moved, moves, cost(moved), context))
        best = min(improving, key=lambda move: move.cost.time)
        chosen |= {place: f"{ABSORBED}: {_describe(moved, rule, place)}" for rule, place in best.fired}
        moved = best.graph
    return Lowered(fusable(graph, moved), chosen)


def _describe(graph: Graph, rule: Rule, place: str) -> str:
    """The effect of a rule on a step: its weights, and the tensors that remain on the key leg."""
    uses = graph.step[place].op.uses
    names = [[use.name for use in uses if (graph.key in use.legs) is keys] for keys in (False, True)]
    return HOW[rule.name].format(*(" ".join(f"'{name}'" for name in dict.fromkeys(side)) for side in names))


def _moves(graph: Graph) -> Iterator[tuple[tuple[tuple[Rule, str], ...], Graph]]:
    """Each rule at each place, and pairs of a key and the value that is read with its scores."""
    single = [
        ((rule, step.name), after)
        for step in graph.steps
        for rule in ABSORPTIONS
        if (after := rule.apply(graph, step.name)) is not None
    ]
    for fired, after in single:
        yield (fired,), after
    for (key, first), (value, _) in product(single, single):
        if (key[0], value[0]) == (KEY, VALUE) and _meet(graph, key[1], value[1]):
            both = VALUE.apply(first, value[1])
            if both is not None:
                yield (key, value), both


def fusable(start: Graph, graph: Graph) -> Graph:
    """The graph with changed scores merged into one product wherever fused attention then accepts them."""
    for box in softmaxes(graph):
        scores = attentions(graph)[box].scores
        if scores is not None and start.step.get(scores.name) != scores:
            merged, trace = rewritten(graph, box, SCORES)
            graph = merged if trace and not isinstance(operation(attentions(merged)[box]), str) else graph
    return graph


def _whole(schedule: Graph, context: Context) -> Whole:
    size = {leg.name: leg.size or context.sizes[leg.name] for leg in schedule.legs}
    pairs = [step.legs for step in schedule.steps if quadratic(schedule, step.legs)]
    kernels = chain(
        *(step.kernel.body if step.kernel and cost_of(step).by_steps else (step,) for step in schedule.steps)
    )
    return Whole(
        time_of(schedule, context.sizes, context.target),
        sum(prod(size[leg] for leg in legs) for legs in pairs),
        sum(map(_makes_no_scores, kernels)),
    )


def _refusals(graph: Graph, moves: Sequence[Absorption], now: Whole, context: Context) -> dict[str, tuple[str, ...]]:
    """Why keys and values stay as written: the best move for each of them, with its cost."""
    refusals = dict[str, tuple[str, ...]]()
    for move in sorted(moves, key=lambda move: move.cost.time):
        against = _against(move.cost, now, context)
        for rule, place in move.fired:
            if rule is not CHAIN:
                refusals.setdefault(place, (f"{_describe(graph, rule, place)}, {against}",))
    return refusals


def _against(cost: Whole, now: Whole, context: Context) -> str:
    """Why a move with this cost is not made."""
    if cost.pairs > now.pairs:
        return f"it would store {cost.pairs - now.pairs:,} more scores"
    if cost.fused < now.fused:
        return "its scores would no longer be fused"
    seconds, seconds_now = (context.device.seconds(schedule_cost.time) for schedule_cost in (cost, now))
    return f"the whole plan would take {instead(seconds, seconds_now, duration)}"


def _makes_no_scores(step: Step) -> bool:
    """Whether a step is fused attention, banded or not, or linear attention."""
    form = step.form
    linear = isinstance(form, Recurrence) and form.value is not None and not form.mixes
    return linear or (step.kernel is not None and bool(KERNELS[step.kernel.kind].alone))


def _meet(graph: Graph, key: str, value: str) -> bool:
    """Whether the product that reads a value also reads, through a map, the scores of a key."""
    (scores, _), *_ = graph.readers[key]
    ancestors = {reader.name for reader, _ in graph.readers.get(value, ())}
    for step in reversed(graph.steps):
        if step.name in ancestors:
            ancestors |= {use.name for use in step.op.uses}
    return scores.name in ancestors
