"""Emits a scan and the product that reads it as one call, in which no tensor has all states."""

from __future__ import annotations

from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Box, Step, Use
from tensornet_attn.graph.recurrence import scans
from tensornet_attn.ir.values import Legs, Value
from tensornet_attn.ops.scan import past_of


def read_scan(writer: Writer, step: Step) -> tuple[Box, Use, Legs] | None:
    """The scan that a product sums over a leg, the other factor, and the legs of the states in the order of the call.

    Nothing else reads the scan, and the other factor lacks one of its remaining legs. None if there is no such scan.
    """
    terms = step.contraction.terms if step.contraction is not None else ()
    if len(terms) != 1 or len(terms[0].factors) != 2:
        return None
    for use, other in (terms[0].factors, terms[0].factors[::-1]):
        scan = writer.graph.step.get(use.name)
        if scan is None or scan.box is None or not scans(scan) or past_of(scan.box) or not _alone(writer, scan, use):
            continue
        summed = [leg for leg in use.legs if leg not in step.legs]
        kept = [leg for leg in step.legs if leg in use.legs and leg != writer.graph.query]
        kept.sort(key=lambda leg: leg not in other.legs)
        fits = {*step.legs} | {*other.legs} <= {*use.legs} and {*summed, writer.graph.query} <= {*other.legs}
        if fits and len(summed) == 1 and kept and kept[-1] not in other.legs:
            return scan.box, other, (*kept, *summed)
    return None


def inside_read(writer: Writer, step: Step) -> bool:
    """Whether a scan, or a product that one reads, is part of the call of its only reader."""
    readers = writer.readers[step.name]
    if len(readers) != 1 or not _alone(writer, step, readers[0][1]):
        return False
    reader = readers[0][0]
    if step.box is not None:
        found = read_scan(writer, reader) if scans(step) else None
        return found is not None and found[0] is step.box
    return len(_factors(step)) == 2 and reader.box is not None and scans(reader) and inside_read(writer, reader)


def emit_read(writer: Writer, step: Step, box: Box, other: Use, legs: Legs) -> None:
    """Emits one call for what `read_scan` found."""
    assert step.contraction is not None
    key, query, (term,) = str(box.leg), str(writer.graph.query), step.contraction.terms
    sides = [_side(writer, box.operand(role), (key, *legs)) for role in ("of", "decay")]
    read = writer.value(other).aligned((query, *legs)).text
    text = writer.call("scan_reads", *sides, read, str(len(legs)), "key_mask")
    value = writer.scaled(term.coefficient, Value(text, (query, *legs[:-1]), True))
    writer.bind(step.name, value.text, value.legs, value.level)


def _side(writer: Writer, use: Use, legs: Legs) -> str:
    """The factors of an operand, as a tuple."""
    step = writer.graph.step.get(use.name)
    if step is None or not inside_read(writer, step):
        return f"({writer.value(use).aligned(legs).text},)"
    assert step.contraction is not None
    term = step.contraction.terms[0]
    first, second = (writer.value(factor).aligned(legs) for factor in term.factors)
    return f"({writer.scaled(term.coefficient, first).text}, {second.text})"


def _factors(step: Step) -> tuple[Use, ...]:
    """The factors of a product without a sum; else none."""
    terms = step.contraction.terms if step.contraction is not None else ()
    if len(terms) != 1 or {*step.legs} != {leg for use in terms[0].factors for leg in use.legs}:
        return ()
    return terms[0].factors


def _alone(writer: Writer, step: Step, use: Use) -> bool:
    """Whether this use is the only one of a step."""
    return len(writer.readers[step.name]) == 1 and use.legs == step.legs and step.name not in writer.graph.results
