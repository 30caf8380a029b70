"""The shipped designs, read and built once a process: what tests that ask something of each have in common."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

import tensornet_attn as ta
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Graph

# A child of mhsa whose keys and values come from the queries' own input: self-attention alone, with one length.
OWN_KEYS: dict[str, Any] = {
    "tensornet": 1,
    "name": "own_keys",
    "extends": "mhsa",
    "inputs": {"memory": None},
    "diagram": {"K": "x[m f] Wk[f h d] -> m h d", "V": "x[m f] Wv[f h d] -> m h d"},
}


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


def asked_for(request: pytest.FixtureRequest, parameter: str = "name") -> set[str]:
    """The designs for which a test of this module is among those that run: the values of its parameter."""
    own = (item for item in request.session.items if isinstance(item, pytest.Function) and item.path == request.path)
    parameters = (item.callspec.params for item in own if hasattr(item, "callspec"))
    return {each[parameter] for each in parameters if parameter in each}
