"""Blocks of keys whose weights are all 0, as exp(x - lse) is for far keys of a bias that falls with the distance.

Their weights are computed; what is multiplied by them is not. 0 times infinity is not 0, so a block is only left out if
what is multiplied is far from the largest number, and if no map has an infinite derivative.
"""

from __future__ import annotations

from tensornet_attn.ops import MAPS
from tensornet_attn.tiles.derive import one_map
from tensornet_attn.tiles.model import Node, Program, below

_PLAIN = "number dot mul add keep hide softmax bias distance spread inside drop visible both either over load".split()


def fading(program: Program) -> Node | None:
    """The softmax of a program whose weights may be 0 for whole blocks; None if the program has none."""
    one = one_map(program)
    if one is None or one.op != "softmax" or one.data[2] or one.heads or len(program.maps) > 1 or program.exit.log:
        return None
    nodes = below([program.exit.maps, *([program.exit.values] if program.exit.values else [])])
    if not all(node.op in _PLAIN or (node.op == "map" and MAPS[node.data[0]].finite) for node in nodes):
        return None
    if any(node.heads or (node.op == "load" and node.axes == program.pair) for node in nodes):
        return None
    return one if any(_falls(node) for node in below(one.args[:1])) else None


def _falls(node: Node) -> bool:
    """Whether a sum adds something other than products to scores."""
    return node.op == "add" and any(
        arg.op != "bias" and not any(one.op == "dot" for one in below([arg])) for arg in node.args
    )
