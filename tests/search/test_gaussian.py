"""The Gaussian process over paths: near designs tell more, and deviations grow with distance."""

from __future__ import annotations

import numpy as np
import pytest

from tensornet_attn.search import Choice
from tensornet_attn.search.gaussian import regressed
from tensornet_attn.search.space import Path
from tests.search.made import path

SHARE, GATE, KERNEL = (path("mhsa", move, h=4) for move in ("share", "gate", "kernel"))


def test_one_value_is_all_that_is_known() -> None:
    mean, deviation = regressed([SHARE], [0.7], [SHARE, GATE])
    assert mean.tolist() == [0.7, 0.7]
    assert deviation.tolist() == [0.0, 0.0]  # of values that do not differ


def test_mean_and_deviation_are_those_of_the_whole_covariance() -> None:
    """Against the plain formulas, with the covariance written out: 3 of 3 choices alike, or 2 of 4."""
    values = np.array([0.9, 0.3])
    mean, deviation = regressed([SHARE, GATE], values.tolist(), [SHARE, KERNEL])
    covariance, between = np.array([[1, 0.25], [0.25, 1]]), np.array([[1, 0.25], [0.25, 0.25]])
    scaled, ways = (values - 0.6) / 0.3, []
    for noise in (0.03, 0.1, 0.3, 1.0):
        own = covariance + noise * np.eye(2)
        likely = -0.5 * scaled @ np.linalg.inv(own) @ scaled - 0.5 * np.log(np.linalg.det(own))
        ways.append((likely, noise))
    inverse = np.linalg.inv(covariance + max(ways)[1] * np.eye(2))
    np.testing.assert_allclose(mean, 0.6 + 0.3 * between.T @ inverse @ scaled, rtol=1e-12)
    np.testing.assert_allclose(deviation, 0.3 * np.sqrt(1 - np.diag(between.T @ inverse @ between)), rtol=1e-12)


def test_the_nearer_number_tells_more() -> None:
    known = [path("mhsa", h=size) for size in (2, 16)]
    others = [path("mhsa", h=size) for size in (1, 2, 4, 8, 16, 32)]
    mean, deviation = regressed(known, [0.2, 0.8], others)
    assert mean.tolist()[1:5] == sorted(mean.tolist()[1:5])
    assert mean[1] < mean[0] < 0.5 < mean[5] < mean[4]  # far from all that is known, the mean of all
    assert deviation.argmin() in (1, 4)
    assert deviation[0] > deviation[1]


def test_values_that_agree_are_believed_and_noise_is_not() -> None:
    """Where kin agree, the mean follows them; where they do not, it stays near that of all."""
    kin = [(*SHARE, Choice("setting", "k", size)) for size in (4, 5, 6)]
    far = [(*GATE, Choice("setting", "k", size)) for size in (4, 5, 6)]
    asked: list[Path] = [(*SHARE, Choice("setting", "k", 7))]
    agreed, sure = regressed([*kin, *far], [0.9, 0.9, 0.9, 0.1, 0.1, 0.1], asked)
    mixed, unsure = regressed([*kin, *far], [0.9, 0.1, 0.5, 0.1, 0.9, 0.5], asked)
    assert agreed[0] > 0.75
    assert mixed[0] == pytest.approx(0.5, abs=0.1)
    assert unsure[0] / 0.327 > sure[0] / 0.4  # in deviations of the values


def test_what_is_no_number_above_zero_is_equal_or_not() -> None:
    options = [Choice("move", "gate", None, "A", (("left", value),)) for value in (True, False, 1, "full", -1)]
    mean, _ = regressed([(options[0],), (options[1],)], [1.0, 0.0], [(one,) for one in options])
    assert mean[0] > mean[3] == pytest.approx(0.5)
    assert mean[4] == pytest.approx(0.5)
