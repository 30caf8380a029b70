"""Emits steps in the precision of `graph/precision.py`: their operands are widened or rounded where they are read.

# S = Q K + c[n] - c[m], c wide     ->     S = to_narrow(QK + c - c, x)
# y = P[n m] b[m d], b wide         ->     y = P @ to_narrow(b, x)
# S = Q[n d] K[m d], S wide         ->     S = to_wide(to_wide_on_cpu(Q) @ to_wide_on_cpu(K).mT), see emit/contract.py
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tensornet_attn.cost.blocks import BlockedSteps
from tensornet_attn.cost.kernels import body_of
from tensornet_attn.emit.writer import Writer
from tensornet_attn.graph.diagram import operation_of
from tensornet_attn.graph.graph import Graph, Step
from tensornet_attn.graph.precision import elementwise, exponents_of, few_rows, log_over_keys
from tensornet_attn.graph.recurrence import without_values
from tensornet_attn.ir.values import TensorText
from tensornet_attn.rewrite.scores import exact_parts


@contextmanager
def in_precision(writer: Writer, step: Step) -> Iterator[None]:
    """In this context, operands have the precision in which the step reads them, and its result is rounded if it is."""
    values = {use.name: writer.values[use.name] for use in step.uses if use.name in writer.values}
    wide = [name for name in values if name in writer.wide]
    short = writer.target.workload == "decoding" and all(few_rows(writer.graph, inner) for inner in body_of(step))
    blocks = isinstance(step.form, BlockedSteps) and not step.form.tiled and (wide or short)  # one dtype
    if isinstance(step.form, BlockedSteps) and (writer.cpp or not step.form.tiled):  # C++ has no half precision
        blocks = blocks or any(log_over_keys(writer.graph, inner) for inner in body_of(step))
    read_wide = wide if blocks else [name for name in wide if takes_wide(writer, name, step)]
    for name in wide:
        if name not in read_wide:
            _read_as(writer, name, "to_narrow", writer.like.text)
    narrow = [name for name in values if name not in wide]
    product = step.name in writer.wide and step.contraction is not None and not elementwise(step)
    if blocks or (product and wide):
        for name in narrow:
            _read_as(writer, name, "to_wide" if wide or not short else "to_wide_on_cpu")
    elif step.name in writer.wide and not (wide or product) and step.kernel is None:
        constants = {tensor.name for tensor in writer.graph.of_role("constant")}
        learned = [name for name in narrow if name not in constants]
        for name in sorted(learned, key=lambda name: not values[name].batched)[:1]:
            _read_as(writer, name, "to_wide")
    rounds = (read_wide or blocks) and step.name not in writer.wide and (blocks or step.kernel is None)
    writer.rounded, writer.widened = step.name if rounds else "", step.name if product and not wide else ""
    yield
    writer.values |= values
    writer.rounded = writer.widened = ""


def rounded(writer: Writer, output: TensorText) -> TensorText:
    """The output, in the dtype of the layer if it is kept wide."""
    if writer.graph.output not in writer.wide:
        return output
    expression = writer.call("rounded_to", output.unpacked.text, f"{writer.like.text}.dtype")
    return TensorText(expression, output.legs, output.batched)


def _read_as(writer: Writer, name: str, function: str, *arguments: str) -> None:
    value = writer.values[name].unpacked
    writer.values[name] = TensorText(writer.call(function, value.text, *arguments), value.legs, value.batched)


def takes_wide(writer: Writer, name: str, step: Step) -> bool:
    """Whether a step computes with a wide operand; else the operand is rounded first."""
    if step.kernel is not None:
        return kernel_takes_wide(writer.graph, name, step) or (step.name in writer.wide and without_values(step))
    if step.contraction is not None:
        return step.name in writer.wide or elementwise(step)
    if step.box is None:
        return False
    return len(step.box.operands) == 1 or _read_exactly(step, {name})


def _read_exactly(step: Step, names: set[str]) -> bool:
    """Whether a box reads these only as logarithms or as numbers per row, such as a sink."""
    if step.box is None:
        return False
    operation, roles = operation_of(step), {role for role, use in step.box.operands if use.name in names}
    return roles <= {*operation.logarithms, *operation.row_gradients}


def sums_wide(graph: Graph, wide: frozenset[str], name: str) -> bool:
    """Whether a sum over the keys is computed in at least float32: it is kept so, or all its readers take it."""
    readers = [step for step, _ in graph.readers.get(name, ())]
    return name in wide or (bool(readers) and all(_adds_wide(graph, name, reader) for reader in readers))


def _adds_wide(graph: Graph, name: str, reader: Step) -> bool:
    """Whether a reader accepts a 32-bit operand besides 16-bit ones: exponents of decays, exact columns, tiles."""
    if reader.kernel is not None:
        return kernel_takes_wide(graph, name, reader)
    exponents = {use.name for step in graph.steps for use in exponents_of(step)}
    return reader.name in exponents and elementwise(reader)


def kernel_takes_wide(graph: Graph, name: str, step: Step) -> bool:
    """Whether a kernel accepts a 32-bit operand besides 16-bit ones."""
    if isinstance(step.form, BlockedSteps):
        return step.form.tiled
    assert step.kernel is not None
    names = {name, *(tensor for tensor, hidden in step.kernel.hidden if hidden == name)}
    if names & {use.name for use in exponents_of(step)}:
        return True
    adding = [inner for inner in step.kernel.body if inner.reads & names]
    parts = exact_parts(graph, step)
    return all((inner in parts and elementwise(inner)) or _read_exactly(inner, names) for inner in adding)
