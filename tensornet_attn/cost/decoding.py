"""What decoding keeps: the floats that let one more query be answered after n keys have been seen.

Steps that have keys and no queries are computed once per key. Where queries meet them, something of each key must have
been kept: the cheapest set of such steps that everything else on the key side can be made of, as keys and values, or
one latent that both come from. A map that is a normalised product of features needs sums over the keys alone, whatever
their number, and so do fast weights; a map in a window needs the window's keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, prod

from tensornet_attn.graph.attention import Normalize, Terms, attentions, readers_of, score_of, split
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.recurrence import erases, sums
from tensornet_attn.graph.shown import by_distance, shown
from tensornet_attn.ir.areas import distances

LAST = 1 << 40  # floats that no cut takes while another is left


def decoding_state(graph: Graph, n: int) -> int:
    """Floats kept of n tokens, for one sequence; 0 where there is no key leg.

    >>> from tensornet_attn import build, load
    >>> decoding_state(build(load("mhsa")), 64)  # keys and values: 2 * 64 * 512
    65536
    """
    if graph.key is None:
        return 0
    states = {step.name: floats for step in graph.steps if (floats := _sums(graph, step)) is not None}
    held: dict[str, int] = {}  # key-side results that queries read, and how many keys of each are needed
    for step in graph.steps:
        queries = {*step.legs, *(leg for use in step.op.uses for leg in use.legs)} & {graph.query}
        for use in step.op.uses if queries else ():
            if graph.key in use.legs and graph.query not in use.legs and _on_keys(graph, use.name):
                held[use.name] = max(held.get(use.name, 0), int(min(n, _reach(graph, step, states))))

    def before(name: str) -> list[str]:
        step = graph.step.get(name)
        return [use.name for use in step.op.uses if _on_keys(graph, use.name)] if step else []

    groups: dict[int, list[str]] = {}
    for name, count in held.items():
        if count:
            groups.setdefault(count, []).append(name)
    kept = ((count, name) for count, found in groups.items() for name in cheapest(graph, found, before))
    return sum(states.values()) + sum(count * _floats(graph, {*graph.legs_of(name)}) for count, name in kept)


def _on_keys(graph: Graph, name: str) -> bool:
    """Whether a tensor or step differs from key to key by what the input is; weights and constants are no state."""
    if name in graph.tensor:
        return graph.tensor[name].role == "input"
    return any(_on_keys(graph, use.name) for use in graph.step[name].op.uses)


def _sums(graph: Graph, step: Step) -> int | None:
    """The floats of cumulative sums over the keys: of a product of sides, a normalised one, or fast weights."""
    box, found = step.box, attentions(graph).get(step.name)
    if box is not None and erases(step):
        key, value = {*box.operand("key").legs}, {*box.operand("value").legs}
        matrix, vector = _floats(graph, key | value), _floats(graph, key)
        return matrix + (vector if box.mode in ("read", "both") else 0)
    normalised = found is not None and isinstance(found.weighting, Normalize) and found.compares
    if box is None or not (normalised or step in sums(graph)) or _window(graph, step) < inf:
        return None
    inside = score_of(graph, box.operand("of"))
    if not isinstance(inside, Terms) or any(term.pairwise for term in inside.terms):
        return None
    if not normalised:
        sides = [{leg for use in term.key for leg in use.legs} for term in inside.terms if term.key]
        return sum(_floats(graph, side - {graph.key}) for side in sides)
    keys = {leg for term in inside.terms for use in term.key for leg in use.legs}
    features, heads, values = keys - {*inside.step.legs}, keys & {*inside.step.legs}, _values(graph, step.name)
    return _floats(graph, features) * (_floats(graph, heads | values) + _floats(graph, heads)) if values else None


def _values(graph: Graph, name: str) -> set[str]:
    """The legs of what a map is multiplied with where its keys are summed."""
    for reader in readers_of(graph, name):
        if reader.term is not None and graph.key in reader.use.legs:
            if graph.key in reader.step.legs:
                return _values(graph, reader.step.name)
            terms = [split(graph, term) for term in reader.step.contraction.terms if reader.use in term.factors]  # type: ignore[union-attr]
            return {leg for term in terms for use in term.key for leg in use.legs}
    return set()


def _reach(graph: Graph, step: Step, states: Mapping[str, int]) -> float:
    """How many of the last keys a query needs in a step; none for what is in cumulative sums already."""
    if step.name in states:
        return 0
    if graph.masked(step):
        return _window(graph, step)
    if graph.key in step.legs:  # scores: as many as the maps made of them
        after = [reader for reader, use in graph.readers.get(step.name, ()) if graph.key in use.legs]
        return max((_reach(graph, reader, states) for reader in after), default=inf)
    pairs = {use.name for use in step.op.uses if {graph.query, graph.key} <= set(use.legs)}
    return max((_seen(graph, name, states) for name in pairs), default=inf)


def _seen(graph: Graph, name: str, states: Mapping[str, int]) -> float:
    """How many of the last keys a map, mixed or blended perhaps, has entries for besides those in cumulative sums."""
    step = graph.step.get(name)
    if step is not None and (name in states or graph.masked(step)):
        return _reach(graph, step, states)
    pairs = {use.name for use in (step.op.uses if step else ()) if {graph.query, graph.key} <= set(use.legs)}
    return max((_seen(graph, one, states) for one in pairs), default=inf)


def _window(graph: Graph, step: Step) -> float:
    """The keys up to its own position that the masks of a box leave to a query: of `band(w)` w + 1."""
    masks = step.box.masks if step.box else ()
    found = distances(shown(masks, graph.values)) if by_distance(masks) else (-inf, inf)
    return 0 if found is None else found[1] + 1


def _floats(graph: Graph, legs: set[str]) -> int:
    return prod(graph.leg[leg].size or 1 for leg in legs)


def cheapest(graph: Graph, wanted: list[str], before: Callable[[str], list[str]]) -> list[str]:
    """The results of fewest numbers a position from which all that is wanted can be made again: a minimum cut.

    `before`: what a result is made of, position by position; empty for an input, and where only the whole past could
    give it again. Inputs are kept where they are wanted themselves, and else what is made of them.
    """
    import networkx

    net, waiting, seen = networkx.DiGraph(), list(wanted), set[str]()
    net.add_edges_from(((name, "out"), "queries") for name in wanted)
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        made_of, floats = before(name), _floats(graph, {*graph.legs_of(name)})
        if not made_of:
            net.add_edge("past", (name, "in"))
            floats = floats if name in wanted or name in graph.step else LAST
        net.add_edge((name, "in"), (name, "out"), capacity=floats)
        net.add_edges_from(((one, "out"), (name, "in")) for one in made_of)
        waiting += made_of
    _, (past, _) = networkx.minimum_cut(net, "past", "queries")
    return [name for name in seen if (name, "in") in past and (name, "out") not in past]
