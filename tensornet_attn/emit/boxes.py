"""Boxes as Python: one emitter a kind of box, found by the box's name."""

from __future__ import annotations

from collections.abc import Callable
from math import isinf

from tensornet_attn.emit.contract import scaled
from tensornet_attn.emit.layout import box_layout
from tensornet_attn.emit.masks import keep_and_bias, seen_text
from tensornet_attn.emit.values import ATOM, PRODUCT, Legs, Value
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.hidden import visible_to
from tensornet_attn.graph.model import MASKED_BOXES, Box, Step
from tensornet_attn.spec.arithmetic import Arith

_MAPS = {
    "relu": "F.relu({0})",
    "gelu": "F.gelu({0})",
    "silu": "F.silu({0})",
    "tanh": "torch.tanh({0})",
    "sigmoid": "torch.sigmoid({0})",
    "exp": "torch.exp({0})",
    "log": "torch.log({0})",
    "square": "torch.square({0})",
    "sqrt": "torch.sqrt({0})",
    "abs": "torch.abs({0})",
}
_DENSE = {"sum": "sum", "mean": "mean", "max": "amax", "logsumexp": "logsumexp"}
_NORMS = {"rmsnorm": "rms_norm", "layernorm": "layer_norm", "l1norm": "l1_norm", "l2norm": "l2_norm"}


def emit_box(writer: Writer, step: Step) -> None:
    """The lines of a dense box."""
    assert isinstance(step.op, Box)
    if writer.graph.masked(step):
        _masked(writer, step, step.op)
    elif step.op.kind in MASKED_BOXES:
        _along(writer, step, step.op)
    else:
        _EMITTERS[step.op.kind](writer, step, step.op)


def _masked(writer: Writer, step: Step, box: Box) -> None:
    """A box over the key leg: its masks and those of the call act; these name the other legs in written order."""
    use = box.operand("of")
    layout = box_layout(writer.graph, step, use.legs)
    value = writer.value(use).arranged(layout)
    keep, bias = keep_and_bias(writer, step, layout)
    if box.kind in ("keep", "normalize", "sum") and visible_to(writer.graph, step) in writer.zero_outside[step.name]:
        keep = "None"  # what is hidden is zero already
    if box.kind == "softmax":
        text = writer.call("masked_softmax", scaled(writer, box.number("scale"), value).text, keep, bias)
        writer.bind(step.name, _dropped(writer, box.number("dropout"), text), layout)
    elif box.kind == "normalize":
        writer.bind(step.name, writer.call("normalized", value.text, keep, *_eps(writer, box)), layout)
    elif box.kind == "keep":
        if keep != "None":
            writer.bind(step.name, writer.call("kept", value.text, keep), layout)
        elif value.text.isidentifier():
            writer.values[step.name] = value
        else:
            writer.bind(step.name, value.text, layout, value.level)
    else:
        text = value.text if bias == "None" else writer.call("added", value.text, bias)
        writer.bind(step.name, writer.call(f"masked_{box.kind}", text, keep), layout[:-1])


def _along(writer: Writer, step: Step, box: Box) -> None:
    """The same boxes over a leg that no mask acts on."""
    value = writer.value(box.operand("of"))
    dim = _dim(value, box.leg)
    if box.kind == "softmax":
        text = f"{scaled(writer, box.number('scale'), value).atom}.softmax({dim})"
        writer.bind(step.name, _dropped(writer, box.number("dropout"), text), value.legs)
    elif box.kind == "normalize":
        value = value.arranged(box_layout(writer.graph, step, value.legs))
        writer.bind(step.name, writer.call("normalized", value.text, "None", *_eps(writer, box)), value.legs)
    elif box.kind == "keep":
        writer.bind(step.name, value.text, value.legs, value.level)
    else:
        legs = tuple(leg for leg in value.legs if leg != box.leg)
        writer.bind(step.name, f"{value.atom}.{_DENSE[box.kind]}({dim})", legs)


def _dim(value: Value, leg: str | None) -> int:
    return value.legs.index(str(leg)) - len(value.legs)


def _eps(writer: Writer, box: Box) -> list[str]:
    """The argument eps, left out where it is what the function has anyway."""
    text = writer.number(box.number("eps"))
    usual = ("1e-05",) if box.kind in ("rmsnorm", "layernorm") else ("0", "0.0")
    return [] if text in usual else [text]


def _dropped(writer: Writer, probability: Arith, text: str) -> str:
    number = writer.number(probability)
    return text if number in ("0", "0.0") else f"F.dropout({text}, {number}, self.training)"


def _map(writer: Writer, step: Step, box: Box) -> None:
    value, function = writer.value(box.operand("of")), box.function
    assert function is not None
    arguments = [writer.number(argument) for argument in function.arguments]  # type: ignore[arg-type]
    level = ATOM
    if function.name in _MAPS:
        text = _MAPS[function.name].format(value.text)
    elif function.name == "clamp":
        text = f"{value.atom}.clamp({', '.join(arguments)})"
    elif function.name == "power":
        text, level = f"{value.atom} ** {_exponent(arguments[0])}", PRODUCT
    else:
        text = writer.call(function.name, value.text, *arguments)
    writer.bind(step.name, text, value.legs, level)


def _exponent(text: str) -> str:
    return text if text.replace(".", "").isdigit() else f"({text})"


def _hide(writer: Writer, step: Step, box: Box) -> None:
    value, pair = writer.value(box.operand("of")), (writer.graph.query, writer.graph.key)
    if {*pair} <= {*value.legs}:
        value = value.arranged(tuple(leg for leg in value.legs if leg not in pair) + tuple(map(str, pair)))
    keep = seen_text(writer, box.seen, value.legs, value.batched)
    fill = box.number("fill").value  # type: ignore[union-attr]
    text = writer.call("hide", value.text, keep, 'float("-inf")' if isinf(fill) else repr(fill))
    writer.bind(step.name, text, value.legs)


def _topk(writer: Writer, step: Step, box: Box) -> None:
    of, by = writer.value(box.operand("of")), writer.value(box.operand("by"))
    text = writer.call(
        "top_entries", of.text, by.aligned(of.legs).text, writer.integer(box.number("k")), str(_dim(of, box.leg))
    )
    writer.bind(step.name, text, of.legs)


def _norm(writer: Writer, step: Step, box: Box) -> None:
    value = writer.value(box.operand("of"))
    text = writer.call(_NORMS[box.kind], value.text, str(_dim(value, box.leg)), *_eps(writer, box))
    writer.bind(step.name, text, value.legs)


def _rope(writer: Writer, step: Step, box: Box) -> None:
    value = writer.value(box.operand("of"))
    blocks, width = writer.number(box.number("blocks")), writer.size(str(box.other))
    text, place, along = value.text, _dim(value, box.leg), _dim(value, box.other)
    if blocks != "1":  # one more dim: blocks, before the entries of a block
        text, width = f"{value.text}.unflatten({along}, ({blocks}, -1))", f"({width} // {blocks})"
        place -= place < along
    if writer.number(box.number("fraction")) not in ("1", "1.0"):
        width = f"round({writer.factor(box.number('fraction'))} * {width})"
    positions, base = writer.positions(str(box.leg)), writer.number(box.number("base"))
    text = writer.call("rotate", text, positions, str(place), str(along), base, width)
    writer.bind(step.name, text if blocks == "1" else f"{text}.flatten({along - 1}, {along})", value.legs)


def _rel_shift(writer: Writer, step: Step, box: Box) -> None:
    value, query, relative = writer.value(box.operand("of")), str(writer.graph.query), str(box.leg)
    others = tuple(leg for leg in value.legs if leg not in (query, relative))
    value = value.aligned((*others, query, relative), whole=True)
    reach = writer.graph.leg[relative].reach
    arguments = [value.text, writer.length(query), writer.length(box.other)]
    text = writer.call("relative_to_key", *arguments, *([] if reach is None else [str(reach)]))
    writer.bind(step.name, text, (*others, query, str(box.other)))


def _dropout(writer: Writer, step: Step, box: Box) -> None:
    value = writer.value(box.operand("of"))
    text = _dropped(writer, box.number("dropout"), value.text)
    writer.bind(step.name, text, value.legs, value.level if text == value.text else ATOM)


def _delta_rule(writer: Writer, step: Step, box: Box) -> None:
    """Operands as [heads..., sequence, width]; the contracted legs are one width, the value's own legs another."""
    query, key = str(writer.graph.query), str(box.leg)
    q, k, v, rate = (writer.value(box.operand(role)) for role in ("query", "key", "value", "rate"))
    shared = {*q.legs, *k.legs, *rate.legs}
    heads = tuple(leg for leg in v.legs if leg != key and leg in shared)
    own = tuple(leg for leg in v.legs if leg != key and leg not in shared)
    contracted = tuple(leg for leg in k.legs if leg in q.legs and leg not in v.legs)
    arguments = [_matrix(q, heads, query, contracted), _matrix(k, heads, key, contracted), _matrix(v, heads, key, own)]
    arguments.append(rate.aligned((*heads, key), whole=True).text)
    masked = f"key_mask[{', '.join(['...', *['None'] * len(heads), ':'])}]" if heads else "key_mask"
    arguments.append(f"{masked} if key_mask is not None else None" if heads else masked)
    mode = box.mode or "none"
    if mode != "none":
        arguments += [f'"{mode}"', *_eps(writer, box)]
    text = writer.call("delta_rule", *arguments)
    if len(own) != 1:
        text += f".unflatten(-1, ({', '.join(writer.size(leg) for leg in own)}))" if own else "[..., 0]"
    writer.bind(step.name, text, (*heads, query, *own))


def _matrix(value: Value, heads: Legs, sequence: str, width: Legs) -> str:
    missing = tuple(leg for leg in heads if leg not in value.legs)
    if missing:
        value = value.aligned((*heads, sequence, *width), whole=True)
    return value.grouped((*((leg,) for leg in heads), (sequence,), width))


_EMITTERS: dict[str, Callable[[Writer, Step, Box], None]] = {
    "map": _map,
    "hide": _hide,
    "topk": _topk,
    **dict.fromkeys(_NORMS, _norm),
    "rope": _rope,
    "rel_shift": _rel_shift,
    "delta_rule": _delta_rule,
    "dropout": _dropout,
}
