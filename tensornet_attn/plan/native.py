"""Regions of queries x keys as C++ kernels, for a CPU: the tile programs of Triton, in other text."""

from __future__ import annotations

from functools import lru_cache

from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.plan.blocks import Group
from tensornet_attn.plan.blockwise import too_small
from tensornet_attn.plan.implementation import Context
from tensornet_attn.plan.triton import Tiles
from tensornet_attn.tiles.cpp.source import region_of
from tensornet_attn.tiles.model import Program


class Native(Tiles):
    """Groups of steps with values of queries x keys that C++ can compute, where blocks save enough memory."""

    name, kind = "C++ kernels", "native"

    def fit(self, graph: Graph, step: Step) -> Program:
        return _program(graph, step)

    def unsupported(self, form: Group, context: Context) -> tuple[str, ...]:
        reason = None if context.always else too_small(form, context)
        return () if reason is None else (reason,)

    def on_triton(self, form: object) -> bool:
        return False


NATIVE = Native()


@lru_cache(64)
def _program(graph: Graph, step: Step) -> Program:
    return region_of(graph, step).program
