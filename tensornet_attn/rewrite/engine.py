"""The engine of the rewrites: rules are tried in order, again and again, until none fires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tensornet_attn.graph.model import Graph

CAP = 64  # firings for one place; far more than any diagram needs


@dataclass(frozen=True)
class Rule:
    """`before -> after`, and the function that does it at one place: the new graph, or None where it does not fit.

    `names`: of a pattern, what its names stand for where it fires. `why`: of any other rule, why it is no pattern.
    """

    name: str
    algebra: str
    apply: Callable[[Graph, str], Graph | None]
    why: str = ""
    names: Callable[[Graph, str], dict[str, str]] | None = None


@dataclass(frozen=True)
class Firing:
    """One application of a rule: the rule, the graph after it, and the step that it fired at."""

    rule: Rule
    graph: Graph
    place: str = ""


Trace = tuple[Firing, ...]


def rewritten(graph: Graph, place: str, rules: Sequence[Rule]) -> tuple[Graph, Trace]:
    """The graph with the rules applied around a step until none fires, and how it came to that.

    Raises RuntimeError, naming the rule, where they never come to rest.
    """
    trace: list[Firing] = []
    while (firing := _first(graph, place, rules)) is not None:
        graph = firing.graph
        trace.append(firing)
        if len(trace) > CAP:
            _refuse(firing)
    return graph, tuple(trace)


def everywhere(graph: Graph, rules: Sequence[Rule]) -> tuple[Graph, Trace]:
    """The same around every step, in the order of the graph, until the rules fire around none."""
    trace: list[Firing] = []
    cap, quiet = CAP * max(1, len(graph.steps)), set[str]()  # where nothing fires in the graph as it is
    while True:
        before = len(trace)
        for place in [step.name for step in graph.steps]:
            if place in quiet:
                continue
            graph, fired = rewritten(graph, place, rules)
            quiet = {place} if fired else quiet | {place}
            trace += fired
            if len(trace) > cap:
                _refuse(trace[-1])
        if len(trace) == before:
            return graph, tuple(trace)


def _first(graph: Graph, place: str, rules: Sequence[Rule]) -> Firing | None:
    for rule in rules:
        made = rule.apply(graph, place) if place in graph.step else None  # a rule may take its own step away
        if made is not None:
            return Firing(rule, made, place)
    return None


def _refuse(firing: Firing) -> NoReturn:
    name = firing.graph.name
    raise RuntimeError(f"the rewrite '{firing.rule.name}' fires without end at '{firing.place}' of '{name}'.")
