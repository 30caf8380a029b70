"""Student's t against printed tables."""

from __future__ import annotations

import pytest

from tensornet_attn.compare.section import mean_of, quantile

TABLE = {
    1: 12.7062,
    2: 4.30265,
    3: 3.18245,
    4: 2.77645,
    5: 2.57058,
    10: 2.22814,
    29: 2.04523,
    30: 2.04227,
    120: 1.97993,
}


@pytest.mark.parametrize("freedom", TABLE)
def test_the_quantile(freedom: int) -> None:
    assert quantile(freedom) == pytest.approx(TABLE[freedom], abs=6e-6 * TABLE[freedom])
    assert quantile(freedom, 0.5) < quantile(freedom, 0.99)


def test_the_interval() -> None:
    mean = mean_of([1.0, 2.0, 3.0, 4.0])
    assert (mean.value, mean.half) == (2.5, pytest.approx(3.18245 * (5 / 3) ** 0.5 / 2, abs=1e-4))
    assert mean.as_dict()["low"] == mean.low
    assert mean.apart(mean_of([9.0, 9.1, 9.2]))
    assert not mean.apart(mean_of([9.0]))
