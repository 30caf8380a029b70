"""Emits the steps of one position that one call of C++ computes; where it cannot, torch does, one after another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from tensornet_attn.emit.wrap import INDENT, indented, wrapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.graph import Step
from tensornet_attn.graph.pairs import batched
from tensornet_attn.tiles.cpp.step import PositionSteps


def emit_position(writer: Writer, steps: PositionSteps, emit_steps: Callable[[Sequence[Step]], None]) -> None:
    """Emits the call, a constant beside the class, and the text of torch."""
    operands = {name: writer.result(name, steps.laid(name)) for name in steps.operands}
    writer.values |= operands
    counts = [(name in batched(writer.graph), prod(steps.sizes(steps.laid(name)))) for name in operands]
    new = [[*steps.sizes(steps.laid(step.name))] for step in steps.results]
    places = {name: place for place, name in enumerate(operands)}
    results = [places.get(writer.overwrites.get(s.name, ""), size) for s, size in zip(steps.results, new, strict=True)]
    name, text = writer.names.fresh("position_cpp"), steps.text().strip()
    rank = len(steps.laid(steps.operands[0]))
    writer.native.append(text)
    writer.functions |= {
        f'{name} = CppPosition(\n    r"""\n{text}\n""",\n    {rank},\n    {counts},\n    {results},\n)'
    }
    called, groups, writer.groups = writer.names.fresh("results"), writer.groups, [[]]
    emit_steps(steps.inside)
    outputs = {step.name: writer.result(step.name, steps.laid(step.name)) for step in steps.results}
    lines = [row for group in writer.groups for line in group for row in wrapped(line, 3 * len(INDENT))]
    values = ", ".join(value.text for value in outputs.values())
    call = f"{called} = {name}({', '.join(value.text for value in operands.values())})"
    branches = [f"if {called} is None:", *indented(lines), "else:", f"{INDENT}[{values}] = {called}"]
    writer.groups = [*groups, [call, *branches], []]
    inside = {step.name for step in steps.inside}
    writer.values = {key: value for key, value in writer.values.items() if key not in inside} | outputs
