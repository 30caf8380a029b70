"""What masks hide in a region: boxes `hide` in its body, and the masks and tiles that each of them asks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tensornet_attn.graph.model import Box, Function, Graph, Kernel, Step, Tensor
from tensornet_attn.plan.tiles.model import Unfit
from tensornet_attn.rewrite.hidden import hiding

Tile = tuple[tuple[Function, ...], tuple[int, ...]]  # masks of the design, and a tile of the mask of the call
Indices = Callable[[tuple[str, ...]], Iterator[dict[str, int]]]  # every tile of some legs


def with_hiding(graph: Graph, step: Step) -> Kernel:
    """The kernel of a step, in whose body nothing hidden does harm."""
    op = step.op
    assert isinstance(op, Kernel)
    outside = sorted({use.name for own in op.body for use in own.op.uses} & graph.step.keys() - {*op.steps})
    given = tuple(Tensor(name, "input", graph.legs_of(name)) for name in outside)
    body = replace(graph, tensors=graph.tensors + given, steps=op.body, output=step.name)
    return replace(op, body=hiding(body, blocks=True).steps)


def alternatives(box: Box, index: Mapping[str, int], indices: Indices) -> list[tuple[Tile, ...]]:
    """Where a tile is seen: by all of a group, of any of these groups; an empty one sees all there is. Raises Unfit."""
    found: dict[tuple[Tile, ...], None] = {}
    for every in sorted(box.seen, key=repr):
        views = [(visible.masks, visible.legs) for visible in sorted(every, key=repr)]
        missing = tuple(own for _, legs in views for own, leg in legs or () if leg is None)
        for more in indices(missing):
            at = {**dict.fromkeys(missing, 0), **more}
            group: list[Tile] = []
            for masks, legs in views:
                if legs is None:
                    raise Unfit("keys alone say what is seen of a tile of queries and keys")
                group.append((masks, tuple(at[own] if leg is None else index.get(leg, 0) for own, leg in legs)))
            found[tuple(group)] = None
    return list(found)
