"""Emits `__init__` and `reset_parameters`: parameters, buffers and their initial values."""

from __future__ import annotations

from tensornet_attn.emit.leaves import filled_text
from tensornet_attn.emit.names import Names
from tensornet_attn.emit.wrap import INDENT, indented, wrapped
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.graph import Graph, Tensor
from tensornet_attn.graph.pairs import summed_dims


def init_lines(writer: Writer, graph: Graph) -> list[str]:
    """`__init__` with the sizes of the weights as arguments, and `reset_parameters`; `graph`: as written."""
    tensors = [tensor for tensor in graph.tensors if tensor.role in ("weight", "state")]
    legs = [leg for leg in graph.legs if any(leg.name in tensor.legs for tensor in tensors)]
    names = Names(frozenset({"new", "device", "dtype"}))
    products = [tensor for tensor in graph.tensors if tensor.init is not None and tensor.init.name == "kron"]
    fixed = {leg for tensor in products for leg in tensor.legs}  # literals elsewhere: their factors may be split
    local = {leg.name: str(leg.stored) if leg.name in fixed else names.diagram_name(leg.name) for leg in legs}
    sizes = [f"{local[leg.name]}: int = {leg.stored}" for leg in legs if leg.name not in fixed]
    reset = Names(frozenset(graph.tensor)).diagram_name("reset_parameters")
    lines = wrapped(f"def __init__({', '.join(['self', *sizes, '*', 'device=None', 'dtype=None'])}):", len(INDENT))
    lines += indented(["super().__init__()", *_made(tensors, local), f"self.{reset}()"])
    initial_lines = [row for tensor in tensors for row in wrapped(_first(writer, graph, tensor), 2 * len(INDENT))]
    return [*lines, "", f"def {reset}(self) -> None:", *indented(initial_lines or ["pass"])]


def _made(tensors: list[Tensor], local: dict[str, str]) -> list[str]:
    lines = ['new = {"device": device, "dtype": dtype}'] if tensors else []
    for tensor in tensors:
        empty = f"torch.empty({', '.join([*(local[leg] for leg in tensor.legs)] or ['()'])}, **new)"
        if tensor.role == "state":
            lines.append(f'self.register_buffer("{tensor.name}", {empty})')
        else:
            frozen = ", requires_grad=False" if tensor.frozen else ""
            lines.append(f"self.{tensor.name} = nn.Parameter({empty}{frozen})")
    return lines


def _first(writer: Writer, graph: Graph, tensor: Tensor) -> str:
    """The line that initialises a weight or state."""
    attribute, init = f"self.{tensor.name}", tensor.init
    assert init is not None
    if init.name == "xavier":
        return writer.call("xavier_", attribute, str(summed_dims(graph, tensor)))
    if init.name == "normal":
        return f"nn.init.normal_({attribute}, 0.0, {writer.number(init.arguments[0])})"  # type: ignore[arg-type]
    if init.name == "uniform":
        bound = writer.factor(init.arguments[0])  # type: ignore[arg-type]
        return f"nn.init.uniform_({attribute}, -{bound}, {bound})"
    if init.name == "full":
        return f"nn.init.constant_({attribute}, {writer.number(init.arguments[0])})"  # type: ignore[arg-type]
    if not init.arguments and init.name in ("zeros", "ones", "eye"):
        return f"nn.init.{init.name}_({attribute})"
    return writer.call(
        "set_", attribute, filled_text(writer, init, [], f"device={attribute}.device, dtype={attribute}.dtype")
    )
