"""Absorption (R10): a projection goes from the key side to what reads it, where its weights meet other weights.

# K = c W; S = Q K     ->     Q' = Q W; S = Q' c
# V = c W; y = A V     ->     y = (A c) W

What stands on the key leg is then `c` itself. It pays where making K or V for every key costs more than wider scores
and values do: a few queries, many keys, and a latent `c` that all heads share.
"""

from __future__ import annotations

from collections.abc import Sequence

from tensornet_attn.graph.model import Contraction, Graph, Step, Term, Use
from tensornet_attn.graph.pairs import batched
from tensornet_attn.rewrite.change import legs_in, product, read_once
from tensornet_attn.rewrite.engine import Rule
from tensornet_attn.rewrite.products import apart, spread


def absorbed_key(graph: Graph, place: str) -> Graph | None:
    """K[m h d] = c[m c] W[c h d]; S = Q[n h d] K[m h d]   ->   S = Q'[n h c] c[m c]  with  Q' = Q W"""
    reader = _reader(graph, place)
    if reader is None or not {graph.query, graph.key} <= {*reader.legs}:
        return None
    made, at = _substituted(graph, place, reader)
    if made is None:
        return None
    factors = _factors(made, reader.name, at)
    keys, others = _keys(graph, factors), [use for use in factors if graph.key not in use.legs]
    dangling = legs_in(keys) - legs_in(others) - {*reader.legs}
    if dangling or len(keys) + len(others) < len(factors):
        return None
    made = _together(made, reader.name, at, keys, f"{place}.k")
    others.sort(key=lambda use: graph.query not in use.legs)  # the query first: n h c
    return _together(made, reader.name, at, others, f"{reader.name.partition('.')[0]}.q")


def absorbed_value(graph: Graph, place: str) -> Graph | None:
    """V[m h e] = c[m c] W[c h e]; y = A[h n m] V[m h e]   ->   y = A[h n m] c[m c] W[c h e]"""
    reader = _reader(graph, place)
    if reader is None or graph.key in reader.legs:
        return None
    made, at = _substituted(graph, place, reader)
    if made is None:
        return None
    factors = _factors(made, reader.name, at)
    maps = [use for use in factors if {graph.query, graph.key} <= {*use.legs}]
    keys = _keys(graph, factors)
    if not maps or legs_in(keys) - legs_in(use for use in factors if use not in keys) - {*reader.legs}:
        return None
    return _together(made, reader.name, at, keys, f"{place}.k")


def chained(graph: Graph, place: str) -> Graph | None:
    """Z[n c] = x[n f] Wa[f c]; Y = Z[n c] Wb[c d]   ->   Y = x[n f] Wa[f c] Wb[c d]"""
    source, reader = graph.step[place], read_once(graph, place)
    term, outer = product(source), product(reader)
    if reader is None or term is None or outer is None or not (_held(graph, term) and _held(graph, outer)):
        return None
    if any({graph.query, graph.key} <= {*use.legs} for use in (*term.factors, *outer.factors)):
        return None
    many = batched(graph)
    if sum(use.name in many for use in (*term.factors, *outer.factors)) != 2:  # a tensor and Z
        return None
    return _substituted(graph, place, reader)[0]


def _reader(graph: Graph, place: str) -> Step | None:
    """The product that alone reads a projection of the keys; None where the step is none or others read it too."""
    step, reader = graph.step[place], read_once(graph, place)
    term = product(step)
    if term is None or not _held(graph, term) or graph.key not in step.legs or graph.query in step.legs:
        return None
    return reader if reader is not None and isinstance(reader.op, Contraction) else None


def _held(graph: Graph, term: Term) -> bool:
    """Whether a product has weights, or constants, that stand on no sequence."""
    ends = {leg.name for leg in graph.legs if leg.sequence}
    many = batched(graph)
    return any(use.name not in many and not ends & {*use.legs} for use in term.factors)


def _substituted(graph: Graph, place: str, reader: Step) -> tuple[Graph | None, int]:
    """The graph with a product written out in its one reader, and the term in which it stood."""
    terms: tuple[Term, ...] = reader.op.terms  # type: ignore[union-attr]
    at, use = next((i, use) for i, term in enumerate(terms) for use in term.factors if use.name == place)
    if len(terms[at].factors) < 2:
        return None, at
    return spread(graph, reader.name, at, use, graph.step[place]), at


def _factors(graph: Graph, name: str, at: int) -> tuple[Use, ...]:
    return graph.step[name].op.terms[at].factors  # type: ignore[union-attr]


def _keys(graph: Graph, factors: Sequence[Use]) -> list[Use]:
    return [use for use in factors if graph.key in use.legs and graph.query not in use.legs]


def _together(graph: Graph, name: str, at: int, uses: Sequence[Use], fresh: str) -> Graph:
    """The graph with some factors of a product multiplied first; one alone stays as it is."""
    if len(uses) < 2:
        return graph
    rest = list(_factors(graph, name, at))
    for use in uses:
        rest.remove(use)
    return apart(graph, name, at, tuple(uses), tuple(rest), fresh)


KEY = Rule("absorbed key", "K = c W; S = Q K -> S = (Q W) c", absorbed_key)
VALUE = Rule("absorbed value", "V = c W; A V -> (A c) W", absorbed_value)
CHAIN = Rule("chain of projections", "Z = x Wa; Y = Z Wb -> Y = x Wa Wb", chained)
RULES = (KEY, VALUE, CHAIN)
