"""The shipped designs, read and built once a process: what tests that ask something of each have in common."""

from __future__ import annotations

from functools import cache

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.graph.model import Graph


@cache
def shipped(name: str) -> ta.Design:
    return ta.load(name)


@cache
def graph_of(name: str, causal: bool | None = None) -> Graph:
    return build(shipped(name), causal)


@cache
def attentions() -> tuple[str, ...]:
    """Those with queries and keys."""
    return tuple(name for name in ta.list_designs() if None not in (graph_of(name).query, graph_of(name).key))
