"""Emits sums over keys that are mixed over heads before the queries read them: operands laid out, then one call."""

from __future__ import annotations

from tensornet_attn.cost.states import states_chunk, with_rows
from tensornet_attn.emit.layout import split
from tensornet_attn.emit.linear import cpp_option, sides_maps, unmapped
from tensornet_attn.emit.masks import takes_mask
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Step, Use
from tensornet_attn.graph.recurrence import Recurrence, recurrence_of
from tensornet_attn.ir.values import Legs, Value, shape_comment


def emit_states(writer: Writer, step: Step) -> None:
    """Emits one call: for one kernel, or for two whose keys are equal, one with values and one without."""
    if step.name in writer.values:
        return
    graph, query, key = writer.graph, str(writer.graph.query), str(writer.graph.key)
    steps = [one for one in (step, with_rows(graph, step)) if one is not None]
    steps.sort(key=lambda one: recurrence_of(one).value is None)
    each = [recurrence_of(one) for one in steps]
    boxes = " and ".join(parts.box.name for parts in each)
    writer.line(f"# {boxes}: sums over {key} first, mixed over heads; no {query} by {key} tensor is formed")
    parts, (term,) = each[0], each[0].terms
    q = _side(writer, "q", term.query[0], parts.heads, query, parts.features)
    k = _side(writer, "k", term.key[0], parts.mixed, key, parts.features)
    v = _side(writer, "v", parts.value, parts.mixed, key, parts.own)
    mix = _mix(writer, parts.mix, parts.heads, parts.mixed)
    options = ["mask" if takes_mask(graph) else "None", "key_mask", writer.batch_dims]
    if parts.causal(graph):
        options.append(f"causal=True, chunk={states_chunk(graph, parts)}")
    maps = sides_maps(writer, parts)
    if maps != ["None", "None"]:
        options.append(f"maps=({', '.join(maps)})")
    added = [_added(writer, own) for own in each]
    values = [
        Value(writer.local[one.name], (*own.heads, query, *own.own), True) for one, own in zip(steps, each, strict=True)
    ]
    if any(text != "None" for text in added):
        options.append(f"added={added[0]}" if len(steps) == 1 else f"added=({', '.join(added)})")
    options += cpp_option(writer, [step]) if len(steps) > 1 else []
    if len(steps) == 1:
        text = writer.call("mixed_states", q, k, v, mix, *options)
        text += split(-1, [*map(writer.size, parts.own)]) + split(-2 - len(parts.own), [*map(writer.size, parts.heads)])
        writer.line(f"{values[0].text} = {text}", values[0])
    else:
        call = writer.call("mixed_states_and_blockwise", q, k, v, mix, *options)
        shapes = "; ".join(shape_comment(value) for value in values)
        writer.line(f"{', '.join(value.text for value in values)} = {call}  # {shapes}")
        for value, own in zip(values, each, strict=True):
            columns = split(-1, [*map(writer.size, parts.own)]) if own is parts else ""
            if unflatten := columns + split(-2 - len(own.own), [*map(writer.size, own.heads)]):
                writer.line(f"{value.text} = {value.text}{unflatten}")
    writer.values |= {one.name: value for one, value in zip(steps, values, strict=True)}


def _side(writer: Writer, name: str, use: Use | None, heads: Legs, sequence: str, columns: Legs) -> str:
    """The name of an operand laid out as [heads, sequence, columns], with heads flattened."""
    return "None" if use is None else writer.operand(name, unmapped(writer, use)[0], (heads, (sequence,), columns))


def _added(writer: Writer, parts: Recurrence) -> str:
    """The name of what is added to the states of the heads, laid out as they are."""
    groups = parts.heads, parts.features, parts.own
    return "None" if parts.added is None else writer.operand("E", writer.value(parts.added), groups)


def _mix(writer: Writer, use: Use | None, heads: Legs, mixed: Legs) -> str:
    """The mixture as a matrix [heads, mixed heads]."""
    sizes = [" * ".join(map(writer.size, legs)) or "1" for legs in (heads, mixed)]
    if use is None:
        return f"{writer.like.text}.new_ones({', '.join(sizes)})"
    value = writer.value(use)
    missing = {*heads, *mixed} - {*value.legs}
    value = value.aligned((*heads, *mixed), whole=True) if missing else value
    text = value.grouped((heads, mixed))
    return f"({text}).expand({', '.join(sizes)})" if missing else text
