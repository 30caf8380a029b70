"""Costs of designs over sizes of legs and sequence lengths, as values or as ratios to another design.

Each design is priced at every combination of sizes; a size or setting applies to the designs that have it. Designs
`beside` are added to both sides, e.g. the feed-forward layer of a Transformer. Only the designs are counted: no
embedding, no norms, no output over a vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from math import prod

from tensornet_attn.cost.report import cost
from tensornet_attn.cost.sizes import columns, dtype_bytes, human, lengths_of
from tensornet_attn.cost.work import training_macs
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph.graph import Graph
from tensornet_attn.ir.arithmetic import evaluate, names, parse
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.spec import Design

Sizes = Mapping[str, int | float | str]
Load = Callable[[str | Design, Sizes, Sizes], Design]  # loads a design with leg sizes and settings
Price = Callable[[Design], "Priced"]
LENGTHS = ("n", "m")  # names of the query and key lengths, for any names of the legs
POINTS = 10_000  # maximum number of prices in a sweep

ORDERS = {
    "planned": "as planned",
    "written": "as written",
    "fewest": "in the order of the fewest FLOPs",
}  # only a plan fuses operations
MEASURES = {
    "macs": "multiply-adds of a forward pass",
    "routed": "multiply-adds if only the entries chosen by topk are computed",
    "training": "multiply-adds of forward and backward",
    "parameters": "trainable parameters",
    "saved": "floats saved for backward",
    "peak": "bytes, peak of a forward pass with weights",
}


@dataclass(frozen=True)
class Sweep:
    """A request: the sources of designs, and `axes`, the sizes of each leg or length that varies.

    `legs`: fixed sizes, also of the lengths n and m. `against_legs`: sizes of the other design, fixed or arithmetic
    over the sizes of a point; no axis changes them.
    """

    designs: tuple[str, ...]
    axes: Mapping[str, tuple[int, ...]]
    measures: tuple[str, ...] = ("macs", "parameters", "saved", "peak")
    against: str | None = None
    against_legs: Sizes = field(default_factory=dict)
    beside: tuple[str, ...] = ()
    legs: Sizes = field(default_factory=dict)
    settings: Sizes = field(default_factory=dict)
    n: int | None = None
    m: int | None = None
    batch: int = 1
    dtype: str = "float32"
    order: str = "planned"


@dataclass(frozen=True)
class Priced:
    """A design's graph, and a function from lengths to the graph to price, by the sweep's `order`."""

    graph: Graph
    at: Callable[[Mapping[str, int]], Graph]


@dataclass(frozen=True)
class SweepPoint:
    """A design at one combination of sizes: `values` by measure, and the other design's values, if there is one."""

    design: str
    sizes: Mapping[str, int]
    values: Mapping[str, int]
    against: Mapping[str, int] | None

    def ratio(self, measure: str) -> float | None:
        """The value divided by the other design's; None if there is no other design or its value is 0."""
        if self.against is None or self.against[measure] == 0:
            return None
        return self.values[measure] / self.against[measure]

    def displayed(self, measure: str) -> float | int | None:
        """The ratio if there is another design, otherwise the value."""
        return self.values[measure] if self.against is None else self.ratio(measure)

    def as_dict(self) -> dict[str, object]:
        fields: dict[str, object] = {"design": self.design, "sizes": dict(self.sizes), "values": dict(self.values)}
        if self.against is not None:
            fields |= {"against": dict(self.against), "ratios": {name: self.ratio(name) for name in self.values}}
        return fields


@dataclass(frozen=True)
class Swept:
    """The points of a sweep: designs first, then the axes in order; names are those in the designs."""

    sweep: Sweep
    points: tuple[SweepPoint, ...]
    against: str | None
    beside: tuple[str, ...]

    def series(self) -> dict[str, list[SweepPoint]]:
        """The points along the first axis, grouped by design and other axes: `gfish, g = 2`."""
        curves: dict[str, list[SweepPoint]] = {}
        rest = [*self.sweep.axes][1:]
        several = len(self.sweep.designs) > 1
        for point in self.points:
            words = [point.design] * several + [f"{name} = {point.sizes[name]}" for name in rest]
            curves.setdefault(", ".join(words) or point.design, []).append(point)
        return curves

    def as_dict(self) -> dict[str, object]:
        sweep = self.sweep
        return {
            "designs": list(dict.fromkeys(point.design for point in self.points)),
            "against": self.against,
            "beside": list(self.beside),
            "axes": {name: list(sizes) for name, sizes in sweep.axes.items()},
            **{name: getattr(sweep, name) for name in ("legs", "against_legs", "settings", "batch", "dtype", "order")},
            "measures": {name: MEASURES[name] for name in sweep.measures},
            "points": [point.as_dict() for point in self.points],
        }

    def to_text(self) -> str:
        """One table per measure, with ratios if there is another design, otherwise values.

        The header gives the fixed sizes and the way of counting.
        """
        lines = [head(self)]
        for measure in self.sweep.measures:
            divided = f", divided by those of {self.against}" if self.against else ""
            lines += ["", f"{measure}: {MEASURES[measure]}{divided}", *_rows(self, measure)]
        return "\n".join(lines) + "\n"


def swept(sweep: Sweep, load: Load, price: Price) -> Swept:
    """All points of a sweep. Raises InputError, and DesignError if a design does not fit a size."""
    sources = dict.fromkeys([*sweep.designs, *([sweep.against] if sweep.against else []), *sweep.beside])
    designs = {source: load(source, {}, {}) for source in sources}
    _check(sweep, list(designs.values()))
    if sweep.against is not None:
        _known(sweep.against_legs, {*_legs(designs[sweep.against]), *LENGTHS}, "the other design has no leg")
    points = tuple(_Pricer(sweep, designs, load, price).points())
    against = designs[sweep.against].name if sweep.against else None
    return Swept(sweep, points, against, tuple(designs[source].name for source in sweep.beside))


def _check(sweep: Sweep, designs: Sequence[Design]) -> None:
    """Raises InputError for names that no design has, with the most similar name, and for too many points."""
    for measure in sweep.measures:
        if measure not in MEASURES:
            raise InputError(f"there is no measure '{measure}': {nearest(measure, MEASURES)}")
    if sweep.order not in ORDERS:
        raise InputError(f"there is no order '{sweep.order}': {nearest(sweep.order, ORDERS)}")
    amount = prod(len(sizes) for sizes in sweep.axes.values()) * len(sweep.designs)
    if amount > POINTS:
        raise InputError(f"these sizes make {amount:,} points, more than {POINTS:,}; give fewer sizes.")
    legs = {leg for design in designs for leg in _legs(design)}
    _known([*sweep.legs, *sweep.axes], {*legs, *LENGTHS}, "no design here has a leg")
    _known(sweep.settings, {name for design in designs for name in design.settings}, "no design here has a setting")
    fixed = [*sweep.legs, *_lengths(sweep)]
    for name in fixed:
        if name in sweep.axes:
            raise InputError(f"'{name}' has a fixed size and several sizes; give it only once, several with --over.")
        if fixed.count(name) > 1:
            raise InputError(f"'{name}' has two sizes; give it only once.")
    if sweep.against_legs and sweep.against is None:
        raise InputError("sizes of another design are given, but no other design; name it with --against.")


def _lengths(sweep: Sweep) -> dict[str, int]:
    """The fixed lengths, besides those among the legs."""
    return {name: size for name, size in (("n", sweep.n), ("m", sweep.m)) if size is not None}


def _known(names: Iterable[str], declared: set[str], what: str) -> None:
    for name in names:
        if name not in declared:
            raise InputError(f"{what} '{name}': {nearest(name, declared)}")


def _legs(design: Design) -> Iterator[str]:
    """The legs that have a size."""
    return (leg for leg, size in design.legs.items() if size is not None)


@dataclass(frozen=True)
class _Pricer:
    """Prices each design once at each combination of sizes."""

    sweep: Sweep
    designs: Mapping[str, Design]  # by source
    load: Load
    price: Price
    graphs: dict[str, Priced] = field(default_factory=dict)
    values: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def points(self) -> Iterator[SweepPoint]:
        sweep = self.sweep
        for source, values in product(sweep.designs, product(*sweep.axes.values())):
            sizes, against = dict(zip(sweep.axes, values, strict=True)), None
            if sweep.against is not None:
                numbers = {leg: size for leg, size in {**sweep.legs, **sizes}.items() if isinstance(size, int)}
                fixed = {leg: _arithmetic(leg, formula, numbers) for leg, formula in sweep.against_legs.items()}
                against = self.total(sweep.against, sizes, fixed)
            yield SweepPoint(self.designs[source].name, sizes, self.total(source, sizes, {}), against)

    def total(self, source: str, sizes: Mapping[str, int], fixed: Mapping[str, int]) -> Mapping[str, int]:
        """A design and those beside it, run one after the other: values add up, except memory at the peak."""
        designs = [self.of(source, sizes, fixed), *(self.of(beside, sizes, {}) for beside in self.sweep.beside)]
        total = {name: sum(values[name] for values in designs) for name in designs[0]}
        total["peak"] = max(values["peak"] - values["weights"] for values in designs) + total["weights"]
        return {name: total[name] for name in self.sweep.measures}

    def of(self, source: str, sizes: Mapping[str, int], fixed: Mapping[str, int]) -> Mapping[str, int]:
        """The measures of a design at the sizes that it has; `fixed` sizes take precedence."""
        design, chosen = self.designs[source], {**self.sweep.legs, **_lengths(self.sweep), **sizes, **fixed}
        legs = {leg: size for leg, size in chosen.items() if leg in design.legs and leg not in LENGTHS}
        settings = {name: setting for name, setting in self.sweep.settings.items() if name in design.settings}
        key = repr((source, legs, settings))
        if key not in self.graphs:
            self.graphs[key] = self.price(self.load(design, legs, settings))
        priced = self.graphs[key]
        n, m = (chosen.get(name) for name in LENGTHS)
        point = repr((key, n, m))
        if point not in self.values:
            lengths = lengths_of(priced.graph, n, m)  # type: ignore[arg-type] # refuses a length that is no integer
            self.values[point] = self.measured(priced.at(lengths), lengths)
        return self.values[point]

    def measured(self, graph: Graph, lengths: Mapping[str, int]) -> Mapping[str, int]:
        batch, width = self.sweep.batch, dtype_bytes(self.sweep.dtype)
        price = cost(graph, lengths, batch, width)
        return {
            "macs": price.macs,
            "routed": price.total.routed_macs,
            "training": training_macs(graph, lengths, batch),
            "parameters": price.parameters,
            "saved": price.total.saved_floats,
            "peak": price.total.live_bytes,
            "weights": width * (price.parameters + price.frozen),
        }


def _arithmetic(leg: str, formula: int | float | str, numbers: Mapping[str, int]) -> int:
    """A size of the other design. Raises InputError."""
    where = f"the size of '{leg}' of the other design, '{formula}'"
    try:
        tree = parse(formula)
        for name in names(tree):
            if name.name not in numbers:
                raise InputError(f"{where}, has the unknown name '{name.name}': {nearest(name.name, numbers)}")
        size = evaluate(tree, numbers)
    except Refusal as refusal:
        raise InputError(f"{where}: {refusal.message}") from None
    if not isinstance(size, int):
        raise InputError(f"{where}, is {size}, but must be an integer.")
    return size


def head(table: Swept) -> str:
    """`gfish against mhsa, beside mlp: g = 2; batch 1, float32, as planned`."""
    sweep = table.sweep
    names = ", ".join(dict.fromkeys(point.design for point in table.points))
    against = f" against {table.against}" if table.against else ""
    beside = f", beside {' and '.join(table.beside)}" if table.beside else ""
    fixed = {**sweep.legs, **sweep.settings, **_lengths(sweep)}
    sizes = ", ".join(f"{name} = {size}" for name, size in fixed.items())
    others = ", ".join(f"{name} = {size}" for name, size in sweep.against_legs.items())
    legs = f"; {table.against} {others}" if others else ""
    counted = f"batch {sweep.batch}, {sweep.dtype}, {ORDERS[sweep.order]}"
    return f"{names}{against}{beside}: {f'{sizes}{legs}; ' if sizes or legs else ''}{counted}"


def _rows(table: Swept, measure: str) -> list[str]:
    series = table.series()
    axis, sizes = next(iter(table.sweep.axes.items()))
    rows = [[f"{axis} =", *(str(size) for size in sizes)]]
    rows += [[name, *(cell(point, measure) for point in points)] for name, points in series.items()]
    return columns(rows)


def cell(point: SweepPoint, measure: str) -> str:
    """A ratio with three decimals, a count with a suffix."""
    displayed = point.displayed(measure)
    if displayed is None:
        return "-"
    return f"{displayed:.3f}" if point.against is not None else human(int(displayed))
