"""Sums over keys that are mixed over heads before queries read them, as Python: each side laid out, then one call."""

from __future__ import annotations

from tensornet_attn.cost.states import states_causal, states_chunk, states_of
from tensornet_attn.emit.masks import takes_mask
from tensornet_attn.emit.values import Legs, Value
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.model import Step, Use


def emit_states(writer: Writer, step: Step) -> None:
    """The lines of one call."""
    parts, query, key = states_of(writer.graph, step), str(writer.graph.query), str(writer.graph.key)
    writer.line(f"# {parts.box.name}: the keys are summed and mixed over heads first, nothing is {query} by {key}")
    q = _side(writer, "q", parts.query, parts.heads, query, parts.features)
    k = _side(writer, "k", parts.key, parts.mixed, key, parts.features)
    v = _side(writer, "v", parts.value, parts.mixed, key, parts.own)
    mix = _mix(writer, parts.mix, parts.heads, parts.mixed)
    options = ["mask" if takes_mask(writer.graph) else "None", "key_mask", writer.batch_dims]
    if states_causal(writer.graph, parts):
        options.append(f"causal=True, chunk={states_chunk(writer.graph, parts)}")
    text = writer.call("mixed_states", q, k, v, mix, *options)
    text += _split(writer, -1, parts.own)
    text += _split(writer, -2 - len(parts.own), parts.heads)
    value = Value(writer.local[step.name], (*parts.heads, query, *parts.own), True)
    writer.line(f"{value.text} = {text}", value)
    writer.values[step.name] = value


def _side(writer: Writer, name: str, use: Use | None, heads: Legs, sequence: str, columns: Legs) -> str:
    """The name of one side as [heads, sequence, columns], heads side by side."""
    if use is None:
        return "None"
    value = writer.value(use)
    text = value.grouped((heads, (sequence,), columns))
    shape = f"{'... ' if value.batched else ''}{_words(heads)} {sequence} {_words(columns)}"
    local = writer.names.fresh(name)
    writer.line(f"{local} = {text}  # {shape}")
    return local


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


def _split(writer: Writer, place: int, legs: Legs) -> str:
    """What makes a dimension the legs that stand side by side in it."""
    if len(legs) == 1:
        return ""
    return f".unflatten({place}, ({', '.join(map(writer.size, legs))}))" if legs else f".squeeze({place})"


def _words(legs: Legs) -> str:
    return f"({' '.join(legs)})" if len(legs) > 1 else legs[0] if legs else "1"
