"""Writes a graph as text, with a line for each leg, setting, tensor and step. Different graphs have different texts.

    graph mhsa
    leg n query                                   # `leg m key 256`: its maximum; `leg p relative 32`: its reach
    leg f = 512
    leg h head = 8
    leg d 64 = f / h
    setting k = 2
    input x[n f]                                  # may have `default NAME`
    weight Wq[f h d] init xavier                  # may have `frozen`, and `stored (f, h d)` for split legs
    Q[n h d] = x[n f] Wq[f h d]
    A.of[h n m] = Q[n h d] K[m h d]
    A[h n m] = softmax(A.of[h n m]; over m; scale d ** -0.5; dropout 0)
    y[n f] = A[h n m] V[m h d] Wo[h d f]
    loss balance = 0.01                           # may have `step H`, if the step has another name
    output y

The lines keep the names and orders of the graph, unlike the canonical form. A box has its operands, then `over` with
its leg, then its parameters. A nested box or expression is a step named after its place, such as `A.of`.
"""

from __future__ import annotations

from dataclasses import replace

from tensornet_attn import limits
from tensornet_attn.graph.diagram import Diagram
from tensornet_attn.ir.arithmetic import ONE, Arith, Negative, Number
from tensornet_attn.ir.arithmetic import to_text as arithmetic
from tensornet_attn.ir.steps import Box, Contraction, Function, Loss, Step, Tensor, Term, Use
from tensornet_attn.ops import OPS
from tensornet_attn.spec.sizes import Leg

__all__ = ["call_text", "sum_text", "to_text", "use_text"]


def to_text(graph: Diagram) -> str:
    """The text of a graph."""
    lines = [f"graph {graph.name}{' causal' if graph.causal else ''}"]
    lines += [_leg(leg) for leg in graph.legs]
    lines += [f"setting {name} = {value!r}" for name, value in graph.settings]
    lines += [_tensor(tensor) for tensor in graph.tensors]
    lines += [f"{step.name}[{' '.join(step.legs)}] = {_operation(step)}" for step in graph.steps]
    lines += [_loss(loss) for loss in graph.losses]
    lines += [f"wide {' '.join(graph.wide)}"] if graph.wide else []
    return "\n".join([*lines, f"output {' '.join((graph.output, *graph.also))}", ""])


def _leg(leg: Leg) -> str:
    words = ["leg", leg.name, *([leg.kind] if leg.kind != "size" else [])]
    size = leg.maximum if leg.sequence else leg.reach if leg.kind == "relative" else leg.size
    if _standard(leg, size) != leg:
        sizes = (("size", leg.size), ("maximum", leg.maximum), ("reach", leg.reach))
        words += [f"{key} {number}" for key, number in sizes if number is not None]
    elif size is not None and leg.text != Number(size):
        words.append(str(size))
    return " ".join(words if leg.text is None else [*words, "=", _number(leg.text)])


def _standard(leg: Leg, size: int | None) -> Leg:
    """The leg with no number but its maximum, its reach or its size, depending on its kind."""
    if leg.sequence:
        return replace(leg, size=None, maximum=size, reach=None)
    if leg.kind == "relative" and size is not None:
        return replace(leg, size=2 * size + 1, maximum=None, reach=size)
    return replace(leg, size=size, maximum=None, reach=None)


def _tensor(tensor: Tensor) -> str:
    words = [tensor.role, use_text(tensor.use)]
    words += ["frozen"] * tensor.frozen + ["always"] * tensor.always
    words += [f"default {tensor.default}"] if tensor.default is not None else []
    words += [f"update {tensor.update}"] if tensor.update is not None else []
    words += [f"stored ({', '.join(map(' '.join, tensor.stored))})"] if tensor.stored else []
    if tensor.role == "noise":
        words.append(f"std {_number(tensor.std)}")
    if tensor.init is not None:
        words.append(f"{'value' if tensor.role == 'constant' else 'init'} {call_text(tensor.init)}")
    words += ["finite"] * tensor.finite + ["wide"] * tensor.wide
    return " ".join(words)


def _loss(loss: Loss) -> str:
    step = "" if loss.step == loss.name else f" step {loss.step}"
    return f"loss {loss.name}{step} = {_number(loss.weight)}"


def _operation(step: Step) -> str:
    if step.contraction is not None:
        return sum_text(step.contraction)
    if step.kernel is not None:
        operations = (f"{' '.join(inner.legs) or 'one'}: {_operation(inner)}" for inner in step.kernel.body)
        return f"{step.kernel.kind}({'; '.join(operations)})"
    assert step.box is not None
    return _box(step.box)


def sum_text(op: Contraction) -> str:
    """A sum of products, as in a design and in the text of a graph."""
    terms = " ".join(map(_term, op.terms))
    return f"-{terms[2:]}" if terms.startswith("- ") else terms.removeprefix("+ ")


def _term(term: Term) -> str:
    """A term with its sign, `- (d ** -0.5) * Q[n d] K[m d]`."""
    sign, coefficient = "+", term.coefficient
    if isinstance(coefficient, Negative):
        sign, coefficient = "-", coefficient.of
    number = _number(coefficient) if isinstance(coefficient, Number) else f"({_number(coefficient)})"
    product = " ".join(use_text(use) for use in term.factors)
    if not product:
        return f"{sign} {number}"
    return f"{sign} {product}" if coefficient == ONE else f"{sign} {number} * {product}"


def _box(box: Box) -> str:
    parts = [f"{'' if role == 'of' else role + ' '}{use_text(use)}" for role, use in box.operands]
    parts += [f"over {box.leg}"] if box.leg is not None else []
    parts += [f"{OPS[box.kind].between.strip()} {box.other}"] if box.other is not None else []
    parts += [f"parts {' '.join(box.parts)}"] if box.parts else []
    parts += [f"map {call_text(box.function)}"] if box.function is not None else []
    parts += [f"{name} {_number(number)}" for name, number in box.numbers]
    parts += [f"mask {call_text(mask)}" for mask in box.masks]
    parts += [f"{OPS[box.kind].mode_key} {box.mode}"] if box.mode is not None else []
    return f"{box.kind}({'; '.join(parts)})"


def use_text(use: Use) -> str:
    """A use as text, such as `Q[n h d]`."""
    return f"{use.name}[{' '.join(use.legs)}]"


def call_text(function: Function) -> str:
    """A call such as `band(5)`, a name without arguments, or a formula of masks."""
    return function.to_text(_number)


def _number(tree: Arith) -> str:
    """Arithmetic as text; without spaces if it would otherwise be longer than a design may write."""
    written = arithmetic(tree)
    return written if len(written) <= limits.EXPRESSION_LENGTH else written.replace(" ", "")
