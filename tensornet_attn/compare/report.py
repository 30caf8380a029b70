"""`compare`: groups runs into a section per task, and a row for runs that differ only in their seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from tensornet_attn.compare.printed import Scores, printed_score, read_printed
from tensornet_attn.compare.record import Record
from tensornet_attn.compare.record import record as read
from tensornet_attn.compare.section import DEFAULT, NOTE, UNITS, SeedMean, SeedRuns, TaskSection, cells, head, mean_of
from tensornet_attn.cost.sizes import columns
from tensornet_attn.errors import InputError, nearest

SMALLER = ("loss", *UNITS)  # endings of measures for which smaller is better


@dataclass(frozen=True, eq=False)
class Comparison:
    """A comparison of runs, with a section per task; see `compare`."""

    sections: tuple[TaskSection, ...]

    def to_text(self) -> str:
        """A table per task, and the meaning of the columns."""
        blocks = ["\n".join(_lines(section)) for section in self.sections]
        return "\n\n".join([*blocks, NOTE] if any(section.rows for section in self.sections) else blocks)

    def as_dict(self) -> dict[str, Any]:
        """The comparison as data for JSON, with the ends of intervals and the values of each seed."""
        return {"tensornet_attn_compare": 1, "tasks": [section.as_dict() for section in self.sections]}

    def to_html(self, title: str = "Runs compared") -> str:
        """A self-contained HTML page with curves and pictures. Raises MissingPartError without matplotlib."""
        from tensornet_attn.compare.page import page

        return page(self.sections, title)


def _lines(section: TaskSection) -> Iterator[str]:
    yield section.task
    if section.rows:
        table = columns([head(section), *(cells(section, row) for row in section.rows)])
        yield from (f"  {line}" for line in table)
    if section.verdict():
        yield f"  {section.verdict()}"
    for label, run in section.unfinished:
        yield f"  unfinished: {label}, seed {run.seed}, step {run.last_step} of {run.run.steps}: {run.path}"


def compare(runs: Iterable[str | Path], by: str | None = None, printed: str | Path | None = None) -> Comparison:
    """Compares runs, given the folders that `tensornet-attn train --out FOLDER` has written.

    Runs that differ only in their seed form one row. Rows are sorted by the measure `by`; the default is perplexity or
    bits if the task has them, otherwise `eval_accuracy`, otherwise `eval_loss`. `printed`: a CSV file of scores that
    papers print; those of the validation split become a column. Raises InputError for a folder without a valid run, two
    runs with one seed in a row, or an unknown measure; DesignError for problems of a configuration.
    """
    paths = list(dict.fromkeys(Path(path) for path in runs))
    if not paths:
        raise InputError("there are no runs to compare: give folders that 'tensornet-attn train --out' has written.")
    return Comparison(sections((read(path) for path in paths), by, read_printed(printed) if printed else ()))


def sections(records: Iterable[Record], by: str | None = None, printed: Scores = ()) -> tuple[TaskSection, ...]:
    """The sections of the runs, in the given order. Raises InputError; see `compare`."""
    tasks: dict[str, list[Record]] = {}
    for record in records:
        tasks.setdefault(repr((record.run.task, sorted(_samples(record).items()))), []).append(record)
    firsts = [group[0] for group in tasks.values()]
    titles = labelled([record.run.task for record in firsts], list(map(_samples, firsts)))
    return tuple(_section(title, group, by, printed) for title, group in zip(titles, tasks.values(), strict=True))


def _samples(record: Record) -> dict[str, Any]:
    """The facts that determine the samples of a task. Scores on other samples do not compare."""
    run = record.run
    return {**run.options, "task version": run.task_version, "task samples": run.task_samples}


def _section(task: str, records: Sequence[Record], by: str | None, printed: Scores) -> TaskSection:
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(repr(sorted(record.recipe.items())), []).append(record)
    firsts = [group[0] for group in groups.values()]
    labels = labelled([record.spec.name for record in firsts], list(map(_facts, firsts)))
    rows, waiting = [], []
    measure = _measure([record for record in records if record.summary], by)
    for label, group in zip(labels, groups.values(), strict=True):
        finished = sorted((record for record in group if record.summary), key=lambda record: record.seed)
        waiting += [(label, record) for record in group if not record.summary]
        for run, next_run in pairwise(finished):
            if run.seed == next_run.seed:
                raise InputError(
                    f"'{run.path}' and '{next_run.path}' are the same run, {label} with seed {run.seed}; leave one out."
                )
        if finished:
            score = printed_score(printed, group[0].path, group[0].designs, "validation") if printed else None
            rows.append(SeedRuns(label, tuple(finished), measure, printed=score))
    rows.sort(key=lambda row: row.score.value, reverse=not measure.partition("/")[0].endswith(SMALLER))
    compared = tuple(replace(row, difference=_difference(row, rows[0])) for row in rows)
    return TaskSection(task, records[0].run.options, measure, compared, tuple(waiting))


def labelled(names: Sequence[str], facts: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names, extended by the facts that distinguish equal names.

    >>> labelled(["a", "a", "b"], [{"lr": 1, "h": 2}, {"lr": 3, "h": 2}, {"lr": 3, "h": 4}])
    ['a (lr 1)', 'a (lr 3)', 'b']
    """
    labels = []
    for name, own_facts in zip(names, facts, strict=True):
        alike = [other_facts for other_name, other_facts in zip(names, facts, strict=True) if other_name == name]
        unlike = [
            f"{fact} {own_facts[fact]}"
            for fact in own_facts
            if any(other_facts.get(fact) != own_facts[fact] for other_facts in alike)
        ]
        labels.append(f"{name} ({', '.join(unlike)})" if unlike else name)
    return [label if labels.count(label) == 1 else f"{label} ({number})" for number, label in enumerate(labels, 1)]


def _measure(records: Sequence[Record], by: str | None) -> str:
    """The measure to sort by. Raises InputError if a run does not have it."""
    if by is None:
        fine = (key for key in DEFAULT if all(key in record.scores for record in records))
        by = next(fine, DEFAULT[-1])
    for record in records:
        if by not in record.scores:
            hint = nearest(by, record.scores)
            raise InputError(f"'{record.path}' has no value of '{by}' in its last validation; {hint}")
    return by


def _difference(row: SeedRuns, first: SeedRuns) -> SeedMean | None:
    """The mean of the differences from the first row, paired by seed; None if they share no seed."""
    theirs = {record.seed: record.scores[row.by] for record in first.records}
    differences = [record.scores[row.by] - theirs[record.seed] for record in row.records if record.seed in theirs]
    return mean_of(differences) if differences and row is not first else None


def _facts(record: Record) -> dict[str, str]:
    """The facts that can distinguish models of one name: sizes of model and designs, and the recipe."""
    model = record.recipe["model"] | {stack: len(blocks) for stack, blocks in record.spec.stacks.items()}
    design_facts: dict[str, Any] = {}
    for design in record.designs.values():
        sizes = {name: size for name, size in design.legs.items() if size is not None}
        design_facts |= {
            name: fact for name, fact in (sizes | dict(design.settings)).items() if name not in design_facts
        }
    recipe = {name: fact for name, fact in record.recipe.items() if name not in ("model", "blocks", "options")}
    return {name: str(fact) for name, fact in (design_facts | model | recipe).items()}
