"""Emits the steps of one position that one call of C++ computes; where it cannot, torch does, one after another."""

from __future__ import annotations

from collections.abc import Callable

from tensornet_attn.emit.wrap import INDENT, indented, wrapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.graph import Step
from tensornet_attn.graph.pairs import batched
from tensornet_attn.tiles.cpp.step import PositionSteps


def emit_position(writer: Writer, steps: PositionSteps, emit_step: Callable[[Step], None]) -> None:
    """Emits the call, a constant beside the class, and the text of torch; `emit_step` emits one step of it."""
    operands = {name: writer.result(name, writer.graph.legs_of(name)) for name in steps.operands}
    writer.values |= operands
    name, found = writer.names.fresh("position_cpp"), writer.names.fresh("found")
    text, places = steps.text.strip(), {operand: place for place, operand in enumerate(steps.operands)}
    counts = (f"({operand in batched(writer.graph)}, {steps.count(operand)})" for operand in steps.operands)
    made = (str(places.get(steps.overwritten.get(step.name, ""), steps.sizes(step.name))) for step in steps.results)
    rank = len(writer.graph.legs_of(steps.operands[0]))
    writer.native.append(text)
    writer.functions |= {
        f'{name} = CppPosition(\n    r"""\n{text}\n""",\n    {rank},\n    ({", ".join(counts)},),\n'
        f"    ({', '.join(made)},),\n)"
    }
    inside, groups, writer.groups = {step.name for step in steps.inside}, writer.groups, [[]]
    for step in steps.inside:
        emit_step(step)
    values = {step.name: writer.result(step.name, step.legs) for step in steps.results}
    writer.values = {key: value for key, value in writer.values.items() if key not in inside} | values
    results = [value.text for value in values.values()]
    torch = [row for group in writer.groups for line in group for row in wrapped(line, 3 * len(INDENT))]
    writer.groups = [*groups, [
        f"{found} = {name}({', '.join(value.text for value in operands.values())})",
        f"if {found} is None:",
        *indented(torch),
        "else:",
        *indented([f"{', '.join(results)}{',' * (len(results) == 1)} = {found}"]),
    ], []]  # fmt: skip
