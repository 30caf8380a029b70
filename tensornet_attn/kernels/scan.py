"""A scan that one product reads: one call computes both, in which no tensor has all states.

# h = scan over m of (k v, decay);  y = sum over s of h[m d s] C[n s]     ->     y = scan_reads(k, v, decay, C)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tensornet_attn.constants import LONG_ROW, MAP_PART
from tensornet_attn.cost.devices import Device
from tensornet_attn.cost.kernels import Parts, body_of
from tensornet_attn.cost.rates import ELEMENTWISE, RateTable
from tensornet_attn.cost.seconds import WIDTH, passes_of
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.diagram import producer_of
from tensornet_attn.graph.graph import Box, Graph, Step, Use
from tensornet_attn.graph.recurrence import scans
from tensornet_attn.ir.steps import legs_in
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.kernels.blocks import with_kernels
from tensornet_attn.kernels.implementation import Context, Implementation, Lowered, OfSteps, WorkOfSteps, kernel
from tensornet_attn.rewrite.change import product

STATES = 12  # reads and writes of the states in a block: factors, products, decays, states, and what is read of them


@dataclass(frozen=True)
class ReadScan:
    """`box`: the scan. `read`: what its states are multiplied by, which lacks the last leg that remains.

    `legs`: those of the states, the last of which is summed. `inside`: the scan, and the products of its operands.
    """

    box: Box
    read: Use
    legs: Legs
    inside: frozenset[str]


class ScanWork(WorkOfSteps):
    """The steps inside; rows with many states, in blocks."""

    @property
    def kept(self) -> dict[str, int]:
        return self.scene.kept(self.step.uses)

    @property
    def stored(self) -> dict[str, int]:
        """The states before each block; of short rows, what the steps inside save."""
        states, form = self._states, read_scan(self.step)
        if not self._in_blocks:
            return super().stored
        rows = states // self.batch  # blocks are of one batch element
        blocks = self.batch * ((rows - 1) // MAP_PART)
        return {f"{self.step.name}: states": blocks * rows // self.scene.sizes[str(form.box.leg)]}

    def scratch(self, device: Device) -> tuple[int, int]:
        """States, their decay and its exponential; in the backward, gradients of both and of four factors too."""
        if self._in_blocks:
            states = min(MAP_PART, self._states)
            return 3 * states, 8 * states
        return (sum(self.inner.elements(inner_step) for inner_step in self.inner_steps[:-1]),) * 2

    def seconds(self, table: RateTable, backward: bool) -> Parts:
        """Passes over blocks that stay in a cache, and calls for each position; of short rows, the steps inside."""
        if not self._in_blocks:
            return super().seconds(table, backward)
        learned, positions = backward and self.learned, self.scene.sizes[str(read_scan(self.step).box.leg)]
        times, rate = passes_of(learned), table.pass_rate(WIDTH * MAP_PART)
        passes = times * STATES * WIDTH * self._states / rate
        return {ELEMENTWISE: passes, "call": 2 * (times + learned) * positions * table.call[False]}

    @property
    def _states(self) -> int:
        return self.inner.elements(read_scan(self.step).box.of)

    @property
    def _in_blocks(self) -> bool:
        positions = self.inner.sizes[str(read_scan(self.step).box.leg)]
        return not self.inner.stepwise and self._states >= LONG_ROW * positions


class SummedScans(OfSteps, Implementation[ReadScan]):
    """Scans that nothing but one product reads, which sums over one of their legs.

    Rows with many states are computed in blocks of positions that stay in a cache; other rows, and rows on a GPU, by
    the steps inside.
    """

    name, kind, work = "scan that is read once", "scan", ScanWork
    stepwise = True

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        split, kernels, removed = context.split(graph), dict[str, Step](), set[str]()
        for step in split.steps:
            for form in _read(split, step):
                body = [inner_step for inner_step in split.steps if inner_step.name in form.inside]
                kernels[step.name] = replace(step, op=kernel(self.kind, split, (), (*body, step), form))
                removed |= form.inside
        changed = with_kernels(graph, split, kernels, removed)
        return Lowered(changed, dict.fromkeys(kernels, f"{self.name}: no tensor has all states"))

    def plain(self, step: Step) -> bool:
        return True

    def emit(self, writer: Writer, step: Step) -> None:
        form, (*_, reader) = read_scan(step), body_of(step)
        key, query, (term,) = str(form.box.leg), writer.graph.query, reader.terms
        factors = {inner_step.name: inner_step for inner_step in body_of(step)}
        sides = [_side(writer, factors, form.box.operand(role), (key, *form.legs)) for role in ("of", "decay")]
        read = writer.value(form.read).aligned((query, *form.legs)).text
        expression = writer.call("scan_reads", *sides, read, str(len(form.legs)), "key_mask")
        value = writer.scaled(term.coefficient, TensorText(expression, (query, *form.legs[:-1]), True))
        writer.bind(step.name, value.text, value.legs, value.level)


SCAN = SummedScans()


def read_scan(step: Step) -> ReadScan:
    """The scan and its reader of a kernel 'scan'."""
    assert isinstance(step.form, ReadScan)
    return step.form


def _read(graph: Graph, step: Step) -> Iterator[ReadScan]:
    """The scan that only a product reads."""
    term = product(step)
    if term is None or len(term.factors) != 2:
        return
    for use, multiplier in (term.factors, term.factors[::-1]):
        scan = _alone(graph, use)
        if scan is None or scan.box is None or not scans(scan) or "state" in dict(scan.box.operands):
            continue
        summed = [leg for leg in use.legs if leg not in step.legs]
        kept = [leg for leg in step.legs if leg in use.legs and leg != graph.query]
        kept.sort(key=lambda leg: leg not in multiplier.legs)
        legs_match = (
            graph.query in step.legs
            and {*step.legs} | {*multiplier.legs} <= {*use.legs}
            and {*summed, graph.query} <= {*multiplier.legs}
        )
        if legs_match and len(summed) == 1 and kept and kept[-1] not in multiplier.legs:
            operands = (_alone(graph, use) for use in scan.box.uses)
            inner_steps = [scan, *(step for step in operands if step and len(_factors(step)) == 2)]
            names = frozenset(inner_step.name for inner_step in inner_steps)
            yield ReadScan(scan.box, multiplier, (*kept, *summed), names)


def _factors(step: Step) -> tuple[Use, ...]:
    """The factors of a product without a sum; else none."""
    term = product(step)
    if term is None or {*step.legs} != legs_in(term.factors):
        return ()
    return term.factors


def _alone(graph: Graph, use: Use) -> Step | None:
    """The step of a use that is its only one."""
    step = producer_of(graph, use)
    alone = step is not None and len(graph.readers[use.name]) == 1 and use.legs == step.legs
    return step if alone and use.name not in graph.results else None


def _side(writer: Writer, inside: dict[str, Step], use: Use, legs: Legs) -> str:
    """The factors of an operand, as a tuple."""
    step = inside.get(use.name)
    term = product(step)
    if term is None:
        return f"({writer.value(use).aligned(legs).text},)"
    first, second = (writer.value(factor).aligned(legs) for factor in term.factors)
    return f"({writer.scaled(term.coefficient, first).text}, {second.text})"
