"""Scores that several maps read: each map that can then be lowered by itself gets scores of its own.

# S = Q K;  A = softmax over m of S;  L = softmax of S, in a band     ->     S = Q K;  A = ..;  S.copy = Q K;  L = ..
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from tensornet_attn.cost.devices import Device
from tensornet_attn.graph.model import Graph
from tensornet_attn.plan.band import lower_band
from tensornet_attn.plan.distribute import lower_distribution
from tensornet_attn.plan.fuse import lower_attention
from tensornet_attn.plan.linear import lower_linear
from tensornet_attn.plan.lowering import Lower, Lowered
from tensornet_attn.rewrite.duplicate import maps_of, scores_of_their_own

DUPLICATES = "duplicated scores"


def lower_duplicates(
    graph: Graph, sizes: Mapping[str, int], device: Device, fused: bool = True, decay: float = 1
) -> Lowered:
    """`fused`: whether fused attention comes later; `decay`: what `lower_linear` then takes under that name.

    What is lowered never stores scores: two of them take no memory.
    """
    later: tuple[Lower, ...] = (
        lower_distribution,
        lower_band,
        partial(lower_linear, decay=decay),
        *([lower_attention] if fused else []),
    )
    made = graph
    for step in graph.steps:
        maps = maps_of(made, step.name)
        if maps:
            trial = scores_of_their_own(made, step.name, maps)
            for lower in later:
                trial = lower(trial, sizes, device).graph
            gone = [name for name in maps if name not in trial.step]
            made = scores_of_their_own(made, step.name, gone) if gone else made
    return Lowered(made)
