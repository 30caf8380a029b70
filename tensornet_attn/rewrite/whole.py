"""What is done to every diagram before it is planned, and what became of the steps that it took away."""

from __future__ import annotations

from tensornet_attn.graph.model import Graph
from tensornet_attn.rewrite.engine import Trace, everywhere
from tensornet_attn.rewrite.names import OWN_NAMES
from tensornet_attn.rewrite.relu import RELU
from tensornet_attn.rewrite.simplify import RULES
from tensornet_attn.rewrite.structure import SPLITS, split_kron


def simplified(graph: Graph) -> tuple[Graph, Trace]:
    """The graph with everything left out that it can do without, and the rules that did it.

    >>> from tensornet_attn import load
    >>> from tensornet_attn.graph import build
    >>> simplified(build(load("mhsa_core")))[0].hash == build(load("mhsa")).hash
    True
    """
    made, trace = everywhere(graph, (*RULES, OWN_NAMES, RELU))
    if any(split_kron(made, step.name) is not None for step in made.steps):
        made, more = everywhere(made, (*SPLITS, *RULES, OWN_NAMES))
        trace += more
    return made, trace


def gone(graph: Graph, trace: Trace) -> dict[str, str]:
    """The steps of a diagram that rewriting took away, each with the rule that did it."""
    found: dict[str, str] = {}
    for firing in trace:
        found |= {step.name: firing.rule.name for step in graph.steps if step.name not in firing.graph.step}
        graph = firing.graph
    return found
