"""Emits the leaves of a diagram: inputs, lengths, weights, constants, noise, states."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tensornet_attn.emit.wrap import tuple_text
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.diagram import size_of
from tensornet_attn.graph.graph import Function, Step, Tensor
from tensornet_attn.graph.recurrence import Recurrence
from tensornet_attn.ir.values import TensorText, permuted


def open_forward(writer: Writer, steps: Iterable[Step]) -> None:
    """Binds inputs and their defaults, the leaves that the steps use, and every state before it is updated."""
    inputs = writer.graph.of_role("input")
    writer.groups.append([])
    for tensor in inputs:
        writer.values[tensor.name] = TensorText(writer.local[tensor.name], tensor.legs, True)
    for tensor in inputs:
        if tensor.default is not None:
            local, default = writer.local[tensor.name], writer.local[tensor.default]
            writer.line(f"{local} = {default} if {local} is None else {local}")
    writer.groups.append([])  # filled in after it is known which lengths are used
    writer.lengths = {leg.name: writer.names.fresh(leg.name) for leg in writer.graph.legs if leg.sequence}
    writer.groups.append([])
    used = {use.name for _, use in writer.graph.uses()}
    bind_leaves(writer, steps, {tensor.name for tensor in writer.graph.of_role("state")} & used)


def bind_leaves(writer: Writer, steps: Iterable[Step], more: Collection[str] = ()) -> None:
    """Binds the leaves that the steps use, or that `more` names, and that have no value yet.

    The code of a recurrence reads no constant of queries x keys: such a constant only says which keys are hidden.
    """
    pair = {writer.graph.query, writer.graph.key}
    uses = (
        use for step in steps for use in step.uses if not (isinstance(step.form, Recurrence) and pair <= {*use.legs})
    )
    used = {*more, *(use.name for use in uses)}
    for tensor in writer.graph.tensors:
        if tensor.name in used and tensor.name not in writer.values:
            _LEAVES[tensor.role](writer, tensor)


def bind_lengths(writer: Writer) -> None:
    """Writes the used lengths: from an input with the leg, else from the other sequence leg, else the maximum."""
    graph = writer.graph
    sources = {leg: _length_of(writer, leg) for leg in writer.lengths}
    counterpart = {graph.query: graph.key, graph.key: graph.query}
    locals_by_source: dict[str, list[str]] = {}
    for leg in writer.lengths:
        if leg in writer.used_lengths:
            source = sources[leg] or (graph.tied and sources.get(str(counterpart[leg]))) or str(graph.leg[leg].maximum)
            locals_by_source.setdefault(source, []).append(writer.lengths[leg])
    writer.groups[1] += [f"{' = '.join(locals_)} = {source}" for source, locals_ in locals_by_source.items()]


def _length_of(writer: Writer, leg: str) -> str:
    """The size of the leg on the first input that has it, or an empty text."""
    source = next((tensor for tensor in writer.graph.of_role("input") if leg in tensor.legs), None)
    return f"{writer.local[source.name]}.shape[{source.legs.index(leg) - len(source.legs)}]" if source else ""


def _input(writer: Writer, tensor: Tensor) -> None:
    """An input is bound by the signature."""


def _weight(writer: Writer, tensor: Tensor) -> None:
    """`self.W`, cut to the run-time length along sequence legs."""
    sequence_axes = [axis for axis, leg in enumerate(tensor.legs) if writer.graph.leg[leg].sequence]
    if tensor.stored or sequence_axes in ([], [0]):
        expression = stored(writer, tensor)
    else:
        expression = f"self.{tensor.name}"
        for axis in sequence_axes:
            expression = writer.call("first_entries", expression, str(axis), writer.length(tensor.legs[axis]))
    if tensor.stored or sequence_axes:
        writer.bind(tensor.name, expression, tensor.legs)
    else:
        writer.values[tensor.name] = TensorText(expression, tensor.legs, False)


def _state(writer: Writer, tensor: Tensor) -> None:
    """A copy of the old value, because the buffer changes before the backward reads it."""
    writer.bind(tensor.name, f"{stored(writer, tensor)}.clone()", tensor.legs)


def stored(writer: Writer, tensor: Tensor) -> str:
    """`self.W`, or `self.W[:m]` for a sequence leg, or `self.W.unflatten(1, (8, -1))` for split legs."""
    if tensor.stored:
        return f"self.{tensor.name}" + "".join(reversed([_apart(writer, *pair) for pair in enumerate(tensor.stored)]))
    cuts = [f":{writer.length(leg)}" if writer.graph.leg[leg].sequence else ":" for leg in tensor.legs]
    while cuts and cuts[-1] == ":":
        cuts.pop()
    return f"self.{tensor.name}" + (f"[{', '.join(cuts)}]" if cuts else "")


def _apart(writer: Writer, axis: int, group: tuple[str, ...]) -> str:
    """The call that unflattens a stored dimension; calls for later dimensions come first."""
    sizes = ", ".join([*(str(size_of(writer.graph, leg)) for leg in group[:-1]), "-1"])
    return f".unflatten({axis}, ({sizes}))" if len(group) > 1 else ""


def _noise(writer: Writer, tensor: Tensor) -> None:
    shape = ", ".join([writer.batch_shape, *(writer.size(leg) for leg in tensor.legs)])
    draw = "True" if tensor.always else "self.training"
    std = writer.number(tensor.std)
    expression = writer.call("gaussian", "noise", f'"{tensor.name}"', f"({shape})", std, draw, writer.like.text)
    writer.bind(tensor.name, expression, tensor.legs)


def _constant(writer: Writer, tensor: Tensor) -> None:
    assert tensor.init is not None
    writer.bind(tensor.name, constant_text(writer, tensor, tensor.init), tensor.legs)


def constant_text(writer: Writer, tensor: Tensor, init: Function) -> str:
    """The value of a constant at its run-time size."""
    like = writer.like.text
    dtype = writer.call("wide_dtype", f"{like}.dtype") if tensor.name in writer.wide else f"{like}.dtype"
    options = f"device={like}.device, dtype={dtype}"
    sizes = [writer.size(leg) for leg in tensor.legs]
    if init.name == "sinusoid":
        return writer.call("sinusoid", writer.positions(tensor.legs[0]), sizes[1], f"{like}.dtype")
    if init.name == "position":
        return writer.call("exactly", writer.positions(tensor.legs[0]))  # rates times large positions are large
    if init.name == "index":
        return f"torch.arange({sizes[0]}, {options})"
    if init.name == "alibi_slopes":
        return writer.call("alibi_slopes", sizes[0], f"{like}.device", dtype)
    if init.name in ("bucket", "log_bucket"):
        count, furthest, *flags = (writer.integer(argument) for argument in init.arguments)  # type: ignore[arg-type]
        arguments = [writer.positions(tensor.legs[0]), count, furthest, *(str(bool(int(flag))) for flag in flags)]
        return writer.call("one_of", writer.call(f"{init.name}s", *arguments), count, f"{like}.dtype")
    if init.name == "distance":
        expression = writer.call("distance", *writer.lengths_of_pair, f"{like}.device") + f".to({dtype})"
        return permuted(expression, (writer.graph.query, str(writer.graph.key)), tensor.legs)
    return filled_text(writer, init, sizes, options)


def filled_text(writer: Writer, init: Function, sizes: list[str], options: str) -> str:
    """zeros, ones, full(v), eye, eye(a), ones(a, b), kron(a, b) as torch calls."""
    if init.name == "full":
        return f"torch.full({tuple_text(sizes)}, {writer.number(init.arguments[0])}, {options})"  # type: ignore[arg-type]
    if init.name == "kron":
        left, right = (filled_text(writer, factor, [], options) for factor in init.arguments)  # type: ignore[arg-type]
        return f"torch.kron({left}, {right})"
    arguments = [writer.integer(argument) for argument in init.arguments]  # type: ignore[arg-type]
    return f"torch.{init.name}({', '.join(arguments or sizes or ['()'])}, {options})"


_LEAVES = {"input": _input, "weight": _weight, "state": _state, "noise": _noise, "constant": _constant}
