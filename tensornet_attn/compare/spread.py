"""A mean over seeds and how sure it is: Student's interval, which holds the true mean in 95 of 100 repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from tensornet_attn.errors import MissingPartError

LEVEL = 0.95


@dataclass(frozen=True)
class Mean:
    """The mean of some values, and half the width of its 95 % interval; None where one value gives none.

    >>> mean_of([0.75, 0.5, 1.0]).to_text()
    '0.75 ± 0.62'
    """

    value: float
    half: float | None
    values: tuple[float, ...]

    @property
    def low(self) -> float:
        return self.value - (self.half or 0.0)

    @property
    def high(self) -> float:
        return self.value + (self.half or 0.0)

    def apart(self, other: Mean) -> bool:
        """Whether both have intervals, and these do not meet."""
        sure = self.half is not None and other.half is not None
        return sure and (self.low > other.high or self.high < other.low)

    def to_text(self, sign: bool = False) -> str:
        """The mean to the digits that its interval leaves.

        >>> [mean.to_text() for mean in (mean_of([0.9, 0.8]), mean_of([0.98712]), mean_of([1.0, 1.0]))]
        ['0.85 ± 0.64', '0.9871', '1 ± 0']
        """
        plus = "+" if sign else ""
        if self.half is None:
            return f"{self.value:{plus}.4g}"
        if self.half < 1e-9 * max(1.0, abs(self.value)):  # all values alike, to rounding
            return f"{self.value:{plus}.6g} ± 0"
        digits = max(0, 1 - math.floor(math.log10(self.half)))
        return f"{self.value:{plus}.{digits}f} ± {self.half:.{digits}f}"

    def as_dict(self) -> dict[str, object]:
        ends = {} if self.half is None else {"low": self.low, "high": self.high}
        return {"mean": self.value, **ends, "values": list(self.values)}


def mean_of(values: Sequence[float]) -> Mean:
    """The mean of one or more values. Raises MissingPartError for an interval without SciPy."""
    count, mean = len(values), math.fsum(values) / len(values)
    if count == 1:
        return Mean(mean, None, tuple(values))
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    return Mean(mean, quantile(count - 1) * math.sqrt(variance / count), tuple(values))


def quantile(freedom: int, level: float = LEVEL) -> float:
    """The t that a variable of Student's distribution stays within, in size, with this probability.

    Raises MissingPartError.

    >>> [round(quantile(freedom), 3) for freedom in (1, 2, 9, 100)]
    [12.706, 4.303, 2.262, 1.984]
    """
    if find_spec("scipy") is None:
        raise MissingPartError("intervals over seeds need SciPy: pip install 'tensornet-attn[train]'.")
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))
