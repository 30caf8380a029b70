"""Selects from a table over relative positions, for each query and key, the entry p = position(n) - position(m)."""

from __future__ import annotations

from tensornet_attn.ir.steps import Box, Step, without
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.ir.values import Legs
from tensornet_attn.ops.given import Checker, ForwardEmitter, Graph, KernelTiles, ReferenceEvaluation, Tensor, Tile
from tensornet_attn.ops.operation import Operation, aligned
from tensornet_attn.ops.schema import BoxModel, LegName, Operand


class RelShift(BoxModel):
    """Selects from a table over relative positions, for each query and key, the entry p = position(n) - position(m)."""

    second = "to"
    rel_shift: LegName
    to: LegName
    of: Operand


class RelShiftOperation(Operation):
    kind = "rel_shift"
    model = RelShift
    makes_leg = looks_back = keeps_sign = linear = True
    per_element = 0  # only copies
    between = " to "

    def result(self, box: Checker, leg: str, other: str) -> Legs:
        """(... n, p) becomes (... n, m), or (... m, p) becomes (... m, n). Without n, or m, `of` is shared."""
        legs, query, kind = box.legs or (), box.query, box.declared[other].kind
        if box.declared[leg].kind != "relative" and not box.broken(leg):
            box.written("rel_shift")
            raise Refusal("box-leg", f"'{leg}' is not a relative leg.", "declare a relative leg, e.g. 'p: relative'.")
        if (kind not in ("key", "query") and not box.broken(other)) or other in legs:
            box.written("to")
            raise Refusal(
                "box-leg",
                f"'to' must be a key or query leg that 'of' lacks, not '{other}'.",
                "set 'to' to the key leg, and use an 'of' without it.",
            )
        if query is None:
            box.written("to")
            raise Refusal(
                "box-leg", "this design has no query leg to shift from.", "declare a query leg, e.g. 'n: query'."
            )
        source = query
        if kind == "query":
            source = next((name for name, declaration in box.declared.items() if declaration.kind == "key"), "")
            if not source:
                box.written("to")
                raise Refusal(
                    "box-leg", "this design has no key leg to shift from.", "declare a key leg, e.g. 'm: key'."
                )
        replacement = (other,) if source in legs else (source, other)
        position = legs.index(leg)
        return (*legs[:position], *replacement, *legs[position + 1 :])

    def legs_whole(self, graph: Graph, box: Box) -> tuple[str | None, ...]:
        """With tables of keys over all relative positions, each block of queries needs the whole table."""
        return (graph.query,) if box.other == graph.query and graph.leg[str(box.leg)].reach is None else ()

    def reference(self, run: ReferenceEvaluation, step: Step, box: Box) -> tuple[Tensor, Legs]:
        """result[n, m] = of[n, p], or of[m, p], at p = position(n) - position(m); p beyond the reach is clamped."""
        use, query, along, to = box.of, run.graph.query, str(box.leg), str(box.other)
        source = str(run.graph.key) if to == query else query
        offsets, others = run.positions(along), without(use.legs, source, along)
        distance = run.positions(source)[:, None] - run.positions(to)
        distance = -distance if to == query else distance
        index = distance.clamp(offsets[0], offsets[-1]) - offsets[0] if len(offsets) else distance  # n m, or m n
        table = aligned(run.values[use.name], use.legs, (*others, source, along))
        batch = table.shape[:-2]
        table = table.expand(*batch, len(index), len(offsets)).gather(-1, index.expand(*batch, *index.shape))
        return table, (*others, source, to)

    def emit(self, lines: ForwardEmitter, step: Step, box: Box) -> None:
        table, query, relative = lines.value(box.of), lines.graph.query, str(box.leg)
        of_keys = box.other == query
        source = str(lines.graph.key) if of_keys else query
        others = without(table.legs, source, relative)
        table = table.aligned((*others, source, relative), whole=True)
        reach = lines.graph.leg[relative].reach
        arguments = [table.text, lines.length(query), lines.length(lines.graph.key)]
        function = "relative_to_query" if of_keys else "relative_to_key"
        expression = lines.call(function, *arguments, *([] if reach is None else [str(reach)]))
        lines.bind(step.name, expression, (*others, source, str(box.other)))

    def tile(self, tiles: KernelTiles, step: Step, box: Box) -> Tile | None:
        if box.other == tiles.nodes.pair[0]:
            return None
        use, leg = box.of, str(box.leg)
        nodes = tiles.nodes
        if leg not in nodes.order:
            return tiles.entry(use, leg)
        rows = nodes.spread(tiles.value(use), (nodes.pair[0], leg))
        return nodes.node("shift", (rows,), nodes.pair, step.name)
