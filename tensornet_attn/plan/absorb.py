"""Absorbed weights: keys and values are read before their projections, if that makes the whole plan cheaper.

# K = c Wk; V = c Wv; A.of = Q K; y = A V Wo     ->     A.q = Q Wk; A.of = A.q c; y = (A c) Wv Wo

Each candidate is planned completely and priced, forward and, in training, backward. It saves K and V for all keys, but
scores and the results of the map become as wide as `c`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product, starmap

from tensornet_attn.cost.figures import instead
from tensornet_attn.cost.kernels import traits_of
from tensornet_attn.cost.price import time_of
from tensornet_attn.graph.attention import attentions
from tensornet_attn.graph.graph import Graph
from tensornet_attn.kernels import KERNELS
from tensornet_attn.kernels.apart import TIE
from tensornet_attn.kernels.implementation import Context, Lowered
from tensornet_attn.rewrite.engine import Rule, rewritten
from tensornet_attn.rewrite.fused import operation, softmaxes
from tensornet_attn.rewrite.products import ABSORPTIONS, CHAIN, KEY, VALUE
from tensornet_attn.rewrite.scores import RULES as SCORES

ABSORBED = "absorbed weights"
HOW = {
    KEY.name: "with {0} on the query side and {1} as keys",
    VALUE.name: "with {0} after the map and {1} as values",
    CHAIN.name: "with {0} in one product with the weights that follow",
}


@dataclass(frozen=True)
class Absorption:
    """Rules at places, the graph after them, the seconds of its schedule, and its kernels that store no maps.

    `fused`: those of fused attention, banded or not; `linear`: of linear attention, which gains with the length.
    """

    fired: tuple[tuple[Rule, str], ...]
    graph: Graph
    seconds: float
    fused: int
    linear: int

    def improves(self, now: Absorption) -> bool:
        """Whether this takes less time and fuses as much; without linear attention, beyond the error of predictions."""
        tie = TIE if self.linear < now.linear else 1
        return self.fused >= now.fused and tie * self.seconds < now.seconds


def absorbed(graph: Graph, context: Context, schedule_of: Callable[[Graph], Graph]) -> Lowered:
    """Applies the best move repeatedly, as long as it reduces the time of the whole plan.

    Moves that prevent fused attention are skipped.
    """

    def move(fired: tuple[tuple[Rule, str], ...], moved: Graph) -> Absorption:
        schedule = schedule_of(fusable(graph, moved))
        return Absorption(fired, moved, time_of(schedule, context.sizes, context.target), *_fused(schedule))

    chosen, now = dict[str, str](), None
    while candidates := [*_moves(now.graph if now else graph)]:
        now = now or move((), graph)
        moves = sorted(starmap(move, candidates), key=lambda candidate: candidate.seconds)
        improving = [candidate for candidate in moves if candidate.improves(now)]
        improving = improving or (moves if ABSORBED in context.forced and not chosen else [])
        if not improving:
            return Lowered(fusable(graph, now.graph), chosen, _refusals(moves, now))
        chosen |= {place: f"{ABSORBED}: {_describe(now.graph, rule, place)}" for rule, place in improving[0].fired}
        now = improving[0]
    return Lowered(fusable(graph, now.graph) if now else graph, chosen)


def _describe(graph: Graph, rule: Rule, place: str) -> str:
    """The effect of a rule on a step: its weights, and the tensors that remain on the key leg."""
    uses = graph.step[place].uses
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


def _fused(schedule: Graph) -> tuple[int, int]:
    """The kernels of fused attention, banded or not, and those of linear attention, also inside other kernels."""
    bodies = (step.kernel.body if step.kernel and traits_of(step).by_steps else (step,) for step in schedule.steps)
    rows = [row for step in chain(*bodies) if step.kernel and (row := KERNELS[step.kernel.kind]).alone]
    fused = sum(row.pairs for row in rows)
    return fused, len(rows) - fused


def _refusals(moves: Sequence[Absorption], now: Absorption) -> dict[str, tuple[str, ...]]:
    """Why keys and values stay as written: the best move for each of them, with its cost."""
    refusals = dict[str, tuple[str, ...]]()
    for move in moves:
        against = f"the whole plan would take {instead(move.seconds, now.seconds)}"
        against += ", as near as predictions are: linear attention gains with the length" * (move.seconds < now.seconds)
        if move.fused < now.fused:
            against = "its scores would no longer be fused"
        for rule, place in move.fired:
            if rule is not CHAIN:
                refusals.setdefault(place, (f"{_describe(now.graph, rule, place)}, {against}",))
    return refusals


def _meet(graph: Graph, key: str, value: str) -> bool:
    """Whether the product that reads a value also reads, through a map, the scores of a key."""
    (scores, _), *_ = graph.readers[key]
    ancestors = {reader.name for reader, _ in graph.readers.get(value, ())}
    for step in reversed(graph.steps):
        if step.name in ancestors:
            ancestors |= step.reads
    return scores.name in ancestors
