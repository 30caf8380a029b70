"""Emits kernel 'native': the C++ of a region beside the functions of a block that compute the same."""

from __future__ import annotations

from math import prod

from tensornet_attn.emit.blockwise import Operand, emit_blockwise
from tensornet_attn.emit.triton.call import operand_legs
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Step
from tensornet_attn.ir.values import Legs
from tensornet_attn.rewrite.change import leaf
from tensornet_attn.tiles.cpp.source import Region, biased_region_of, region_of, source

_INDENT = "    "


def emit_native(writer: Writer, step: Step) -> None:
    """Emits the call of `blockwise`; the C++ is registered beside the class."""
    made = region_of(writer.graph, step)
    biased = biased_region_of(writer.graph, step, made)

    def registered(tile: str, operands: list[Operand], result: Legs) -> str:
        name = writer.names.fresh(f"{writer.local[step.name]}_cpp")
        text = source(made, biased).strip()
        writer.native.append(text)
        parts = _parts(writer, made, operands, result)
        if biased is not None:
            parts.append(f"biased=dict({', '.join(_parts(writer, biased, operands, result))})")
        lines = [f'f"{{__name__}}.{name}",', *(f"{part}," for part in parts), f'text=r"""\n{text}\n""",']
        writer.functions |= {f"{name} = cpp_region(\n" + "\n".join(_INDENT + line for line in lines) + "\n)"}
        return name

    emit_blockwise(writer, step, registered)


def _parts(writer: Writer, made: Region, operands: list[Operand], result: Legs) -> list[str]:
    """What the runtime knows of a region, as arguments."""
    graph, program = writer.graph, made.program
    places = {operand.name: place for place, operand in enumerate(operands)}
    by_use = {operand.use: place for place, operand in enumerate(operands) if operand.use is not None}
    lengths = {program.query: "n", program.key: "m", **dict.fromkeys(program.relative, "n + m - 1")}

    def size(leg: str) -> str | int:
        return lengths.get(leg) or graph.leg[leg].size or 1

    found = []
    for operand in program.operands:
        use = leaf(graph, operand.use)
        place = by_use[use]
        own = dict(zip(operand.use.legs, use.legs, strict=True))
        legs = operand_legs(program, operand)
        order = tuple(operands[place].legs.index(own[leg]) for leg in legs)
        sides = tuple(len(program.widths.get(axis, (axis,))) for axis in operand.axes)
        shared = any(leg not in operand.heads for leg in made.programs)
        found.append((place, order, tuple(map(size, legs)), len(operand.heads), sides, shared))
    heads = made.places.laid
    after = [leg for leg in program.legs if leg not in heads and leg != program.query]
    laid = [leg for leg in (*heads, program.query, *after) if leg in program.legs]
    order = tuple(laid.index(leg) for leg in result)
    before = tuple(size(leg) for leg in heads if leg in program.legs)
    masks = places.get("mask"), places.get("key_mask"), len(program.others)
    return [
        f"operands=({', '.join(map(repr, found))},)",
        f"masks={masks}",
        f"result=({before}, {tuple(map(size, after))}, {order})",
        f"programs={prod(map(made.places.programs_of, made.programs))}",
        f"maps={made.program.statistics}",
        f"gradients={tuple(dict.fromkeys(made.gradients))}",
        f"block={made.block}",
        *([f"saves={0 if writer.target.linear_memory else made.saves}"] if made.saved else []),
        f"stores={tuple(made.stores)}",
        *([] if writer.memory is None else [f"memory={writer.memory}"]),
    ]
