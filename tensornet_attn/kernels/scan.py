"""Emits a scan and the product that reads it as one call, in which no tensor has all states."""

from __future__ import annotations

from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Graph, Step, Use
from tensornet_attn.graph.scanned import ReadScan, factors_of
from tensornet_attn.ir.values import Legs, Value
from tensornet_attn.kernels.implementation import Context, Implementation, Lowered


class Scan(Implementation[ReadScan]):
    """Scans that one product reads."""

    name, kind = "scans that are read once", "scan"

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        return Lowered(graph)

    def emit_read(self, writer: Writer, step: Step, found: ReadScan) -> None:
        """Emits one call."""
        assert step.contraction is not None
        key, query, (term,) = str(found.box.leg), str(writer.graph.query), step.contraction.terms
        sides = [_side(writer, found, found.box.operand(role), (key, *found.legs)) for role in ("of", "decay")]
        read = writer.value(found.read).aligned((query, *found.legs)).text
        text = writer.call("scan_reads", *sides, read, str(len(found.legs)), "key_mask")
        value = writer.scaled(term.coefficient, Value(text, (query, *found.legs[:-1]), True))
        writer.bind(step.name, value.text, value.legs, value.level)


SCAN = Scan()


def _side(writer: Writer, found: ReadScan, use: Use, legs: Legs) -> str:
    """The factors of an operand, as a tuple."""
    if use.name not in found.inside:
        return f"({writer.value(use).aligned(legs).text},)"
    step = writer.graph.step[use.name]
    assert step.contraction is not None
    first, second = (writer.value(factor).aligned(legs) for factor in factors_of(step))
    return f"({writer.scaled(step.contraction.terms[0].coefficient, first).text}, {second.text})"
