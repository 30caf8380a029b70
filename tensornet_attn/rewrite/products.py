"""Other orders of products and sums. Each is a choice that is faster at some sizes and slower at others.

The planner prices them in its search for an order, in distribution and in fused attention; here they are plain rules.

Absorption moves a projection from the keys to their reader, where it is multiplied with other weights; the reader
then uses the latent directly. It is profitable if computing K or V for each key costs more than wider scores and
values: with few queries, many keys, and a latent that all heads share.
"""

from __future__ import annotations

from tensornet_attn.graph.diagram import on_pairs, producer_of
from tensornet_attn.graph.graph import Use
from tensornet_attn.ir.steps import legs_in
from tensornet_attn.rewrite.change import inlined, is_map
from tensornet_attn.rewrite.pattern import Match, pattern


def only_place(match: Match) -> Match | None:
    """X and Y share a leg that neither another factor nor Z has, and the product has other factors."""
    rest = match.uses[".."]
    shared = match.legs("X") & match.legs("Y") - legs_in(rest) - match.legs("Z")
    return match if rest and shared else None


def wide_factor(match: Match) -> Match | None:
    """Only V has the key leg, and a factor with heads of the map also has legs of the values."""
    graph, rest = match.graph, match.uses[".."]
    if graph.key in legs_in(rest) | match.legs("Z"):
        return None
    heads = match.legs("A") - match.legs("V") - {graph.query, str(graph.key)}
    both = match.legs("A", "V")
    mixes = (heads & {*use.legs} and {*use.legs} - match.legs("A") and {*use.legs} <= both for use in rest)
    return match if any(mixes) else None


def mixes_maps(match: Match) -> Match | None:
    """B is a product with an attention map, and its reader is a product."""
    maps = any(is_map(match.graph, producer_of(match.graph, use)) for use in match.uses["X"])
    mixed = maps and len(match.uses["X"]) > 1 and match.graph.key in match.steps["B"].legs
    return match if mixed and match.uses[".."] else None


def several(match: Match) -> Match | None:
    """S is a sum of several terms, and its reader is a product."""
    sum_ = match.steps["S"].contraction
    return match if sum_ is not None and len(sum_.terms) > 1 and match.uses[".."] else None


def not_numbers(match: Match) -> Match | None:
    """The factors beside the common factor are not only numbers."""
    return match if match.legs("X", "Y") else None


def projected_key(match: Match) -> Match | None:
    """K is a projection of keys only, S has query and key leg, and other factors or S have all legs of the keys."""
    factors = _factors(match)
    keys = [use for use in factors if match.graph.key in use.legs]
    others = legs_in(use for use in factors if match.graph.key not in use.legs)
    pair = {match.graph.query, match.graph.key} <= match.legs("S")
    return match if pair and factors and not legs_in(keys) - others - match.legs("S") else None


def projected_value(match: Match) -> Match | None:
    """K is a projection of keys only, S sums over keys with a map, and S or other factors have its legs."""
    graph, factors = match.graph, _factors(match)
    keys = [use for use in factors if graph.key in use.legs and graph.query not in use.legs]
    maps = any(on_pairs(graph, use.legs) for use in factors)
    others = legs_in(use for use in factors if use not in keys)
    summed = maps and graph.key not in match.legs("S") and not legs_in(keys) - others - match.legs("S")
    return match if summed else None


def projected_twice(match: Match) -> Match | None:
    """Z and Y both multiply by weights, and together they have one factor with batch dimensions."""
    graph, batched = match.graph, match.batched
    inner, outer = match.uses["X"], (match.first_use("Z"), *match.uses[".."])
    maps = any(on_pairs(graph, use.legs) for use in (*inner, *outer))
    held = _held(match, inner) and _held(match, outer) and len(outer) > 1 and not maps
    return match if held and sum(use.name in batched for use in (*inner, *outer)) == 2 else None  # the tensor and Z


def _factors(match: Match) -> tuple[Use, ...]:
    """The factors of the product with K inlined; empty if K is not a projection of keys, or is the only factor."""
    step, graph = match.steps["K"], match.graph
    (spot,) = match.spots["S"]
    term = match.steps["S"].terms[spot.term]
    alone = len(term.factors) < 2 or graph.key not in step.legs or graph.query in step.legs
    if alone or not _held(match, (*match.uses["P"], *match.uses["W"])):
        return ()
    expansion = inlined(graph, match.steps["S"].legs, term, match.first_use("K"), step)
    return expansion[0][0].factors if expansion is not None else ()


def _held(match: Match, factors: tuple[Use, ...]) -> bool:
    """Whether a product has weights or constants without a sequence leg."""
    ends = {leg.name for leg in match.graph.legs if leg.sequence}
    return any(use.name not in match.batched and not ends & {*use.legs} for use in factors)


WEIGHTS = pattern(
    "weights first", "Z = .. + c * X[held] Y[held] .. -> Z = .. + c * {X Y} ..", only_place, new=(("{Z}.w", ""),)
)
MIXED = pattern("mixed map into its reader", "B = p * X..; Z = .. + c * B .. -> Z = .. + c * (B) ..", mixes_maps)
BESIDE = pattern(
    "values side by side",
    "Z = .. + c * A[map n] V[m no n] .. -> Z = .. + c * {A V} ..",
    wide_factor,
    new=(("{A.root}.o", ""),),
)
DISTRIBUTE = pattern("distribution", "S = ..; Z = .. + c * S .. -> Z = .. + c * (S) ..", several)
FACTOR = pattern(
    "common factor",
    "Z = .. + a * X.. F + b * Y.. F -> Z = .. + {a * X.. + b * Y..} F",
    not_numbers,
    new=(("{Z}.s", "F Z"),),
)
KEY = pattern(
    "absorbed key",
    "K = a * P[m].. W[no m]..; S = .. + c * K M[m no n].. Q[n no m].. R[no m].. "
    "-> S = .. + c a * {P.. M..} {Q.. W.. R..} ..",
    projected_key,
    first=True,
    new=(("{K}.k", ""), ("{S.root}.q", "")),
)
VALUE = pattern(
    "absorbed value",
    "K = a * P[m].. W[no m]..; S = .. + c * K M[m no n].. .. -> S = .. + c a * {P.. M..} W.. ..",
    projected_value,
    first=True,
    new=(("{K}.k", ""),),
)
CHAIN = pattern("chain of projections", "Z = a * X..; Y = c * Z .. -> Y = c a * (Z) ..", projected_twice, first=True)
ABSORPTIONS = (KEY, VALUE, CHAIN)
