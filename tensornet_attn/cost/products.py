"""Shapes of matrix products, and the rate of a shape by those that were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, log, log2
from typing import NamedTuple

from tensornet_attn.ir.values import Legs

NEAREST = 3  # measured shapes between which a rate is interpolated
WIDEST = 1024  # a side from which the rate no longer changes


@dataclass(frozen=True)
class Shape:
    """`batch` products of matrices, [rows, summed] times [summed, columns]."""

    batch: int
    rows: int
    columns: int
    summed: int

    @property
    def macs(self) -> int:
        return self.batch * self.rows * self.columns * self.summed

    @cached_property
    def coordinates(self) -> tuple[float, ...]:
        """Logarithms of what the rate depends on: the sides, of the transposed product too, and one or many."""
        small, large = sorted((self.rows, self.columns))
        sides = (log2(min(max(side, 1), WIDEST)) for side in (small, large, self.summed))
        return (2.0 * (self.batch > 1), *sides)


class Matmul(NamedTuple):
    """Products of a step: the shape of one call, the legs, and the multiply-adds over all calls and the whole batch.

    The legs say whether a product runs over pairs of positions, of which masks may hide some.
    """

    shape: Shape
    legs: Legs
    macs: float


@dataclass(frozen=True)
class MeasuredRate:
    """The measured FLOPs per second of products of a shape."""

    shape: Shape
    flops: float


def rate_at(shape: Shape, measured: Sequence[MeasuredRate]) -> float:
    """FLOPs per second, interpolated between the most similar measured shapes: a mean of logarithms by distance.

    >>> square, narrow = MeasuredRate(Shape(1, 512, 512, 512), 8e10), MeasuredRate(Shape(1, 512, 512, 8), 2e10)
    >>> rate_at(Shape(1, 512, 512, 512), [square, narrow]), f"{rate_at(Shape(1, 512, 512, 64), [square, narrow]):.2g}"
    (80000000000.0, '4e+10')
    """
    coordinates, by_distance = shape.coordinates, list[tuple[float, float]]()
    for sample in measured:
        distance = sum((left - right) ** 2 for left, right in zip(coordinates, sample.shape.coordinates, strict=True))
        if distance == 0:
            return sample.flops
        by_distance.append((distance, sample.flops))
    nearest = sorted(by_distance)[:NEAREST]
    weights = [1 / distance for distance, _ in nearest]
    logarithm = sum(weight * log(flops) for weight, (_, flops) in zip(weights, nearest, strict=True)) / sum(weights)
    return exp(logarithm)
