"""The pairs of query and key that masks show, as areas and as the text of a condition.

# window(4, 0) and not prefix(2)     ->     distance 0 to 4 and key 2 or later
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import reduce
from typing import TypeVar

from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.ir.areas import EVERYWHERE, Areas, complement, distances, intersect, union
from tensornet_attn.ir.arithmetic import Arith, evaluate
from tensornet_attn.ir.steps import LOGIC, Function, Step
from tensornet_attn.ops.masks import MASKS

T = TypeVar("T")
Values = Mapping[str, int | float]


def visible_areas(masks: Iterable[Function], values: Values) -> Areas:
    """Areas that contain all pairs visible to all masks. `values` has the values of names."""
    return reduce(intersect, (_areas(mask, values, True) for mask in dict.fromkeys(masks)), EVERYWHERE)


def hidden_areas(masks: Iterable[Function], values: Values) -> Areas:
    """Areas that contain all pairs that some mask hides."""
    return reduce(union, (_areas(mask, values, False) for mask in dict.fromkeys(masks)), ())


def _areas(mask: Function, values: Values, seen: bool) -> Areas:
    """Areas that contain all pairs that a mask shows or, if not `seen`, all pairs that it hides."""
    if mask.name == "not":
        return _areas(parts_of(mask)[0], values, not seen)
    if mask.name in LOGIC:
        joined = intersect if (mask.name == "and") == seen else union
        return reduce(joined, (_areas(operand, values, seen) for operand in parts_of(mask)))
    row = MASKS[mask.name]
    areas = row.areas(*numbers(mask, values))
    return areas if seen else complement(areas) if row.exact else EVERYWHERE


def parts_of(mask: Function) -> tuple[Function, ...]:
    """The masks that `and`, `or` or `not` joins."""
    return tuple(argument for argument in mask.arguments if isinstance(argument, Function))


def atoms(mask: Function) -> Iterator[Function]:
    """The masks of the table that a formula contains."""
    for operand in parts_of(mask) if mask.name in LOGIC else ():
        yield from atoms(operand)
    if mask.name not in LOGIC:
        yield mask


def written_numbers(mask: Function) -> tuple[Arith, ...]:
    """The numbers of a mask as written."""
    return tuple(argument for argument in mask.arguments if not isinstance(argument, Function))


def numbers(mask: Function, values: Values) -> tuple[int, ...]:
    """The numbers of a mask, with defaults."""
    return _filled(mask, [int(evaluate(argument, values)) for argument in written_numbers(mask)])


def by_distance(masks: Iterable[Function]) -> bool:
    """Whether masks depend only on the distance of query and key."""
    return all(MASKS[atom.name].by_distance for mask in masks for atom in atoms(mask))


def interval(masks: Collection[Function], values: Values) -> bool:
    """Whether each mask shows exactly the keys between two distances, and none is a formula."""
    rows = [(MASKS[mask.name], numbers(mask, values)) for mask in masks if mask.name not in LOGIC]
    straight = (row.exact and [area.by_distance for area in row.areas(*arguments)] == [True] for row, arguments in rows)
    return len(rows) == len(masks) and all(straight)


def causal_up_to(masks: Collection[Function], values: Values) -> float:
    """The number of keys up to which masks show exactly the keys that are not later than the query; 0 if none.

    Those of a sliding window are its positions.
    """
    if not masks or not interval(masks, values):
        return 0
    near, far = distances(visible_areas(masks, values)) or (0, -1)
    return far + 1 if near == 0 else 0


def lookahead(graph: Diagram, step: Step) -> float:
    """An upper bound for the number of positions that a query sees ahead, from the masks of a box; 0 if causal."""
    span = distances(visible_areas(graph.masks(step), graph.values))
    return 0 if span is None else -span[0]


def condition(mask: Function, number: Callable[[Arith], str], places: Mapping[str, str]) -> str:
    """A mask as an expression of PyTorch or Triton; `places` has the texts of `query`, `key` and `distance`."""
    if mask.name == "not":
        return f"~({condition(parts_of(mask)[0], number, places)})"
    if mask.name in LOGIC:
        sign = " & " if mask.name == "and" else " | "
        return sign.join(f"({condition(operand, number, places)})" for operand in parts_of(mask))
    filled = map(str, _filled(mask, [*map(number, written_numbers(mask))]))
    arguments = (argument if argument.isdigit() else f"({argument})" for argument in filled)
    return MASKS[mask.name].sees.format(**places, **dict(zip("abc", arguments, strict=False)))


def _filled(mask: Function, written: list[T]) -> tuple[T | int, ...]:
    """The numbers `written`, followed by the defaults of omitted numbers."""
    defaults = MASKS[mask.name].defaults
    return (*written, *defaults[len(defaults) - (MASKS[mask.name].arguments - len(written)) :])
