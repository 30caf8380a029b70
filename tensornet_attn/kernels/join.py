"""Features side by side: parts of scores concatenated along the last dimension, for one product of attention."""

from __future__ import annotations

from tensornet_attn.cost.kernels import body_of
from tensornet_attn.cost.work import KernelWork
from tensornet_attn.emit.contract import emit_contraction
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.pairs import batches
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.ir.steps import without
from tensornet_attn.ir.values import Legs, TensorText
from tensornet_attn.kernels.implementation import Context, Implementation, Lowered
from tensornet_attn.rewrite.change import product
from tensornet_attn.rewrite.features import Joined
from tensornet_attn.rewrite.scores import exact_parts


class JoinWork(KernelWork):
    """Parts that are written side by side."""

    @property
    def kept(self) -> dict[str, int]:
        """What the products of its parts save."""
        return self.saved_inside


class JoinedFeatures(Implementation[Joined]):
    """Features that a rewriting of scores concatenates; no form is searched for."""

    name, kind, in_reader, work = "features side by side", "join", True, JoinWork

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        return Lowered(graph)

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits the parts, each laid out as [shared legs..., own legs flattened], then the concatenation."""
        shared, body = step.legs[:-1], body_of(step)
        values = {inner_step.name: _value(writer, inner_step) for inner_step in body if inner_step.uses}
        expressions = {name: value.grouped(_groups(value, shared)) for name, value in values.items()}
        complete = {name for name, value in values.items() if {*shared} <= {*value.legs}}
        wide = max(complete, key=lambda name: (values[name].batched, -list(values).index(name)))
        expressions[wide] = first = writer.operand(
            "first", values[wide], _groups(values[wide], shared), expressions[wide]
        )
        shape = f"{first}.shape[:-1]"
        tensor_batches = batches(writer.graph)
        reach = {
            inner_step.name: {batch for use in inner_step.uses for batch in tensor_batches[use.name]}
            for inner_step in body
        }
        others = [name for name in values if reach[name] - reach[wide]]
        if others:  # no part surely has the batch and all legs
            shape = writer.names.fresh("shape")
            shapes = ", ".join(
                f"{expression}.shape[:-1]" for expression in (first, *(expressions[name] for name in others))
            )
            writer.line(f"{shape} = torch.broadcast_shapes({shapes})")
        exact = {inner_step.name for inner_step in exact_parts(writer.graph, step)}
        feature = next(name for name in expressions if name not in exact)
        like, stand_in = expressions[feature], feature if exact else wide
        for name in exact & {*expressions}:
            expressions[name] = writer.call("exact_columns", expressions[name], like)
        for inner_step in body:
            name = inner_step.name if inner_step.name in values else stand_in
            if inner_step.name not in values:
                number = writer.number(inner_step.op.terms[0].coefficient)  # type: ignore[union-attr]
                column = f"torch.full_like({first}[..., :1], {number})"
                expressions[inner_step.name] = writer.call("equal_columns", number, like) if exact else column
            if others or not {*shared} <= {*values[name].legs} or reach[name] != reach[wide]:
                expressions[inner_step.name] += f".expand(*{shape}, -1)"
        writer.bind(
            step.name,
            f"torch.cat(({', '.join(expressions[inner_step.name] for inner_step in body)}), -1)",
            step.legs,
        )


JOIN = JoinedFeatures()


def _value(writer: Writer, step: Step) -> TensorText:
    """The value of a part: the tensor itself if it is unchanged, else a line of its own."""
    term = product(step)
    if term is not None and term.coefficient == ONE and len(term.factors) == 1:
        return writer.value(term.factors[0])
    writer.local[step.name] = writer.names.fresh("part")
    if step.reads & writer.batched:
        writer.batched |= {step.name}
    emit_contraction(writer, step)
    return writer.values[step.name].unpacked


def _groups(value: TensorText, shared: Legs) -> tuple[Legs, ...]:
    columns = without(value.legs, *shared)
    return (*((leg,) if leg in value.legs else () for leg in shared), columns)
