"""Derives which values are never negative. They are invalid as decays; all other values are doubtful in `normalize`.

The analysis derives a lower bound of each value, so that tanh(x) + 1 is known to be nonnegative.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf

from tensornet_attn.graph.attention import behind
from tensornet_attn.graph.diagram import on_pairs, operation_of, producer_of
from tensornet_attn.graph.graph import Function, Graph, Step, Tensor, Term, Use
from tensornet_attn.graph.precision import kept_wide
from tensornet_attn.ir.arithmetic import Arith, evaluate, names
from tensornet_attn.ir.steps import legs_in, plus
from tensornet_attn.ops import OPS

_POSITIVE_VALUES = frozenset({"ones", "eye", "zeros", "kron", "index", "alibi_slopes", "bucket", "log_bucket"})


def doubtful_normalizers(graph: Graph) -> list[str]:
    """The `normalize` steps whose operand is not known to be nonnegative."""
    sure = nonnegative(graph)
    boxes = [(step.name, step.box) for step in graph.steps if step.box is not None]
    return [name for name, box in boxes if OPS[box.kind].divides_by_sum and not sure[box.of.name]]


def growing_decays(graph: Graph) -> list[tuple[str, str]]:
    """(step, role) of logarithmic decays that are known to be nonnegative and not zeros, so that the state grows."""
    sure, zeros = nonnegative(graph), {tensor.name for tensor in graph.tensors if tensor.init == Function("zeros")}
    boxes = [(step.name, step.box) for step in graph.steps if step.box is not None]
    return [
        (name, role)
        for name, box in boxes
        for role, use in box.operands
        if role in OPS[box.kind].logarithms and sure[use.name] and use.name not in zeros
    ]


def growing_exponentials(graph: Graph) -> list[str]:
    """Names of maps exp whose exponent is a cumulative sum over keys that is known to grow.

    An example is v exp(-c) with q exp(c) in place of exp(c[n] - c[m]).
    """
    sure, cumulative = nonnegative(graph), {step.name for step in graph.steps if _running(graph, step)}
    growing = []
    for step in graph.steps:
        if step.box is None or step.box.function != Function("exp") or on_pairs(graph, step.legs):
            continue
        inner = step.box.of
        of = producer_of(graph, inner)
        terms = of.terms if of is not None and of.contraction is not None else (plus(inner),)
        for term in terms:
            sums = [use for use in term.factors if use.name in cumulative]
            negative = _number(graph, term.coefficient) < 0
            if sums and not negative and all(sure[use.name] for use in term.factors):
                growing.append(step.name)
            elif len(sums) == 1 and negative and all(sure[use.name] for use in term.factors if use not in sums):
                growing += [] if sure[sums[0].name] else [step.name]
    return list(dict.fromkeys(growing))


def growing_sums(graph: Graph) -> Iterator[tuple[str, str]]:
    """(step, leg) of sums over positions that grow with the length: of values that are never negative, undivided.

    Products of such sums overflow float16 after some thousand positions. Values of a query and a key are left out,
    because they may decay; so are weights that sum to 1, and sums that are kept in float32.
    """
    sure, reached = nonnegative(graph), behind(graph, [graph.output]) - kept_wide(graph)
    positions, inputs = (
        {leg.name for leg in graph.legs if leg.sequence},
        {tensor.name for tensor in graph.of_role("input")},
    )
    for step in (step for step in graph.steps if step.name in reached and sure[step.name]):
        terms = _summed(graph, step)
        uses = [use for term in terms for use in term.factors]
        summed = positions & legs_in(uses) - {*step.legs}
        summed -= {name.name for term in terms for name in names(term.coefficient)}
        boxes = [graph.step[use.name].box for use in uses if use.name in graph.step]
        summed -= {box.leg for box in boxes if box is not None and OPS[box.kind].zero_where_hidden}
        paired = any(on_pairs(graph, use.legs) for use in uses)
        if summed and not paired and inputs & behind(graph, [step.name]):
            yield step.name, min(summed)


def _summed(graph: Graph, step: Step) -> tuple[Term, ...]:
    """The products that a step sums over legs which it lacks, without intermediate steps; none for other steps."""
    if step.contraction is not None:
        return step.terms
    if step.box is None or not operation_of(step).is_sum:
        return ()
    of = step.box.of
    product = graph.step[of.name].contraction if of.name in graph.step else None
    return product.terms if product is not None else (plus(of),)


def _running(graph: Graph, step: Step) -> bool:
    """Whether a step is a sum, over the keys up to each query, of a value of the keys alone."""
    if step.box is None or not operation_of(step).is_sum or step.box.leg != graph.key or graph.query not in step.legs:
        return False
    of = producer_of(graph, step.box.of)
    masked = any(mask.name == "causal" for mask in graph.masks(step))
    return masked and of is not None and len(of.terms) == 1


def nonnegative(graph: Graph) -> dict[str, bool]:
    """Maps each tensor and step to whether it is known to be nonnegative."""
    least = {tensor.name: 0.0 if _tensor(graph, tensor) else -inf for tensor in graph.tensors}
    for step in graph.steps:
        least[step.name] = _step(graph, step, least)
    return {name: bound >= 0 for name, bound in least.items()}


def _tensor(graph: Graph, tensor: Tensor) -> bool:
    if tensor.role != "constant" or tensor.init is None:
        return False
    if tensor.init.name == "full":
        return _number(graph, tensor.init.arguments[0]) >= 0
    return tensor.init.name in _POSITIVE_VALUES


def _step(graph: Graph, step: Step, least: dict[str, float]) -> float:
    """A lower bound of a step."""
    if step.contraction is not None:
        if _quadratic(graph, step, step.terms):
            return 0
        return sum(_term(graph, step, term, least) for term in step.terms)
    if step.box is None:
        return -inf
    of = dict(step.box.operands).get("of")
    return operation_of(step).lower_bound(graph, step.box, -inf if of is None else least[of.name])


def _term(graph: Graph, step: Step, term: Term, least: dict[str, float]) -> float:
    """A lower bound of one term: a number, a number times one value, or zero if all parts are nonnegative."""
    if _number(graph, term.coefficient) < 0:
        return _number(graph, term.coefficient) if not term.factors else -inf
    if _product(term.factors, {use.name: least[use.name] >= 0 for use in term.factors}):
        return 0 if term.factors else _number(graph, term.coefficient)
    elementwise = len(term.factors) == 1 and {*term.factors[0].legs} <= {*step.legs}
    return _number(graph, term.coefficient) * least[term.factors[0].name] if elementwise else -inf


def _product(factors: tuple[Use, ...], sure: dict[str, bool]) -> bool:
    """Whether all factors are nonnegative or squares (the same tensor twice with the same legs)."""
    doubtful = [use for use in factors if not sure[use.name]]
    return all(doubtful.count(use) % 2 == 0 for use in doubtful)


def _quadratic(graph: Graph, step: Step, terms: Sequence[Term]) -> bool:
    """Whether a sum is a + b S + c S S, elementwise and without a real root, as 1 + S + S S / 2."""
    uses, coefficients = {use for term in terms for use in term.factors}, [0.0, 0.0, 0.0]
    if len(uses) != 1 or not legs_in(uses) <= {*step.legs}:
        return False
    for term in terms:
        number = _number(graph, term.coefficient)
        if len(term.factors) > 2 or number == -inf:
            return False
        coefficients[len(term.factors)] += number
    return coefficients[2] > 0 and coefficients[1] ** 2 < 4 * coefficients[0] * coefficients[2]


def _number(graph: Graph, tree: Function | Arith) -> float:
    """The value of a number, -inf if it is unknown before run time."""
    if isinstance(tree, Function) or not all(name.name in graph.values for name in names(tree)):
        return -inf
    return float(evaluate(tree, graph.values))
