"""Scores that a paper prints, beside those of runs."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tensornet_attn.errors import InputError
from tensornet_attn.spec import Design

COLUMNS = ("runs", "design", "sizes", "validation", "test")
Scores = Sequence[Mapping[str, str]]


def read_printed(path: str | Path) -> Scores:
    """The rows of a CSV file: for the `runs` in folders such as */F1/*, a `design`, its `sizes` such as `h=8 k=2`, and
    scores of `validation` and `test`. Raises InputError for another file.
    """
    lines = Path(path).read_text(encoding="utf-8-sig", errors="replace").splitlines()
    reader = csv.DictReader(lines, skipinitialspace=True)
    rows = list(reader)
    if missing := [column for column in COLUMNS if column not in (reader.fieldnames or ())]:
        raise InputError(
            f"'{path}' has no column '{missing[0]}'; give a CSV file with the columns {','.join(COLUMNS)}."
        )
    for number, row in enumerate(rows, 2):
        if any(row[column] is None for column in COLUMNS):
            raise InputError(f"'{path}', row {number}: fewer cells than columns; leave cells empty between commas.")
    return rows


def printed_score(scores: Scores, run: str, designs: Mapping[str, Design], split: str) -> str:
    """The score, as printed, of the first row for a run, given its folder and its designs; `-` if there is none."""
    folder = Path(run).resolve().as_posix()
    for row in scores:
        design = designs.get(row["design"])
        if design is not None and fnmatchcase(folder, f"*/{row['runs']}" if row["runs"][:1].isalnum() else row["runs"]):
            sizes = {name: str(size) for name, size in {**design.legs, **design.settings}.items()}
            if all(
                sizes.get(name) == size
                for name, _, size in (pair.partition("=") for pair in row["sizes"].replace(",", " ").split())
            ):
                return row.get(split) or "-"
    return "-"
