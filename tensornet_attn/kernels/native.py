"""Regions of queries x keys as C++ kernels, for a CPU: the tile programs of Triton, in other text."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from tensornet_attn.cost.figures import instead
from tensornet_attn.cost.sizes import human
from tensornet_attn.emit.wrap import indented
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.ir.values import Legs
from tensornet_attn.kernels.blocks import StepGroup
from tensornet_attn.kernels.blockwise import BlockOperand, emit_blockwise, too_small
from tensornet_attn.kernels.implementation import Context
from tensornet_attn.kernels.tiles import TilePrograms, operand_legs
from tensornet_attn.rewrite.change import leaf
from tensornet_attn.tiles.cpp.saved import seconds_again, seconds_saved, width_of
from tensornet_attn.tiles.cpp.source import TILES, RegionSource, biased_region_of, region_of, source
from tensornet_attn.tiles.program import Program


class Native(TilePrograms):
    """Groups of steps with values of queries x keys that C++ can compute, where blocks save enough memory."""

    name, kind, native = "C++ kernels", "native", True
    most = TILES

    def fit(self, graph: Graph, step: Step) -> Program:
        return _region(graph, step).program

    def unsupported(self, form: StepGroup, context: Context) -> tuple[str, ...]:
        reason = None if self.name in context.forced else too_small(form, context)
        return () if reason is None else (reason,)

    def describe(self, graph: Graph, step: Step, context: Context) -> str:
        region, target = _region(graph, step), context.target
        if not region.saved or not target.backward or target.linear_memory:
            return super().describe(graph, step, context)
        pairs = target.batch * prod(map(region.places.programs_of, region.programs))
        for side, block in zip(region.program.pair, region.block, strict=True):
            pairs *= -(-context.sizes[side] // block) * block
        elements = {node: pairs * region.program.tiles(node.heads) for node in region.saved}
        again = sum(seconds_again(width_of(graph, region.program, node)) * elements[node] for node in elements)
        price = instead(seconds_saved() * sum(elements.values()), again)
        names = ", ".join(f"'{name}'" for name in dict.fromkeys(node.name for node in elements))
        limit = "a quarter of the free memory" if target.memory is None else "the limit"
        return (
            f"{self.name}; training saves the products {names}, {human(target.bytes * sum(elements.values()))}B, "
            f"if they fit into {limit}: {price} to compute them again"
        )

    def on_triton(self, form: object) -> bool:
        return False

    def in_cpp(self, graph: Graph, step: Step) -> bool:
        return True

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits the call of `blockwise`; the C++ is registered beside the class."""
        region = region_of(writer.graph, step)
        biased = biased_region_of(writer.graph, step, region)

        def registered(tile: str, operands: list[BlockOperand], result_legs: Legs) -> str:
            name = writer.names.fresh(f"{writer.local[step.name]}_cpp")
            code = source(region, biased).strip()
            writer.native.append(code)
            arguments = _parts(writer, region, operands, result_legs)
            if biased is not None:
                arguments.append(f"biased=dict({', '.join(_parts(writer, biased, operands, result_legs))})")
            lines = [
                f'f"{{__name__}}.{name}",',
                *(f"{argument}," for argument in arguments),
                f'text=r"""\n{code}\n""",',
            ]
            writer.functions |= {f"{name} = cpp_region(\n" + "\n".join(indented(lines)) + "\n)"}
            return name

        emit_blockwise(writer, step, registered)


NATIVE = Native()


@lru_cache(64)
def _region(graph: Graph, step: Step) -> RegionSource:
    """The C++ of a kernel, of which that for float masks can be printed too. Raises Unfit."""
    region = region_of(graph, step)
    biased_region_of(graph, step, region)
    return region


def _parts(writer: Writer, region: RegionSource, operands: list[BlockOperand], result_legs: Legs) -> list[str]:
    """What the runtime knows of a region, as arguments."""
    graph, program = writer.graph, region.program
    places = {operand.name: index for index, operand in enumerate(operands)}
    by_use = {operand.use: index for index, operand in enumerate(operands) if operand.use is not None}
    lengths = {program.query: "n", program.key: "m", **dict.fromkeys(program.relative, "n + m - 1")}

    def size(leg: str) -> str | int:
        return lengths.get(leg) or size_of(graph, leg) or 1

    cpp_operands = []
    for operand in program.operands:
        use = leaf(graph, operand.use)
        index = by_use[use]
        outer_leg = dict(zip(operand.use.legs, use.legs, strict=True))
        legs = operand_legs(program, operand)
        order = tuple(operands[index].legs.index(outer_leg[leg]) for leg in legs)
        sides = tuple(len(program.widths.get(axis, (axis,))) for axis in operand.axes)
        shared = any(leg not in operand.heads for leg in region.programs)
        sizes = tuple(map(size, legs))
        cpp_operands.append(
            f"CppOperand(place={index}, order={order}, sizes={sizes}, heads={len(operand.heads)}, sides={sides}, "
            f"shared={shared})"
        )
    heads = region.places.laid
    after = [leg for leg in program.legs if leg not in heads and leg != program.query]
    laid = [leg for leg in (*heads, program.query, *after) if leg in program.legs]
    order = tuple(laid.index(leg) for leg in result_legs)
    before = tuple(size(leg) for leg in heads if leg in program.legs)
    masks = f"mask={places.get('mask')}, keys={places.get('key_mask')}, others={len(program.others)}"
    return [
        f"operands=({', '.join(cpp_operands)},)",
        f"masks=CppMasks({masks})",
        f"result=CppResult(before={before}, after={tuple(map(size, after))}, order={order})",
        f"programs={prod(map(region.places.programs_of, region.programs))}",
        f"maps={region.program.statistics}",
        f"gradients={tuple(dict.fromkeys(region.gradients))}",
        f"block={region.block}",
        *([f"saves={0 if writer.target.linear_memory else region.saves}"] if region.saved else []),
        f"stores={tuple(region.stores)}",
        *([] if writer.memory is None else [f"memory={writer.memory}"]),
    ]
