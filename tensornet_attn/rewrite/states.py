"""A rule for what the output and a state both need: it is made for the state once more.

Alone with the output, the step can go where another reader would hold it. The state's part runs in training only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tensornet_attn.graph.model import Graph, Step, Use
from tensornet_attn.rewrite.change import fresh, with_steps, with_uses
from tensornet_attn.rewrite.engine import Rule
from tensornet_attn.rewrite.simplify import draws


def behind(graph: Graph, names: Iterable[str]) -> set[str]:
    """Steps, and the steps that they are made of."""
    found = set(names)
    for step in reversed(graph.steps):
        if step.name in found:
            found |= {use.name for use in step.op.uses if use.name in graph.step}
    return found


def only_for_states(graph: Graph) -> set[str]:
    """The steps without which the output would be the same."""
    return {step.name for step in graph.steps} - behind(graph, [graph.output])


def state_apart(graph: Graph, place: str) -> Graph | None:
    """L = Q K; A = f(L); s = g(L), a state   ->   L = Q K; A = f(L); L' = Q K; s = g(L')"""
    step, apart = graph.step[place], only_for_states(graph)
    readers = {reader.name for reader, _ in graph.readers.get(place, ())}
    if draws(graph, step) or place in apart or not readers & apart:
        return None
    if not {graph.query, graph.key} <= {*step.legs}:
        return None
    name = fresh(graph, f"{place}.apart")

    def change(use: Use) -> Use:
        return Use(name, use.legs) if use.name == place else use

    new: dict[str, list[Step]] = {own: [with_uses(graph.step[own], change)] for own in readers & apart}
    return with_steps(graph, new | {place: [step, replace(step, name=name)]})


STATE_APART = Rule("state apart", "L = Q K; A = f(L); s = g(L) -> A = f(L); s = g(L'), L' = Q K", state_apart)
