"""What a comparison is made of: a row for runs that differ in their seed alone, a section for the rows of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from statistics import median
from typing import Any, get_args

from tensornet_attn.compare.record import Record
from tensornet_attn.compare.spread import Mean, mean_of
from tensornet_attn.cost.sizes import human
from tensornet_attn.report.words import in_bytes, joined
from tensornet_attn.tasks.recipe import Measure

UNITS = tuple(f"eval_{measure}" for measure in get_args(Measure))  # of a language model's loss: less is better
DEFAULT = (*UNITS, "eval_accuracy", "eval_loss")  # what rows are sorted by: the first that all runs of a section have

COSTS = {"macs_per_token": "MACs/token", "parameters": "parameters", "peak_memory_bytes": "peak memory",
         "tokens_per_second": "tokens/s"}  # fmt: skip
NOTE = (
    "mean ± half the 95 % interval (Student's t) over seeds; difference: from the first row, seed by seed; "
    "costs: medians"
)


@dataclass(frozen=True, eq=False)
class Row:
    """Finished runs that differ in their seed alone. `difference`: from the first row, over the seeds of both."""

    label: str
    records: tuple[Record, ...]
    by: str
    difference: Mean | None = None

    @property
    def seeds(self) -> list[int]:
        return [record.seed for record in self.records]

    @cached_property
    def score(self) -> Mean:
        return self.mean(self.by)

    def mean(self, key: str) -> Mean:
        """The mean of a measure of the last validation."""
        return mean_of([float(record.scores[key]) for record in self.records])  # type: ignore[arg-type]

    def has(self, key: str) -> bool:
        return all(record.scores.get(key) is not None for record in self.records)

    def cost(self, key: str) -> float | None:
        """What a run costs, from the summary; of several runs the median. None where it was not measured."""
        values = [(record.summary or {}).get(key) for record in self.records]
        found = [value for value in values if value is not None and isfinite(value)]
        return median(found) if found else None

    def as_dict(self) -> dict[str, Any]:
        first = self.records[0]
        return {
            "label": self.label,
            "designs": list(first.designs),
            "seeds": self.seeds,
            "measures": {key: self.mean(key).as_dict() for key in first.scores if self.has(key)},
            "difference": self.difference.as_dict() if self.difference else None,
            **{key: self.cost(key) for key in COSTS},
            "runs": [record.path for record in self.records],
        }


@dataclass(frozen=True, eq=False)
class Section:
    """The runs of one task. `tied`: the rows that the first one cannot be told from, itself among them."""

    task: str
    options: Mapping[str, Any]
    by: str
    rows: tuple[Row, ...]
    unfinished: tuple[tuple[str, Record], ...]  # (label, run)

    @cached_property
    def tied(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if not row.score.apart(self.rows[0].score))

    @property
    def best(self) -> Row | None:
        """The row that is better than all others: their intervals do not meet its own."""
        return self.rows[0] if len(self.rows) > 1 and len(self.tied) == 1 else None

    @property
    def measures(self) -> list[str]:
        """What all rows were judged by, the one they are sorted by first, groups left out."""
        known = dict.fromkeys([self.by, *DEFAULT])
        return [key for key in known if self.rows and all(row.has(key) for row in self.rows)]

    @property
    def groups(self) -> list[str]:
        """Measures of groups of samples that all rows have, such as `eval_accuracy/MAX`."""
        keys = dict.fromkeys(key for row in self.rows for record in row.records for key in record.scores if "/" in key)
        return [key for key in keys if all(row.has(key) for row in self.rows)]

    def verdict(self) -> str:
        """Which row is the best, or why none is, in one sentence."""
        if len(self.rows) < 2:
            return ""
        if self.best is not None:
            return f"{self.best.label} is the best: its interval does not meet that of any other."
        meeting = [row.label for row in self.tied if row.score.half is not None]
        if self.rows[0].score.half is not None and len(meeting) > 1:
            return f"A tie: the interval of {meeting[0]} meets that of {joined(meeting[1:])}."
        alone = [row.label for row in self.tied if row.score.half is None]
        return f"No best: one seed gives no interval ({joined(alone)})."

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


def head(section: Section) -> list[str]:
    """The columns of a task."""
    names = [words(key) for key in section.measures]
    return ["", *names, "difference", "seeds", *COSTS.values()]


def words(key: str) -> str:
    """A measure of a validation as text: `eval_bits_per_character` is bits per character."""
    return key.removeprefix("eval_").replace("_", " ")


def cells(section: Section, row: Row) -> list[str]:
    """A row as text, costs with their units."""
    means = [row.mean(key).to_text() for key in section.measures]
    difference = row.difference.to_text(sign=True) if row.difference else ""
    costs = []
    for key in COSTS:
        value = row.cost(key)
        unit = in_bytes if key == "peak_memory_bytes" else human
        costs.append("-" if value is None else unit(round(value)))
    return [row.label, *means, difference, str(len(row.seeds)), *costs]
