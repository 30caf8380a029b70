"""A Gaussian process over paths, which predicts the values of designs from those of evaluated designs.

The process is scikit-learn's, with a custom kernel. The covariance of two paths is the square of their Tanimoto
coefficient: the choices that they share over all their choices. The similarity of numbers depends on their ratio. The
noise level maximises the marginal likelihood.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log2

import numpy as np
from numpy.typing import NDArray
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Kernel

from tensornet_attn.search.space import Path, Value

NOISES = (0.03, 0.1, 0.3, 1.0)  # noise variances, relative to the variance of the values
Array = NDArray[np.floating]
Chosen = Mapping[tuple[str, ...], Value | None]


class Likeness(Kernel):  # type: ignore[misc]
    """A kernel that looks up similarities in a table [known paths, all paths]; its inputs are indices of paths."""

    def __init__(self, table: Array):
        self.table = table

    def __call__(self, X: Array, Y: Array | None = None, eval_gradient: bool = False) -> Array:
        asked, observed = X[:, 0].astype(int), (X if Y is None else Y)[:, 0].astype(int)
        likeness: Array = self.table[np.ix_(observed, asked)].T
        return likeness

    def diag(self, X: Array) -> Array:
        return np.ones(len(X))

    def is_stationary(self) -> bool:
        return False


def regressed(paths: Sequence[Path], values: Sequence[float], others: Sequence[Path]) -> tuple[Array, Array]:
    """The predicted means and standard deviations of `others`, given the values of at least one path.

    The deviations are those of true values, without measurement noise.
    """
    mean, scale = float(np.mean(values)), float(np.std(values))
    normalised = (np.asarray(values, dtype=np.float64) - mean) / (scale or 1.0)
    observed = [_choices(path) for path in paths]
    all_choices = [*observed, *map(_choices, others)]
    kernel = Likeness(np.array([[_tanimoto(first, second) for second in all_choices] for first in observed]) ** 2)
    indices = np.arange(len(all_choices), dtype=np.float64)[:, None]
    processes = [GaussianProcessRegressor(kernel, alpha=noise, optimizer=None) for noise in NOISES]
    for process in processes:
        process.fit(indices[: len(observed)], normalised)
    likeliest = max(processes, key=lambda process: process.log_marginal_likelihood_value_)
    expected, deviation = likeliest.predict(indices[len(observed) :], return_std=True)
    return mean + scale * expected, scale * deviation


def _tanimoto(first: Chosen, second: Chosen) -> float:
    common = sum(_similarity(value, second[key]) for key, value in first.items() if key in second)
    return common / (len(first) + len(second) - common)


def _similarity(first: Value | None, second: Value | None) -> float:
    """The similarity of two values: 1 if equal, 1 / e for a number and its double, 0 for different words.

    >>> _similarity("full", "full"), _similarity("full", "left"), round(_similarity(8, 16), 3)
    (1.0, 0.0, 0.368)
    """
    numbers = [value for value in (first, second) if isinstance(value, int | float) and not isinstance(value, bool)]
    if first == second or len(numbers) < 2 or min(numbers) <= 0:
        return float(first == second)
    return exp(-abs(log2(numbers[0] / numbers[1])))


def _choices(path: Path) -> Chosen:
    """The choices of a path: its base, moves, and each option of a move; the positions of moves are left out."""
    chosen: dict[tuple[str, ...], Value | None] = {}
    for choice in path:
        chosen[choice.kind, choice.name] = choice.value
        chosen |= {("option", choice.name, option): value for option, value in choice.options}
    return chosen
