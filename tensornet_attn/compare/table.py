"""A comparison as text: a table a task, what it says, and the runs that have not finished."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tensornet_attn.compare.section import Row, Section
from tensornet_attn.cost.sizes import human

COSTS = (("macs_per_token", "MACs/token"), ("parameters", "parameters"), ("peak_memory_bytes", "peak memory"),
         ("tokens_per_second", "tokens/s"))  # fmt: skip
NOTE = (
    "mean ± half the 95 % interval (Student's t) over seeds; difference: from the first row, seed by seed; "
    "costs: medians"
)


def to_text(sections: Sequence[Section]) -> str:
    """All tasks, one after another, and what the columns mean."""
    blocks = ["\n".join(block(section)) for section in sections]
    return "\n\n".join([*blocks, NOTE] if any(section.rows for section in sections) else blocks)


def block(section: Section) -> Iterator[str]:
    """The lines of one task."""
    yield section.task
    table = [head(section), *(cells(section, row) for row in section.rows)] if section.rows else []
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for line in table:
        first, *rest = (cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        yield "  " + "  ".join([first.strip().ljust(widths[0]), *rest]).rstrip()
    if section.verdict():
        yield f"  {section.verdict()}"
    for label, record in section.unfinished:
        yield f"  unfinished: {label}, seed {record.seed}, step {record.last_step} of {record.run.steps}: {record.path}"


def head(section: Section) -> list[str]:
    """The columns of a task."""
    names = [words(key) for key in section.measures]
    return ["", *names, "difference", "seeds", *(name for _, name in COSTS)]


def words(key: str) -> str:
    """A measure of a validation as text: `eval_bits_per_character` is bits per character."""
    return key.removeprefix("eval_").replace("_", " ")


def cells(section: Section, row: Row) -> list[str]:
    """A row as text."""
    means = [row.mean(key).to_text() for key in section.measures]
    difference = row.difference.to_text(sign=True) if row.difference else ""
    return [row.label, *means, difference, str(len(row.seeds)), *(cost(row, key) for key, _ in COSTS)]


def cost(row: Row, key: str) -> str:
    """What a row costs, with its unit.

    >>> from types import SimpleNamespace
    >>> cost(SimpleNamespace(cost=lambda key: 1_234_567.0), "peak_memory_bytes")
    '1.23 MB'
    """
    value = row.cost(key)
    if value is None:
        return "-"
    text = human(round(value))
    if key != "peak_memory_bytes":
        return text
    return f"{text}B" if " " in text else f"{text} B"
