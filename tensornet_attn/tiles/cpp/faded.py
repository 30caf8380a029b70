"""Blocks of keys whose weights are all 0, as exp(x - lse) is for far keys of a bias that falls with the distance.

If lengths of queries and keys, and bounds of what is added to their products, show it before a block is computed, the
block is left out; otherwise its weights are computed, and what multiplies them is left out. 0 times infinity is not 0:
both need that what is multiplied is far from the largest number, and that no map has an infinite derivative.
"""

from __future__ import annotations

from collections.abc import Iterable

from tensornet_attn.ops import MAPS
from tensornet_attn.tiles.cpp.passes import Pass
from tensornet_attn.tiles.cpp.places import Where
from tensornet_attn.tiles.derive import one_map
from tensornet_attn.tiles.loops import Statement
from tensornet_attn.tiles.program import Node, Program, below

_PLAIN = "number dot mul add keep hide softmax bias distance spread inside drop visible both either over load".split()


def fading(program: Program) -> Node | None:
    """The softmax of a program whose weights may be 0 for whole blocks; None if the program has none."""
    attention_map = one_map(program)
    if (
        attention_map is None
        or attention_map.op != "softmax"
        or attention_map.data[2]
        or attention_map.heads
        or len(program.maps) > 1
        or program.exit.log
    ):
        return None
    nodes = below([program.exit.maps, *([program.exit.values] if program.exit.values else [])])
    if not all(node.op in _PLAIN or (node.op == "map" and MAPS[node.data[0]].finite) for node in nodes):
        return None
    if any(node.heads or (node.op == "load" and node.axes == program.pair) for node in nodes):
        return None
    return attention_map if any(_falls(node) for node in below(attention_map.args[:1])) else None


def _falls(node: Node) -> bool:
    """Whether a sum adds something other than products to scores."""
    others = [arg for arg in node.args if not any(inner.op in ("dot", "bias") for inner in below([arg]))]
    return node.op == "add" and bool(others)


def without_faded(key_pass: Pass, first: list[str], rest: list[str], after: list[Statement], early: bool) -> list[str]:
    """The lines of a block: its weights first, then what multiplies them, the statements `after`.

    `early`: bounds may leave out the whole block.
    """
    attention_map, lines = key_pass.fading, list[str]()
    assert attention_map is not None
    bound = _bound(key_pass, attention_map.args[0])
    if early and bound is not None:
        rows = (
            "m_i"
            if attention_map.op == "softmax"
            else f"lse + (pair * {key_pass.program.statistics} + 1) * query_end + first"
        )
        bias = "!mask_bias && " if key_pass.program.masks else ""
        lines.append(f"if ({bias}far({bound}, {rows}, rows) && {_tame(key_pass, key_pass.statements)}) return;")
    lines += ["bool live = false;", *first, f"if (live || !({_tame(key_pass, after)})) {{"]
    return [*lines, *(f"  {line}" for line in rest), "}"]


def _tame(key_pass: Pass, statements: Iterable[Statement]) -> str:
    """Whether all that statements read, except the weights, is far from the largest number."""
    conditions, weights = list[str](), {key_pass.fading}
    for node in below(
        [arg for statement in statements for arg in key_pass.args_of(statement)], weights, key_pass.instead
    ):
        if node.op in ("load", "gradient", "sums"):
            conditions.append(f"tame({_tile(key_pass, node)})")
    return " && ".join(conditions) or "true"


def _tile(key_pass: Pass, node: Node) -> str:
    """Where a tile begins, its rows, how far they are apart, and its width."""
    rows, width = [*map(key_pass.count, node.axes), "1", "1"][:2]
    if node.op == "load":
        return (
            f"{key_pass.address(node, {}, Where({}, key_pass.entry.origin))}, "
            f"{rows}, {key_pass.rows_step(node)}, {width}"
        )
    address = "sums" if node.op == "sums" else key_pass.result_at("gradient", node.data[0], node.axes, {})
    return f"{address}, {rows}, {width}, {width}"


def _bound(key_pass: Pass, node: Node) -> str | None:
    """What the entries of a tile of scores lie between, as C++; None if that is not known."""
    node, query, key = key_pass.other(node), *key_pass.pair
    if node.op == "number":
        number = key_pass.number(node.data[0])
        return f"within({number}, {number})"
    if node.op == "load":
        return f"within_all({_tile(key_pass, node)})"
    if node.op == "distance":
        far = "first + key_end - query_end - start"
        return f"within({far} - keys + 1, {far} + rows - 1)"
    if node.op == "dot":
        ends = [arg for arg in node.args if arg.op == "load" and arg.axes[0] in (query, key)]
        lengths = [f"longest({_tile(key_pass, arg)})" for arg in ends]
        return f"as_long_as({' * '.join(lengths)})" if len(ends) == 2 else None
    bounds = [_bound(key_pass, arg) for arg in node.args if arg.op != "bias"]
    known_bounds = [bound for bound in bounds if bound is not None]
    if len(known_bounds) < len(bounds):
        return None
    if node.op in ("add", "mul"):
        return f"({(' + ' if node.op == 'add' else ' * ').join(known_bounds)})"
    return f"size_of({known_bounds[0]})" if node.op == "map" and node.data == ("abs",) else None
