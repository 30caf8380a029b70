"""A Gaussian process over paths: what the values of designs tell about those of others, and how surely.

The covariance of two paths is the square of a Tanimoto coefficient: what they choose alike over what either chooses.
Numbers are alike by their ratio. The share of noise is that under which the values are most likely.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log2

import numpy as np
from numpy.typing import NDArray

from tensornet_attn.search.path import Choice, Path
from tensornet_attn.search.values import Value

NOISES = (0.03, 0.1, 0.3, 1.0)  # variances, in those of the values
Array = NDArray[np.floating]
Chosen = Mapping[tuple[str, ...], Value | None]


def regressed(paths: Sequence[Path], values: Sequence[float], others: Sequence[Path]) -> tuple[Array, Array]:
    """The mean and the deviation of each of the others, given the values of some paths, at least one.

    A deviation is that of the true value, without the noise of a measurement.
    """
    mean, scale = float(np.mean(values)), float(np.std(values))
    found = (np.asarray(values, dtype=np.float64) - mean) / (scale or 1.0)
    known, asked = [_chosen(path) for path in paths], [_chosen(path) for path in others]
    between = _covariance(known, asked)
    factor, weights = _likeliest(_covariance(known, known), found)
    told = np.linalg.solve(factor, between)
    left = np.maximum(1.0 - np.square(told).sum(0), 0.0)
    return mean + scale * (between.T @ weights), scale * np.sqrt(left)


def _likeliest(covariance: Array, values: Array) -> tuple[Array, Array]:
    """The Cholesky factor, and the weights that it gives to values, under the noise that makes them most likely."""
    ways: list[tuple[float, Array, Array]] = []
    for noise in NOISES:
        factor: Array = np.linalg.cholesky(covariance + noise * np.eye(len(values)))
        weights = np.linalg.solve(factor.T, np.linalg.solve(factor, values))
        ways.append((-0.5 * float(values @ weights) - float(np.log(np.diag(factor)).sum()), factor, weights))
    _, factor, weights = max(ways, key=lambda way: way[0])
    return factor, weights


def _covariance(ones: Sequence[Chosen], others: Sequence[Chosen]) -> Array:
    return np.array([[_tanimoto(one, other) for other in others] for one in ones]).reshape(len(ones), len(others)) ** 2


def _tanimoto(one: Chosen, other: Chosen) -> float:
    common = sum(_alike(value, other[key]) for key, value in one.items() if key in other)
    return common / (len(one) + len(other) - common)


def _alike(one: Value | None, other: Value | None) -> float:
    """1 for what is equal, 1 / e for a number and twice that number, 0 for different words.

    >>> _alike("full", "full"), _alike("full", "left"), round(_alike(8, 16), 3)
    (1.0, 0.0, 0.368)
    """
    numbers = [value for value in (one, other) if isinstance(value, int | float) and not isinstance(value, bool)]
    if one == other or len(numbers) < 2 or min(numbers) <= 0:
        return float(one == other)
    return exp(-abs(log2(numbers[0] / numbers[1])))


def _chosen(path: Path) -> Chosen:
    """What a path chooses: that it has a base or a move, each option of a move; where a move was made is left out."""
    return {key: value for choice in path for key, value in _parts(choice)}


def _parts(choice: Choice) -> list[tuple[tuple[str, ...], Value | None]]:
    options = [(("option", choice.name, option), value) for option, value in choice.options]
    return [((choice.kind, choice.name), choice.value), *options]
