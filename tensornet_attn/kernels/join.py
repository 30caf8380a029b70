"""Features side by side: parts of scores concatenated along the last dimension, for one product of attention."""

from __future__ import annotations

from tensornet_attn.cost.kernels import inside
from tensornet_attn.cost.memory import saved
from tensornet_attn.cost.scene import Scene
from tensornet_attn.emit.contract import emit_contraction
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Graph, Step
from tensornet_attn.graph.pairs import batches
from tensornet_attn.ir.arithmetic import ONE
from tensornet_attn.ir.values import Legs, Value
from tensornet_attn.kernels.implementation import Context, Implementation, Lowered
from tensornet_attn.rewrite.features import Joined
from tensornet_attn.rewrite.scores import exact_parts


class Join(Implementation[Joined]):
    """Features that a rewriting of scores concatenates; no form is searched for."""

    name, kind, in_reader = "features side by side", "join", True

    def lowered(self, graph: Graph, context: Context) -> Lowered:
        return Lowered(graph)

    def kept(self, scene: Scene, step: Step) -> dict[str, int]:
        """What the products of its parts save."""
        inner, parts = inside(scene, step)
        return {name: floats for part in parts for name, floats in saved(inner, part).items()}

    def emit(self, writer: Writer, step: Step) -> None:
        """Emits the parts, each laid out as [shared legs..., own legs flattened], then the concatenation."""
        assert step.kernel is not None
        shared = step.legs[:-1]
        values = {part.name: _value(writer, part) for part in step.kernel.body if part.op.uses}
        texts = {name: value.grouped(_groups(value, shared)) for name, value in values.items()}
        whole = {name for name, value in values.items() if {*shared} <= {*value.legs}}
        wide = max(whole, key=lambda name: (values[name].batched, -list(values).index(name)))
        texts[wide] = first = writer.operand("first", values[wide], _groups(values[wide], shared), texts[wide])
        shape = f"{first}.shape[:-1]"
        known = batches(writer.graph)
        reach = {part.name: {many for use in part.op.uses for many in known[use.name]} for part in step.kernel.body}
        others = [name for name in values if reach[name] - reach[wide]]
        if others:  # no part surely has the batch and all legs
            shape = writer.names.fresh("shape")
            made = ", ".join(f"{text}.shape[:-1]" for text in (first, *(texts[name] for name in others)))
            writer.line(f"{shape} = torch.broadcast_shapes({made})")
        exact = {part.name for part in exact_parts(writer.graph, step)}
        feature = next(name for name in texts if name not in exact)
        like = texts[feature]
        for name in exact & {*texts}:
            texts[name] = writer.call("exact_columns", texts[name], like)
        for part in step.kernel.body:
            name = part.name if part.name in values else feature if exact else wide
            if part.name not in values:
                number = writer.number(part.op.terms[0].coefficient)  # type: ignore[union-attr]
                one = f"torch.full_like({first}[..., :1], {number})"
                texts[part.name] = writer.call("equal_columns", number, like) if exact else one
            if others or not {*shared} <= {*values[name].legs} or reach[name] != reach[wide]:
                texts[part.name] += f".expand(*{shape}, -1)"
        writer.bind(
            step.name, f"torch.cat(({', '.join(texts[part.name] for part in step.kernel.body)}), -1)", step.legs
        )


JOIN = Join()


def _value(writer: Writer, part: Step) -> Value:
    """The value of a part: the tensor itself if it is unchanged, else a line of its own."""
    assert part.contraction is not None
    terms = part.contraction.terms
    if len(terms) == 1 and terms[0].coefficient == ONE and len(terms[0].factors) == 1:
        return writer.value(terms[0].factors[0])
    writer.local[part.name] = writer.names.fresh("part")
    if any(use.name in writer.batched for use in part.op.uses):
        writer.batched |= {part.name}
    emit_contraction(writer, part)
    return writer.values[part.name].unpacked


def _groups(value: Value, shared: Legs) -> tuple[Legs, ...]:
    own = tuple(leg for leg in value.legs if leg not in shared)
    return (*((leg,) if leg in value.legs else () for leg in shared), own)
