"""Scores that several maps read: each map that can be lowered separately gets a copy of the scores.

# S = Q K;  A = softmax over m of S;  L = softmax of S, in a band     ->     S = Q K;  A = ..;  S.copy = Q K;  L = ..
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn.graph.graph import Graph
from tensornet_attn.kernels.attention import FUSED
from tensornet_attn.kernels.implementation import Context, Lowered, Rewriting
from tensornet_attn.plan.distribute import distribution
from tensornet_attn.rewrite.duplicate import maps_of, scores_of_their_own


def duplicated_scores(graph: Graph, context: Context) -> Lowered:
    """Copies scores for maps that then each have an implementation that does not store them."""
    return Lowered(_duplicated(graph, context, context))


def beside_kernels(graph: Graph, context: Context) -> Lowered:
    """Copies scores for maps that Triton kernels do not compute; a kernel of two maps computes their scores once."""
    rows = tuple(row for row in context.rows if row is not FUSED)
    return Lowered(_duplicated(graph, context, replace(context, rows=rows, backend="triton")))


def _duplicated(graph: Graph, context: Context, map_context: Context) -> Graph:
    for step in graph.steps:
        maps = maps_of(graph, step.name)
        if maps:
            trial = distribution(scores_of_their_own(graph, step.name, maps), context).graph
            alone = [name for name in maps if map_context.takes(trial, name)]
            graph = scores_of_their_own(graph, step.name, alone) if alone else graph
    return graph


DUPLICATES = Rewriting("duplicated scores", duplicated_scores)
BESIDE_KERNELS = Rewriting("duplicated scores", beside_kernels)
