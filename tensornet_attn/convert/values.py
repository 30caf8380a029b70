"""Computes the weights of a general design from those of its special case, by the values in `contains`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tensornet_attn.graph.graph import Function
from tensornet_attn.ir import arithmetic
from tensornet_attn.nn.initial import filled
from tensornet_attn.spec.expression import SumText, TermText, UseText
from tensornet_attn.special import Embedding
from tensornet_attn.special.value import Shaped, WeightFormula, legs_of, matrix_shape, place_of, renamed_sizes, stored

Factor = tuple[Tensor, list[str]]  # a tensor and its leg names


@dataclass(frozen=True)
class Bias:
    """The bias of a projection. Its legs are those of the weight without `axis`.

    A weight with legs f h d and an input on f has a bias with legs h d: x[n f] W[f h d] + b[h d].
    """

    axis: int
    tensor: Tensor


@dataclass(frozen=True)
class Turn:
    """Rotary positions or a norm on the result of a projection: they act on blocks of `width` entries of `axis`."""

    axis: int
    width: int
    letter: str  # q or k


@dataclass(frozen=True)
class Weights:
    """Values of a design's weights and states, and by weight its bias, its rotary positions (`turns`) and its norm."""

    values: dict[str, Tensor]
    biases: dict[str, Bias]
    turns: dict[str, Turn]
    norms: dict[str, Turn] = field(default_factory=dict)


def lifted(embedding: Embedding, below: Weights) -> Weights:
    """The weights at which the general design equals the special case with the weights `below`.

    A bias is transformed like its weight, because values are linear and do not change the input leg. Biases, rotary
    positions and norms that cannot be transformed are omitted; `lost` lists them.
    """
    turns: dict[str, Any] = {}
    norms: dict[str, Any] = {}
    values, biases = {}, {}
    for name, value in embedding.values.items():
        shape = stored(embedding.graph, name)
        values[name] = _evaluated(embedding, name, value, below.values).reshape(shape)
        if (bias := _bias(embedding, name, value, below)) is not None:
            biases[name] = bias
        for below_turns, above_turns in ((below.turns, turns), (below.norms, norms)):
            if (turn := _turn(embedding, name, value, below_turns)) is not None:
                above_turns[name] = turn
    return Weights(values, biases, turns, norms)


def lost(embedding: Embedding, below: Weights, above: Weights) -> list[str]:
    """Weights of the special case whose bias, rotary positions or norm the general design cannot hold."""

    def origins(kind: Mapping[str, object]) -> set[str]:
        return {factor for name in kind for factor, _ in _factors(embedding, embedding.values[name])}

    pairs = ((below.biases, above.biases), (below.turns, above.turns), (below.norms, above.norms))
    return sorted({name for had, have in pairs for name in had.keys() - origins(have)})


def fill(module: nn.Module, values: Mapping[str, Tensor]) -> None:
    """Copies the values into the module's weights and states. A state without a value does not change."""
    with torch.no_grad():
        for name, tensor in values.items():
            getattr(module, name).copy_(tensor)


def _evaluated(embedding: Embedding, name: str, value: WeightFormula, tensors: Mapping[str, Tensor]) -> Tensor:
    coefficient, source = arithmetic.evaluate(value.coefficient, embedding.numbers), value.source
    if isinstance(source, str):
        return coefficient * _tensor(embedding, source, tensors)
    if isinstance(source, Function):
        return coefficient * _start(source, list(stored(embedding.graph, name)), embedding.numbers)
    factor = partial(_factor, embedding, source, tensors)
    return coefficient * _sum(embedding, source.terms, factor, embedding.shaped(name))


def _start(function: Function, shape: list[int], numbers: Mapping[str, int | float]) -> Tensor:
    """The float64 values of an initialiser of the language, or of `row`, `column` or `kron`."""
    if function.name in ("row", "column"):
        entries = [arithmetic.evaluate(a, numbers) for a in function.arguments if not isinstance(a, Function)]
        return torch.tensor(entries, dtype=torch.float64).reshape(shape)
    if function.name == "kron":
        left, right = (
            _start(matrix, list(matrix_shape(matrix, numbers) or ()), numbers)
            for matrix in function.arguments
            if isinstance(matrix, Function)
        )
        return torch.kron(left, right)
    return filled(function, shape, numbers)


def _factor(embedding: Embedding, source: SumText, tensors: Mapping[str, Tensor], use: UseText) -> Factor:
    legs = legs_of(use)
    if use.name == "eye":
        sizes = renamed_sizes(source, embedding.special_graph, embedding.sizes)
        return torch.eye(*(sizes[leg] for leg in legs), dtype=torch.float64), legs
    return _tensor(embedding, use.name, tensors), legs


def _sum(
    embedding: Embedding, terms: Iterable[TermText], factor: Callable[[UseText], Factor], shaped: Shaped
) -> Tensor:
    """A sum of products of tensors of the special case. A term is broadcast along result legs that it lacks."""
    total, names = torch.zeros(shaped.sizes, dtype=torch.float64), [name for name, _ in shaped.legs or ()]
    for term in terms:
        factors = [factor(use) for use in term.factors]
        axis_numbers = {
            leg: axis
            for axis, leg in enumerate(dict.fromkeys(leg for _, tensor_legs in factors for leg in tensor_legs))
        }
        product = torch.ones((), dtype=torch.float64)
        if factors:
            operands = [
                operand
                for tensor, tensor_legs in factors
                for operand in (tensor, [axis_numbers[leg] for leg in tensor_legs])
            ]
            product = torch.einsum(*operands, [axis_numbers[leg] for leg in names if leg in axis_numbers])
        sizes = iter(product.shape)
        along = product.reshape([next(sizes) if leg in axis_numbers else 1 for leg in names])
        total = total + arithmetic.evaluate(term.coefficient, embedding.numbers) * along
    return total


def _tensor(embedding: Embedding, name: str, tensors: Mapping[str, Tensor]) -> Tensor:
    """The given value of a weight or state, or the value of a constant."""
    if name in tensors:
        return tensors[name]
    graph = embedding.special_graph
    return filled(graph.tensor[name].init or Function("zeros"), list(stored(graph, name)), graph.values)


def _factors(embedding: Embedding, value: WeightFormula) -> list[tuple[str, list[str]]]:
    """The tensors of the special case in a value, with their leg names in it."""
    if isinstance(value.source, str):
        return [(value.source, list(embedding.special_graph.legs_of(value.source)))]
    if isinstance(value.source, Function):
        return []
    return [(use.name, legs_of(use)) for term in value.source.terms for use in term.factors]


def _leg(embedding: Embedding, value: WeightFormula, places: Mapping[str, int]) -> tuple[str, str] | None:
    """(weight, its leg in the value) of the only factor in `places`, or None if there is none or several."""
    candidates = {(name, legs[places[name]]) for name, legs in _factors(embedding, value) if name in places}
    return next(iter(candidates)) if len(candidates) == 1 else None


def _bias(embedding: Embedding, name: str, value: WeightFormula, below: Weights) -> Bias | None:
    if (weight_and_leg := _leg(embedding, value, {weight: bias.axis for weight, bias in below.biases.items()})) is None:
        return None
    weight, leg = weight_and_leg
    shape, shaped = stored(embedding.graph, name), embedding.shaped(name)
    width = dict(shaped.legs or ())[leg]
    axis = place_of(leg, shaped, shape, width)
    if axis is None or shape[axis] != width:
        return None
    rest = shape[:axis] + shape[axis + 1 :]
    coefficient = arithmetic.evaluate(value.coefficient, embedding.numbers)
    below_bias = below.biases[weight].tensor
    if isinstance(value.source, str):
        return Bias(axis, coefficient * below_bias.reshape(rest))
    assert isinstance(value.source, SumText)
    # only terms with the weight contribute to the bias
    terms = [term for term in value.source.terms if any(use.name == weight for use in term.factors)]
    if any(leg in legs_of(use) for term in terms for use in term.factors if use.name != weight):
        return None
    plain = partial(_factor, embedding, value.source, below.values)

    def factor(use: UseText) -> Factor:
        return (below_bias, [kept for kept in legs_of(use) if kept != leg]) if use.name == weight else plain(use)

    rest_legs = Shaped(tuple(pair for pair in shaped.legs or () if pair[0] != leg))
    return Bias(axis, coefficient * _sum(embedding, terms, factor, rest_legs).reshape(rest))


def _turn(embedding: Embedding, name: str, value: WeightFormula, below: Mapping[str, Turn]) -> Turn | None:
    if (weight_and_leg := _leg(embedding, value, {weight: turn.axis for weight, turn in below.items()})) is None:
        return None
    weight, leg = weight_and_leg
    turn = below[weight]
    axis = place_of(leg, embedding.shaped(name), stored(embedding.graph, name), turn.width)
    return None if axis is None else replace(turn, axis=axis)
