"""Other orders of products and sums: each is a choice, better at some sizes and worse at others.

The planner prices what it takes of these: its order search, distribution, fused attention. Here they stand alone.
"""

from __future__ import annotations

from tensornet_attn.rewrite.change import is_map, legs_in
from tensornet_attn.rewrite.pattern import Match, pattern


def only_place(match: Match) -> Match | None:
    """X and Y share a leg that nothing else has, and something else is multiplied with them."""
    rest = match.uses[".."]
    shared = match.legs("X") & match.legs("Y") - legs_in(rest) - match.legs("Z")
    return match if rest and shared else None


def wide_factor(match: Match) -> Match | None:
    """V alone is on the key leg, and a factor that has heads of the map has legs of the values too."""
    graph, rest = match.graph, match.uses[".."]
    if graph.key in legs_in(rest) | match.legs("Z"):
        return None
    heads = match.legs("A") - match.legs("V") - {str(graph.query), str(graph.key)}
    both = match.legs("A", "V")
    mixes = (heads & {*use.legs} and {*use.legs} - match.legs("A") and {*use.legs} <= both for use in rest)
    return match if any(mixes) else None


def mixes_maps(match: Match) -> Match | None:
    """B is a product of a map over the keys, and read in a product."""
    maps = any(is_map(match.graph, match.graph.step.get(use.name)) for use in match.uses["X"])
    fits = maps and len(match.uses["X"]) > 1 and match.graph.key in match.steps["B"].legs
    return match if fits and match.uses[".."] else None


def several(match: Match) -> Match | None:
    """S is a sum, and read in a product."""
    sum_ = match.steps["S"].contraction
    return match if sum_ is not None and len(sum_.terms) > 1 and match.uses[".."] else None


def not_numbers(match: Match) -> Match | None:
    """What is beside the common factor is no number alone."""
    return match if match.legs("X", "Y") else None


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
