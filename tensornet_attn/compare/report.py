"""Runs in folders, compared: read once, then told as text, as data, or as a page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tensornet_attn.compare.record import record
from tensornet_attn.compare.rows import sections
from tensornet_attn.compare.section import Section
from tensornet_attn.compare.table import to_text
from tensornet_attn.errors import InputError


@dataclass(frozen=True, eq=False)
class Comparison:
    """Runs by task; see `compare`."""

    sections: tuple[Section, ...]

    def to_text(self) -> str:
        """A table a task."""
        return to_text(self.sections)

    def as_dict(self) -> dict[str, Any]:
        """All numbers as data, scores with the ends of their intervals and the values of each seed."""
        return {"tensornet_attn_compare": 1, "tasks": [section.as_dict() for section in self.sections]}

    def to_html(self, title: str = "Runs compared") -> str:
        """A page in one file, with curves and pictures of the designs. Raises MissingPartError without matplotlib."""
        from tensornet_attn.compare.page import page

        return page(self.sections, title)


def compare(runs: Iterable[str | Path], by: str | None = None) -> Comparison:
    """The comparison of the runs in some folders, which `tensornet-attn train --out FOLDER` writes.

    Runs that differ in their seed alone are one row; `by` is the measure that rows are sorted by, if not given
    perplexity or bits where the task has them, else `eval_accuracy`, else `eval_loss`. Raises InputError, DesignError.
    """
    paths = list(dict.fromkeys(Path(path) for path in runs))
    if not paths:
        raise InputError("there are no runs to compare: give folders that 'tensornet-attn train --out' has written.")
    return Comparison(sections((record(path) for path in paths), by))
