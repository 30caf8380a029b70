"""The parts of a comparison: means over seeds, rows of runs that differ only in their seed, and a section per task.

The 95 % intervals of means are Student's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from statistics import median
from typing import Any, get_args

from tensornet_attn.compare.record import Record
from tensornet_attn.cost.sizes import human
from tensornet_attn.errors import MissingPartError
from tensornet_attn.report.words import in_bytes, joined
from tensornet_attn.tasks.recipe import Measure

UNITS = tuple(f"eval_{measure}" for measure in get_args(Measure))  # units of loss; smaller is better
LEVEL = 0.95  # of intervals
DEFAULT = (*UNITS, "eval_accuracy", "eval_loss")  # rows are sorted by the first that all runs of a section have

COSTS = {"macs_per_token": "MACs/token", "parameters": "parameters", "peak_memory_bytes": "peak memory",
         "tokens_per_second": "tokens/s"}  # fmt: skip
NOTE = (
    "mean ± half the 95 % interval (Student's t) over seeds; difference: to the first row, paired by seed; "
    "costs: medians"
)


@dataclass(frozen=True)
class SeedMean:
    """The mean of values and half the width of its 95 % interval; None for a single value.

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

    def apart(self, other: SeedMean) -> bool:
        """Whether both have intervals that do not overlap."""
        sure = self.half is not None and other.half is not None
        return sure and (self.low > other.high or self.high < other.low)

    def to_text(self, sign: bool = False) -> str:
        """The mean, rounded to the precision of its interval.

        >>> [mean.to_text() for mean in (mean_of([0.9, 0.8]), mean_of([0.98712]), mean_of([1.0, 1.0]))]
        ['0.85 ± 0.64', '0.9871', '1 ± 0']
        """
        plus = "+" if sign else ""
        if self.half is None:
            return f"{self.value:{plus}.4g}"
        if self.half < 1e-9 * max(1.0, abs(self.value)):  # all values equal up to rounding
            return f"{self.value:{plus}.6g} ± 0"
        digits = max(0, 1 - math.floor(math.log10(self.half)))
        return f"{self.value:{plus}.{digits}f} ± {self.half:.{digits}f}"

    def as_dict(self) -> dict[str, object]:
        ends = {} if self.half is None else {"low": self.low, "high": self.high}
        return {"mean": self.value, **ends, "values": list(self.values)}


def mean_of(values: Sequence[float]) -> SeedMean:
    """The mean of one or more values. Raises MissingPartError for several values without SciPy."""
    count, mean = len(values), math.fsum(values) / len(values)
    if count == 1:
        return SeedMean(mean, None, tuple(values))
    variance = math.fsum((score - mean) ** 2 for score in values) / (count - 1)
    return SeedMean(mean, quantile(count - 1) * math.sqrt(variance / count), tuple(values))


def quantile(freedom: int, level: float = LEVEL) -> float:
    """The t with P(|T| <= t) = level for Student's distribution. Raises MissingPartError without SciPy.

    >>> [round(quantile(freedom), 3) for freedom in (1, 2, 9, 100)]
    [12.706, 4.303, 2.262, 1.984]
    """
    if find_spec("scipy") is None:
        raise MissingPartError("intervals over seeds need SciPy: pip install 'tensornet-attn[train]'.")
    from scipy.special import stdtrit

    return float(stdtrit(freedom, (1 + level) / 2))


@dataclass(frozen=True, eq=False)
class SeedRuns:
    """Finished runs that differ only in their seed.

    `difference`: from the first row, over common seeds. `printed`: the score that a paper prints, `-` if it prints
    none; None if no such scores were given.
    """

    label: str
    records: tuple[Record, ...]
    by: str
    difference: SeedMean | None = None
    printed: str | None = None

    @property
    def seeds(self) -> list[int]:
        return [record.seed for record in self.records]

    @cached_property
    def score(self) -> SeedMean:
        return self.mean(self.by)

    def mean(self, key: str) -> SeedMean:
        """The mean of a measure in the last validations."""
        return mean_of([record.scores[key] for record in self.records])

    def has(self, key: str) -> bool:
        return all(key in record.scores for record in self.records)

    def cost(self, key: str) -> float | None:
        """The median over runs of a cost in their summaries; None if it was not measured."""
        values = [(record.summary or {}).get(key) for record in self.records]
        finite = [cost for cost in values if cost is not None and math.isfinite(cost)]
        return median(finite) if finite else None

    def as_dict(self) -> dict[str, Any]:
        first = self.records[0]
        return {
            "label": self.label,
            "designs": list(first.designs),
            "seeds": self.seeds,
            "measures": {key: self.mean(key).as_dict() for key in first.scores if self.has(key)},
            "difference": self.difference.as_dict() if self.difference else None,
            **({} if self.printed is None else {"printed": self.printed}),
            **{key: self.cost(key) for key in COSTS},
            "runs": [record.path for record in self.records],
        }


@dataclass(frozen=True, eq=False)
class TaskSection:
    """The runs of one task. `tied`: the first row and the rows whose intervals overlap its interval."""

    task: str
    options: Mapping[str, Any]
    by: str
    rows: tuple[SeedRuns, ...]
    unfinished: tuple[tuple[str, Record], ...]  # (label, run)

    @cached_property
    def tied(self) -> tuple[SeedRuns, ...]:
        return tuple(row for row in self.rows if not row.score.apart(self.rows[0].score))

    @property
    def best(self) -> SeedRuns | None:
        """The row whose interval overlaps no other; None if there is none."""
        return self.rows[0] if len(self.rows) > 1 and len(self.tied) == 1 else None

    @property
    def measures(self) -> list[str]:
        """The measures that all rows have, without groups; the measure of sorting comes first."""
        candidates = dict.fromkeys([self.by, *DEFAULT])
        return [key for key in candidates if self.rows and all(row.has(key) for row in self.rows)]

    @property
    def groups(self) -> list[str]:
        """The measures of groups of samples that all rows have, such as `eval_accuracy/MAX`."""
        keys = dict.fromkeys(key for row in self.rows for record in row.records for key in record.scores if "/" in key)
        return [key for key in keys if all(row.has(key) for row in self.rows)]

    def verdict(self) -> str:
        """A sentence with the best row, or with the reason why there is none."""
        if len(self.rows) < 2:
            return ""
        if self.best is not None:
            return f"{self.best.label} is the best: its interval overlaps no other."
        meeting = [row.label for row in self.tied if row.score.half is not None]
        if self.rows[0].score.half is not None and len(meeting) > 1:
            return f"A tie: the interval of {meeting[0]} overlaps that of {joined(meeting[1:])}."
        alone = [row.label for row in self.tied if row.score.half is None]
        return f"No best: a single seed has no interval ({joined(alone)})."

    def as_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "options": dict(self.options),
            "sorted_by": self.by,
            "rows": [row.as_dict() for row in self.rows],
            "best": self.best.label if self.best else None,
            "tied": [row.label for row in self.tied] if len(self.tied) > 1 else [],
            "unfinished": [
                {"label": label, "run": record.path, "seed": record.seed, "last_step": record.last_step,
                 "steps": record.run.steps}
                for label, record in self.unfinished
            ],
        }  # fmt: skip


def head(section: TaskSection) -> list[str]:
    """The column headers of a task."""
    printed = ["printed"] if any(row.printed is not None for row in section.rows) else []
    return ["", *map(words, section.measures), *printed, "difference", "seeds", *COSTS.values()]


def words(key: str) -> str:
    """The name of a measure as text; `eval_bits_per_character` becomes `bits per character`."""
    return key.removeprefix("eval_").replace("_", " ")


def cells(section: TaskSection, row: SeedRuns) -> list[str]:
    """The cells of a row as text; costs have units."""
    means = [row.mean(key).to_text() for key in section.measures]
    difference = row.difference.to_text(sign=True) if row.difference else ""
    costs = []
    for key in COSTS:
        cost = row.cost(key)
        unit = in_bytes if key == "peak_memory_bytes" else human
        costs.append("-" if cost is None else unit(round(cost)))
    printed = [] if row.printed is None else [row.printed]
    return [row.label, *means, *printed, difference, str(len(row.seeds)), *costs]
