"""The engine of the rewrites: tries rules in order until none fires."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NoReturn

from tensornet_attn.graph.graph import Graph

CAP = 64  # firings for one place; far above the needs of any diagram


@dataclass(frozen=True)
class Rule:
    """A rule `before -> after`. `apply` returns the graph after applying it at a step, or None if it does not match.

    `names` returns the bindings of a pattern's names. For a rule that is not a pattern, `why` gives the reason.
    """

    name: str
    algebra: str
    apply: Callable[[Graph, str], Graph | None]
    why: str = ""
    names: Callable[[Graph, str], dict[str, str]] | None = None


@dataclass(frozen=True)
class Firing:
    """One application of a rule: the rule, the graph after it, and its step."""

    rule: Rule
    graph: Graph
    step_name: str = ""


Trace = tuple[Firing, ...]


def rewritten(graph: Graph, step_name: str, rules: Sequence[Rule]) -> tuple[Graph, Trace]:
    """(graph, trace) after applying the rules at one step until none fires.

    Raises RuntimeError with the name of the rule if the rules reach no fixed point.
    """
    trace: list[Firing] = []
    while (firing := _first(graph, step_name, rules)) is not None:
        graph = firing.graph
        trace.append(firing)
        if len(trace) > CAP:
            _refuse(firing)
    return graph, tuple(trace)


def everywhere(graph: Graph, rules: Sequence[Rule]) -> tuple[Graph, Trace]:
    """(graph, trace) after applying the rules at all steps, in the order of the graph, until none fires."""
    trace: list[Firing] = []
    cap, quiet = CAP * max(1, len(graph.steps)), set[str]()  # steps at which no rule fires in the current graph
    while True:
        before = len(trace)
        for step_name in [step.name for step in graph.steps]:
            if step_name in quiet:
                continue
            graph, fired = rewritten(graph, step_name, rules)
            quiet = {step_name} if fired else quiet | {step_name}
            trace += fired
            if len(trace) > cap:
                _refuse(trace[-1])
        if len(trace) == before:
            return graph, tuple(trace)


def _first(graph: Graph, step_name: str, rules: Sequence[Rule]) -> Firing | None:
    for rule in rules:
        after = rule.apply(graph, step_name) if step_name in graph.step else None  # a rule may remove its own step
        if after is not None:
            return Firing(rule, after, step_name)
    return None


def _refuse(firing: Firing) -> NoReturn:
    name = firing.graph.name
    raise RuntimeError(f"the rewrite '{firing.rule.name}' never stops firing at '{firing.step_name}' of '{name}'.")
