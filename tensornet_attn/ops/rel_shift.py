"""From relative positions to keys: entry p = position(n) - position(m)."""

from __future__ import annotations

from tensornet_attn.ir.steps import Box, Step
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops.given import Checker, Graph, KernelTiles, Lines, Run, Tensor, Tile
from tensornet_attn.ops.model import BoxModel, LegName, Operand
from tensornet_attn.ops.operation import Operation, aligned, without


class RelShift(BoxModel):
    """From relative positions to keys: entry p = position(n) - position(m)."""

    key = "rel_shift"
    second = "to"
    rel_shift: LegName
    to: LegName
    of: Operand


class RelShiftOperation(Operation):
    kind = "rel_shift"
    model = RelShift
    makes_leg = looks_back = keeps_sign = linear = True
    per_element = 0  # moves numbers
    between = " to "

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        """(... n, p) to (... n, m); where `of` lacks the query leg, every query has the same table."""
        own, query = box.legs or (), box.query
        if box.declared[leg].kind != "relative" and not box.broken(leg):
            box.written("rel_shift")
            raise Refusal("box-leg", f"'{leg}' is no relative leg.", "declare one, e.g. 'p: relative'.")
        if (box.declared[other].kind != "key" and not box.broken(other)) or other in own:
            box.written("to")
            raise Refusal("box-leg", f"'{other}' is no key leg to shift to.", "name the key leg, which 'of' lacks.")
        if query is None:
            box.written("to")
            raise Refusal("box-leg", "there is no query leg to shift from.", "declare one, e.g. 'n: query'.")
        replacement = (other,) if query in own else (query, other)
        place = own.index(leg)
        return (*own[:place], *replacement, *own[place + 1 :])

    def legs_whole(self, graph: Graph, box: Box) -> tuple[str | None, ...]:
        return ()

    def reference(self, run: Run, step: Step, box: Box) -> tuple[Tensor, Legs]:
        """result[n, m] = of[n, p] at p = position(n) - position(m); distances beyond a reach count as its ends."""
        use, query, along, to = box.operand("of"), run.graph.query, str(box.leg), str(box.other)
        places, others = run.positions(along), without(use.legs, query, along)
        distance = run.positions(query)[:, None] - run.positions(to)
        index = distance.clamp(places[0], places[-1]) - places[0]  # n m
        value = aligned(run.values[use.name], use.legs, (*others, query, along))
        rest = value.shape[:-2]
        value = value.expand(*rest, len(index), len(places)).gather(-1, index.expand(*rest, *index.shape))
        return value, (*others, query, to)

    def emit(self, lines: Lines, step: Step, box: Box) -> None:
        value, query, relative = lines.value(box.operand("of")), str(lines.graph.query), str(box.leg)
        others = without(value.legs, query, relative)
        value = value.aligned((*others, query, relative), whole=True)
        reach = lines.graph.leg[relative].reach
        arguments = [value.text, lines.length(query), lines.length(box.other)]
        text = lines.call("relative_to_key", *arguments, *([] if reach is None else [str(reach)]))
        lines.bind(step.name, text, (*others, query, str(box.other)))

    def tile(self, tiles: KernelTiles, step: Step, box: Box) -> Tile:
        use, leg = box.operand("of"), str(box.leg)
        nodes = tiles.nodes
        if leg not in nodes.order:
            return tiles.entry(use, leg)
        rows = nodes.spread(tiles.value(use), (nodes.pair[0], leg))
        return nodes.node("shift", (rows,), nodes.pair, step.name)
