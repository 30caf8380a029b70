"""Which values are kept in at least float32 whatever the dtype of a layer: constants, decays, sums of decays.

# u = softplus(x Wf);  c = sum over the keys up to n of -u;  S = Q K + c[n] - c[m];  A = softmax(S)     ->     u, -u, c

A cumulative sum grows with the length, and only differences of its entries matter: rounded to half precision, its
entries would lose the digits of these differences. Everything else is rounded to the dtype of the layer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from math import prod

from tensornet_attn.graph.diagram import operation_of, size_of
from tensornet_attn.graph.graph import Graph, Step, Tensor, Use
from tensornet_attn.graph.recurrence import EXP, Recurrence
from tensornet_attn.ir.steps import legs_in
from tensornet_attn.ops import OPS

EXACT = ("zeros", "ones", "eye", "kron", "bucket", "log_bucket")  # constants of zeros and ones, exact in every dtype
NARROW = ("sinusoid",)  # between -1 and 1, and multiplied by weights
ROWS = 64  # of a product in a step of decoding: for more, products of halves may be faster than conversions of all keys


def kept_wide(graph: Graph, wide_names: Collection[str] = ()) -> frozenset[str]:
    """The tensors and steps that are kept in at least float32. `wide_names`: those of the design's graph.

    These are inexact constants and what is computed from constants alone; logarithms of sums over keys; logarithmic
    decays, and sums of them over keys, with the elementwise steps before them; and elementwise steps of all these.
    """
    wide = {*wide_names, *graph.wide, *(tensor.name for tensor in graph.tensors if _inexact(tensor))}
    wide |= {step.name for step in graph.steps if log_over_keys(graph, step)} | _decays(graph)
    constant = {tensor.name for tensor in graph.of_role("constant")}
    for step in graph.steps:
        names = step.reads
        if names <= constant:
            constant.add(step.name)
        grows = step.box is None or step.box.function != EXP or names <= constant
        if names & wide and names <= wide | constant and grows and elementwise(step):
            wide.add(step.name)
    return frozenset(wide)


def elementwise(step: Step) -> bool:
    """Whether each entry of the result is computed from one entry of each operand."""
    if step.contraction is not None:
        return all({*use.legs} <= {*step.legs} for use in step.uses)
    return operation_of(step).elementwise or operation_of(step).only_hides


def _inexact(tensor: Tensor) -> bool:
    """Whether a tensor is a constant that half precision rounds, or an input that a cache keeps wide."""
    constant = tensor.role == "constant" and tensor.init is not None
    return tensor.wide or (constant and tensor.init.name not in EXACT + NARROW)  # type: ignore[union-attr]


def log_over_keys(graph: Graph, step: Step) -> bool:
    """Whether a step is the logarithm of a sum of exponentials over the keys."""
    return _log_of_sum(step) and step.box.leg == graph.key  # type: ignore[union-attr]


def _log_of_sum(step: Step) -> bool:
    """Whether a step is the logarithm of a sum of exponentials."""
    return operation_of(step).log_of_sum


def _decays(graph: Graph) -> set[str]:
    """Logarithmic decays, and sums over keys whose differences are exponents, with the elementwise steps before."""
    exponents = _exponents(graph)
    decays = {use.name for step in graph.steps for use in _logarithms(step)}
    for step in reversed(graph.steps):
        summed = step.name in exponents and _sums_keys(graph, step)
        if summed or (step.name in decays and elementwise(step)):
            decays |= {step.name, *(use.name for use in step.uses)}
    return {step.name for step in graph.steps if step.name in decays and (elementwise(step) or _sums_keys(graph, step))}


def scores(graph: Graph) -> frozenset[str]:
    """Scores whose exponentials are taken: a step of decoding keeps them as wide as fused attention does.

    # L = Q K - k2 in bfloat16     ->     Q K, L
    """
    pair, exponents = {graph.query, graph.key}, _exponents(graph)
    exponent_steps = (step for step in graph.steps if step.name in exponents and pair <= {*step.legs})
    return frozenset(step.name for step in exponent_steps if _keeps_scores(graph, step))


def _keeps_scores(graph: Graph, step: Step) -> bool:
    return elementwise(step) or _log_of_sum(step) or (step.contraction is not None and few_rows(graph, step))


def few_rows(graph: Graph, step: Step) -> bool:
    """Whether each key meets at most `ROWS` rows of a query in a product with it; true of other steps."""
    for term in step.terms:
        keys = {leg for use in term.factors if graph.key in use.legs for leg in use.legs}
        rows = [size_of(graph, leg) or 1 for leg in step.legs if leg not in keys]
        if len(term.factors) > 1 and graph.key in step.legs and prod(rows) > ROWS:
            return False
    return True


def exponents_of(step: Step) -> set[Use]:
    """The exponents of the decays that a kernel reads."""
    if isinstance(step.form, Recurrence):
        return {use for term in step.form.terms for uses in (*term.decays, term.at_own_position) for use in uses}
    body = step.kernel.body if step.kernel is not None else ()
    decays = {use for inner in body for use in _logarithms(inner)}
    for inner in reversed(body):
        if elementwise(inner) and any(use.name == inner.name for use in decays):
            decays |= {*inner.uses}
    return {use for use in decays if use.name not in {inner.name for inner in body}}


def _exponents(graph: Graph) -> set[str]:
    """What exponentials are taken of, and what is added up for that."""
    exponents = set[str]()
    for step in reversed(graph.steps):
        box = step.box
        if box is not None and (box.function == EXP or OPS[box.kind].exponential):
            exponents.add(box.of.name)
        if step.name in exponents:
            exponents |= {use.name for use in _added(graph, step)}
    return exponents


def _added(graph: Graph, step: Step) -> Iterator[Use]:
    """What a step adds up, each entry with a factor."""
    if elementwise(step) or _sums_keys(graph, step):
        yield from step.uses
    elif step.contraction is not None:
        for term in step.terms:
            if legs_in(term.factors) <= {*step.legs}:
                yield from term.factors


def _logarithms(step: Step) -> Iterator[Use]:
    """The logarithmic decays that a step reads."""
    if step.kernel is not None:
        yield from exponents_of(step)
    for role, use in step.box.operands if step.box is not None else ():
        if role in operation_of(step).logarithms:
            yield use


def _sums_keys(graph: Graph, step: Step) -> bool:
    """Whether a step is a sum over the keys, or its sums so far."""
    if step.box is None or step.box.leg != graph.key:
        return False
    return operation_of(step).is_sum or operation_of(step).accumulates
