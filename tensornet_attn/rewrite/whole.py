"""The simplification of every diagram before planning, and the steps that it removes."""

from __future__ import annotations

from tensornet_attn.graph.model import Graph
from tensornet_attn.rewrite.engine import Trace, everywhere
from tensornet_attn.rewrite.relu import RELU
from tensornet_attn.rewrite.simplify import RULES
from tensornet_attn.rewrite.structure import SPLITS, split_kron


def simplified(graph: Graph) -> tuple[Graph, Trace]:
    """(simplified graph, trace of the rules applied).

    >>> from tensornet_attn import load
    >>> from tensornet_attn.graph import build
    >>> simplified(build(load("mhsa_core")))[0].hash == build(load("mhsa")).hash
    True
    """
    made, trace = everywhere(graph, (*RULES, RELU))
    if any(split_kron(made, step.name) is not None for step in made.steps):
        made, more = everywhere(made, (*SPLITS, *RULES))
        trace += more
    return made, trace


def gone(graph: Graph, trace: Trace) -> dict[str, str]:
    """Maps each step that rewriting removed to the name of the rule."""
    found: dict[str, str] = {}
    for firing in trace:
        found |= {step.name: firing.rule.name for step in graph.steps if step.name not in firing.graph.step}
        graph = firing.graph
    return found
