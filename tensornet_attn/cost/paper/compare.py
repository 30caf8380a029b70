"""A table of a paper computed: our count of each row, the adjustments in numbers, and so the paper's count.

Our MACs and FLOPs (2 MACs) are those of the cheapest order of each product, and where topk routes, of the chosen
entries alone; `dense` is the same with nothing routed. Our floats are those that autograd keeps for backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tensornet_attn.cost.paper.digits import agree, as_printed
from tensornet_attn.cost.paper.model import UNITS, Adjustment, Count, Formulas, Part, Row, Table
from tensornet_attn.cost.report import Cost, cost
from tensornet_attn.cost.sizes import sizes_at
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.graph.model import Graph
from tensornet_attn.spec import Design, load
from tensornet_attn.spec.arithmetic import evaluate, parse

Split = Callable[[Graph, Mapping[str, int]], Graph]  # the graph in products of two, in the orders wanted


@dataclass(frozen=True)
class Compared:
    """One number of a row: ours, the adjustments, and the paper's: `paper` is ours with the adjustments added.

    `stated`: what the formula of the source gives. `whole`: our count of what printed percentages are of. Of a measured
    or drawn number, `ours` and `paper` are None.
    """

    row: Row
    count: Count
    ours: int | None
    dense: int | None
    adjustments: tuple[tuple[Adjustment, int], ...]
    stated: int | None
    whole: int | None

    @property
    def paper(self) -> int | None:
        return None if self.ours is None else self.ours + sum(value for _, value in self.adjustments)

    @property
    def displayed(self) -> str | None:
        """The paper's count in the unit and to the digits that the paper prints; None where it prints no number."""
        if self.paper is None or self.count.printed is None:
            return None
        return as_printed(self.paper, self.count.printed, self.whole, self.count.rounding)

    @property
    def agrees(self) -> bool:
        """Whether the paper's count is what its formula gives and its table prints."""
        printed = self.count.printed
        right = printed is None or (self.displayed is not None and agree(printed, self.displayed))
        return right and self.stated in (None, self.paper)

    @property
    def state(self) -> str:
        """`reproduced` or `differs` of a count; else `measured` or `drawn`."""
        if self.count.source != "counted":
            return self.count.source
        return "reproduced" if self.agrees else "differs"

    def as_dict(self) -> dict[str, object]:
        difference = None if self.paper is None or self.ours is None else self.paper - self.ours
        return {
            "where": self.row.where,
            "model": self.row.model,
            "unit": self.count.unit,
            "printed": self.count.printed,
            "recount": self.displayed,
            "paper": self.paper,
            "ours": self.ours,
            "ours_dense": self.dense,
            "difference": difference,
            "state": self.state,
            "note": self.count.note,
            "formula": self.count.formula,
            "stated": self.stated,
            "percentage_of": self.whole,
            "adjustments": [
                {"name": a.name, "value": v, "formula": a.formula, "why": a.why} for a, v in self.adjustments
            ],
            "values": dict(self.row.values),
        }


@dataclass(frozen=True)
class Comparison:
    """All numbers of a table."""

    table: Table
    numbers: tuple[Compared, ...]

    def as_dict(self) -> dict[str, object]:
        table = self.table
        head = {"table": table.name, "source": table.source, "convention": table.convention, "letters": table.letters}
        return head | {"numbers": [number.as_dict() for number in self.numbers]}

    def to_text(self) -> str:
        """The table people read: paper and ours side by side, then each difference."""
        from tensornet_attn.cost.paper.text import to_text

        return to_text(self)


@dataclass(frozen=True)
class _Costs:
    """The costs of parts, each computed once; `split` says in which order products are multiplied."""

    split: Split
    designs: dict[str, Design] = field(default_factory=dict)  # as their files say, so that each is read once
    found: dict[str, Cost] = field(default_factory=dict)

    def of(self, part: Part, values: Mapping[str, int]) -> Cost:
        legs, settings, lengths = (_sizes(formulas, values) for formulas in (part.legs, part.settings, part.lengths))
        batch = number(part.batch, values)
        source = repr(part.design)
        if source not in self.designs:
            self.designs[source] = load(part.design)
        key = repr((source, legs, settings, lengths, batch))
        if key not in self.found:
            graph = build(load(self.designs[source], legs, settings))
            self.found[key] = cost(self.split(graph, sizes_at(graph, lengths)), lengths, batch=batch)
        return self.found[key]

    def total(self, parts: tuple[Part, ...], unit: str, values: Mapping[str, int], routed: bool = True) -> int:
        return sum(part.times * _measure(self.of(part, values), unit, routed) for part in parts) if parts else 0


def compare(table: Table, split: Split) -> Comparison:
    """A table with our counts; `split` says in which order products are multiplied, e.g. the planner's."""
    costs = _Costs(split)
    return Comparison(table, tuple(_compared(row, count, costs) for row in table.rows for count in row.counts))


def compare_row(row: Row, split: Split) -> tuple[Compared, ...]:
    """Each count of a row."""
    costs = _Costs(split)
    return tuple(_compared(row, count, costs) for count in row.counts)


def number(formula: str, values: Mapping[str, int]) -> int:
    """What a formula comes to, a whole number. Raises InputError where it is none.

    >>> number("H / 2 * (D - 1 / 2)", {"H": 8, "D": 64})
    254
    """
    value = evaluate(parse(formula), values)
    if not isinstance(value, int):
        raise InputError(f"'{formula}' is {value}, and counts are whole numbers.")
    return value


def _compared(row: Row, count: Count, costs: _Costs) -> Compared:
    values = row.values
    stated = number(count.formula, values) if count.formula else None
    if count.source != "counted":
        return Compared(row, count, None, None, (), stated, None)
    parts = row.parts if count.parts is None else count.parts
    rest = sum(number(adjustment.formula, values) for adjustment in count.rest)
    whole = costs.total(row.whole, count.unit, values) if row.whole else None
    return Compared(
        row,
        count,
        rest + costs.total(parts, count.unit, values),
        rest + costs.total(parts, count.unit, values, routed=False),
        tuple((adjustment, number(adjustment.formula, values)) for adjustment in count.adjustments),
        stated,
        number(count.percentage_of, values) if count.percentage_of else whole,
    )


def _measure(cost: Cost, unit: str, routed: bool) -> int:
    macs = cost.total.routed_macs if routed else cost.macs
    counts = (macs, 2 * macs, cost.total.saved_floats, cost.parameters)
    return dict(zip(UNITS, counts, strict=True))[unit]


def _sizes(formulas: Formulas, values: Mapping[str, int]) -> dict[str, int]:
    return {name: number(formula, values) for name, formula in formulas.items()}
