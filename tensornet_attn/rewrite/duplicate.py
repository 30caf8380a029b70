"""Rules that duplicate a step with several readers.

A step with a single reader can be lowered in ways that another reader would prevent. Steps of states and losses run
only in training.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.diagram import on_pairs
from tensornet_attn.graph.graph import Graph, Step, Use
from tensornet_attn.rewrite.change import draws, fresh, is_map, kept, with_steps, with_uses
from tensornet_attn.rewrite.engine import Rule


def beside_output(graph: Graph) -> set[str]:
    """The steps that only states and losses need."""
    return {step.name for step in graph.steps} - behind(graph, [graph.output, *graph.also])


def state_apart(graph: Graph, step_name: str) -> Graph | None:
    """L = Q K; A = f(L); s = g(L), a state or a loss   ->   L = Q K; A = f(L); L' = Q K; s = g(L')"""
    step, readers = graph.step[step_name], {reader.name for reader, _ in graph.readers.get(step_name, ())}
    if graph.query not in step.legs or graph.key not in step.legs or draws(graph, step):
        return None
    if len(readers) + (step_name in (graph.output, *graph.also)) < 2:
        return None  # needs a reader for the output and another reader
    apart = beside_output(graph)
    if step_name in apart or not readers & apart:
        return None
    return duplicated(graph, step_name, [readers & apart])


def scores_apart(graph: Graph, step_name: str) -> Graph | None:
    """S = Q K; A = f(S); L = g(S)   ->   S = Q K; A = f(S); S' = Q K; L = g(S')"""
    maps = maps_of(graph, step_name)
    return scores_of_their_own(graph, step_name, maps) if maps else None


def maps_of(graph: Graph, step_name: str) -> tuple[str, ...]:
    """The attention maps that read a product of queries and keys with further readers; empty if it has one reader."""
    step, readers = graph.step[step_name], [step for step, _ in graph.readers.get(step_name, ())]
    if step.contraction is None or not on_pairs(graph, step.legs):
        return ()
    if len(readers) + kept(graph, step_name) < 2:
        return ()
    return tuple(dict.fromkeys(reader.name for reader in readers if is_map(graph, reader)))


def scores_of_their_own(graph: Graph, step_name: str, maps: Collection[str]) -> Graph:
    """The graph in which each of these maps reads its own copy of the scores."""
    others = {step.name for step, _ in graph.readers[step_name]} - {*maps}
    first = [] if others or kept(graph, step_name) else list(maps)[:1]  # it keeps the original scores
    return duplicated(graph, step_name, [{map_name} for map_name in maps if map_name not in first])


def duplicated(graph: Graph, step_name: str, groups: Iterable[Collection[str]]) -> Graph:
    """The graph with a copy of a step for each group of its readers."""
    for readers in groups:
        name = fresh(graph, f"{step_name}.copy")

        def change(use: Use, name: str = name) -> Use:
            return Use(name, use.legs) if use.name == step_name else use

        rewired: dict[str, list[Step]] = {reader: [with_uses(graph.step[reader], change)] for reader in readers}
        graph = with_steps(
            graph, rewired | {step_name: [graph.step[step_name], replace(graph.step[step_name], name=name)]}
        )
    return graph


STATE_APART = Rule(
    "state apart",
    "L = Q K; A = f(L); s = g(L) -> A = f(L); s = g(L'), L' = Q K",
    state_apart,
    "structural: readers of any kind",
)
SCORES_APART = Rule(
    "duplicated scores",
    "S = Q K; A = f(S); L = g(S) -> A = f(S); L = g(S'), S' = Q K",
    scores_apart,
    "structural: readers of any kind",
)
