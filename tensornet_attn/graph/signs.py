"""Which values can never be negative: `normalize` over one that can is worth a warning."""

from __future__ import annotations

from collections.abc import Sequence

from tensornet_attn.graph.model import Box, Contraction, Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.spec.arithmetic import Arith, evaluate, names

_POSITIVE_MAPS = frozenset("relu elu1 elu1_neg sigmoid exp square sqrt abs softplus".split())
_KEEPING_MAPS = frozenset("power softcap tanh gelu silu elu".split())  # nonnegative of what is nonnegative
_KEEPING_BOXES = frozenset("normalize keep max sum mean topk dropout l1norm l2norm rmsnorm rel_shift".split())
_POSITIVE_VALUES = frozenset({"ones", "eye", "zeros", "kron", "alibi_slopes"})


def doubtful_normalizers(graph: Graph) -> list[str]:
    """The `normalize` steps whose content is not known to be nonnegative."""
    sure = nonnegative(graph)
    boxes = [(step.name, step.op) for step in graph.steps if isinstance(step.op, Box) and step.op.kind == "normalize"]
    return [name for name, box in boxes if not sure[box.operand("of").name]]


def nonnegative(graph: Graph) -> dict[str, bool]:
    """For each tensor and step, whether it is known to hold no negative number."""
    sure = {tensor.name: _tensor(graph, tensor) for tensor in graph.tensors}
    for step in graph.steps:
        sure[step.name] = _step(graph, step, sure)
    return sure


def _tensor(graph: Graph, tensor: Tensor) -> bool:
    if tensor.role != "constant" or tensor.init is None:
        return False
    if tensor.init.name == "full":
        return _is_nonnegative(graph, tensor.init.arguments[0])
    return tensor.init.name in _POSITIVE_VALUES


def _step(graph: Graph, step: Step, sure: dict[str, bool]) -> bool:
    if isinstance(step.op, Contraction):
        doubtful = [
            t for t in step.op.terms if not (_is_nonnegative(graph, t.coefficient) and _product(t.factors, sure))
        ]
        return not doubtful or _quadratic(graph, step, step.op.terms)
    return isinstance(step.op, Box) and _box(graph, step.op, sure)


def _product(factors: tuple[Use, ...], sure: dict[str, bool]) -> bool:
    """Nonnegative factors, or squares: the same tensor twice with the same legs."""
    doubtful = [use for use in factors if not sure[use.name]]
    return all(doubtful.count(use) % 2 == 0 for use in doubtful)


def _quadratic(graph: Graph, step: Step, terms: Sequence[Term]) -> bool:
    """Whether a sum is a + b S + c S S, number by number, without a root: 1 + S + S S / 2 is."""
    uses, found = {use for term in terms for use in term.factors}, [0.0, 0.0, 0.0]
    if len(uses) != 1 or not {leg for use in uses for leg in use.legs} <= {*step.legs}:
        return False
    for term in terms:
        if len(term.factors) > 2 or not all(name.name in graph.values for name in names(term.coefficient)):
            return False
        found[len(term.factors)] += evaluate(term.coefficient, graph.values)
    return found[2] > 0 and found[1] ** 2 < 4 * found[0] * found[2]


def _is_nonnegative(graph: Graph, value: Function | Arith) -> bool:
    if isinstance(value, Function) or not all(name.name in graph.values for name in names(value)):
        return False
    return evaluate(value, graph.values) >= 0


def _box(graph: Graph, box: Box, sure: dict[str, bool]) -> bool:
    if box.kind == "softmax":
        return True
    if box.function is None:
        return box.kind in _KEEPING_BOXES and sure[box.operand("of").name]
    name, arguments = box.function.name, box.function.arguments
    if name in _KEEPING_MAPS and sure[box.operand("of").name]:
        return True
    if name == "power":
        return not isinstance(arguments[0], Function) and evaluate(arguments[0], graph.values) % 2 == 0
    return name in _POSITIVE_MAPS or (name == "clamp" and _is_nonnegative(graph, arguments[0]))
