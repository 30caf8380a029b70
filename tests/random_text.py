"""What the text of a design speaks of: its legs and tensors; and the same design with weights stored otherwise."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

ROLES = ("inputs", "weights", "constants", "noise", "state")
OPERANDS = ("of", "by", "query", "key", "value", "rate", "decay", "erase", "erase_undecayed", "write")
FUNCTIONS = re.compile(r"\b(sqrt|log|exp|min|max)\(")


def legs_in(part: Any, key: str = "of") -> set[str]:
    """Every leg that a part of a design speaks of."""
    if isinstance(part, dict):
        quiet = ("map", "mask", "init", *(["normalize"] if "delta_rule" in part else []))
        return set().union(*(legs_in(value, key) for key, value in part.items() if key not in quiet))
    if isinstance(part, list):
        return {str(item) for item in part}
    if key in OPERANDS and str(part).isidentifier():
        return set()  # the name of a tensor
    return set(re.findall(r"[A-Za-z]\w*", FUNCTIONS.sub("(", re.sub(r"\w+\[", "[", str(part)))))


def spoken(part: Any) -> set[str]:
    """The tensors and steps that a part of a diagram uses."""
    if isinstance(part, dict):
        return set().union(
            *(
                spoken(value)
                for key, value in part.items()
                if isinstance(value, dict) or key in OPERANDS or "[" in str(value)
            )
        )
    return set(re.findall(r"(\w+)\[", str(part))) | {str(part)}


def pruned(data: dict[str, Any]) -> dict[str, Any]:
    """Without tensors and legs that nothing speaks of."""
    used = spoken(data["diagram"])
    for role in ("weights", "constants", "noise", "state"):
        section = {name: value for name, value in data.pop(role, {}).items() if name in used}
        data |= {role: section} if section else {}
    declared = [
        tensor["legs"] if isinstance(tensor, dict) else tensor
        for role in ROLES
        for tensor in data.get(role, {}).values()
    ]
    rest = legs_in(data["diagram"]).union(*map(legs_in, declared))
    data["legs"] = {leg: size for leg, size in data["legs"].items() if leg in rest}
    return data


def transposed(data: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The same design with its weights stored with their legs in another order, and that order.

    A weight that is an operand by itself keeps its order, which is that of the legs of a box.
    """
    orders: dict[str, tuple[int, ...]] = {}
    weights, named = {}, set(_operands_alone(data["diagram"]))
    for name, value in data.get("weights", {}).items():
        legs = value["legs"] if isinstance(value, dict) else value
        fixed = name in named or "(eye" in str(value) or "kron" in str(value)
        order = [*range(len(legs))] if fixed else draw.sample(range(len(legs)), len(legs))
        mixed = [legs[i] for i in order]
        weights[name] = {**value, "legs": mixed} if isinstance(value, dict) else mixed
        orders[name] = tuple(order)
    return {**data, **({"weights": weights} if weights else {}), "diagram": _reordered(data["diagram"], orders)}, orders


def _operands_alone(part: Any) -> Iterator[str]:
    values = part.values() if isinstance(part, dict) else [part]
    for value in values:
        names = [] if "->" in str(value) else [str(value).partition("[")[0]]
        yield from _operands_alone(value) if isinstance(value, dict) else names


def _reordered(part: Any, orders: dict[str, tuple[int, ...]]) -> Any:
    if isinstance(part, dict):
        return {key: _reordered(value, orders) for key, value in part.items()}
    if not isinstance(part, str):
        return part

    def use(match: re.Match[str]) -> str:
        legs = match[2].split()
        return f"{match[1]}[{' '.join(legs[i] for i in orders.get(match[1], range(len(legs))))}]"

    return re.sub(r"(\w+)\[([^\]]*)\]", use, part)
