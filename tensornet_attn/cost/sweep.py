"""Costs of designs over the sizes of legs and lengths of sequences, alone or as ratios to another design.

Each design is priced at every combination of the sizes; a size or setting reaches the designs that have it. Designs
`beside` are added to both sides, e.g. the feed-forward layer of a Transformer. Counted are the designs alone: no
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
from tensornet_attn.graph.model import Graph
from tensornet_attn.ir.arithmetic import evaluate, names, parse
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.spec import Design

Sizes = Mapping[str, int | float | str]
Load = Callable[[str | Design, Sizes, Sizes], Design]  # a design at leg sizes and settings
Price = Callable[[Design], "Priced"]
LENGTHS = ("n", "m")  # names of the query and the key length, whatever their legs are called
POINTS = 10_000  # prices of one sweep at most

ORDERS = {
    "planned": "as planned",
    "written": "as written",
    "fewest": "in the order of the fewest FLOPs",
}  # of these, only a plan fuses operations
MEASURES = {
    "macs": "multiply-adds of a forward pass",
    "routed": "multiply-adds where only what topk chose is computed",
    "training": "multiply-adds of forward and backward",
    "parameters": "trainable parameters",
    "saved": "floats kept for backward",
    "peak": "bytes, peak of a forward pass with weights",
}


@dataclass(frozen=True)
class Sweep:
    """What is asked for: designs by their sources, and `axes`, the sizes of each leg or length that varies.

    `against` has sizes of its own, which may be arithmetic over the sizes of a point and which no axis changes.
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
    """A design's graph, and the graph that is priced at these lengths of its sequence legs: see `ORDERS`."""

    graph: Graph
    at: Callable[[Mapping[str, int]], Graph]


@dataclass(frozen=True)
class Point:
    """A design at one combination of sizes: `values` by measure, and those of the other design where there is one."""

    design: str
    sizes: Mapping[str, int]
    values: Mapping[str, int]
    against: Mapping[str, int] | None

    def ratio(self, measure: str) -> float | None:
        """The value over the other design's; None without one, or where that is 0."""
        if self.against is None or self.against[measure] == 0:
            return None
        return self.values[measure] / self.against[measure]

    def displayed(self, measure: str) -> float | int | None:
        """The ratio where there is another design, else the value."""
        return self.values[measure] if self.against is None else self.ratio(measure)

    def as_dict(self) -> dict[str, object]:
        found: dict[str, object] = {"design": self.design, "sizes": dict(self.sizes), "values": dict(self.values)}
        if self.against is not None:
            found |= {"against": dict(self.against), "ratios": {name: self.ratio(name) for name in self.values}}
        return found


@dataclass(frozen=True)
class Swept:
    """The points of a sweep, designs first, then the axes in their order; `names` are the designs' own names."""

    sweep: Sweep
    points: tuple[Point, ...]
    against: str | None
    beside: tuple[str, ...]

    def series(self) -> dict[str, list[Point]]:
        """The points along the first axis, by what else varies: `gfish, g = 2`."""
        found: dict[str, list[Point]] = {}
        rest = [*self.sweep.axes][1:]
        several = len(self.sweep.designs) > 1
        for point in self.points:
            words = [point.design] * several + [f"{name} = {point.sizes[name]}" for name in rest]
            found.setdefault(", ".join(words) or point.design, []).append(point)
        return found

    def as_dict(self) -> dict[str, object]:
        sweep = self.sweep
        return {
            "designs": list(dict.fromkeys(point.design for point in self.points)),
            "against": self.against,
            "beside": list(self.beside),
            "axes": {name: list(sizes) for name, sizes in sweep.axes.items()},
            "legs": dict(sweep.legs),
            "against_legs": dict(sweep.against_legs),
            "settings": dict(sweep.settings),
            "batch": sweep.batch,
            "dtype": sweep.dtype,
            "order": sweep.order,
            "measures": {name: MEASURES[name] for name in sweep.measures},
            "points": [point.as_dict() for point in self.points],
        }

    def to_text(self) -> str:
        """A table a measure: ratios, or values where there is no other design.

        The head says which sizes are fixed, and how everything is counted.
        """
        lines = [head(self)]
        for measure in self.sweep.measures:
            divided = f", divided by those of {self.against}" if self.against else ""
            lines += ["", f"{measure}: {MEASURES[measure]}{divided}", *_rows(self, measure)]
        return "\n".join(lines) + "\n"


def swept(sweep: Sweep, load: Load, price: Price) -> Swept:
    """All points of a sweep. Raises InputError, and DesignError where a design does not fit a size."""
    sources = dict.fromkeys([*sweep.designs, *([sweep.against] if sweep.against else []), *sweep.beside])
    designs = {source: load(source, {}, {}) for source in sources}
    _check(sweep, list(designs.values()))
    if sweep.against is not None:
        _known(sweep.against_legs, {*_legs(designs[sweep.against]), *LENGTHS}, "the other design has no leg")
    points = tuple(_Pricer(sweep, designs, load, price).points())
    against = designs[sweep.against].name if sweep.against else None
    return Swept(sweep, points, against, tuple(designs[source].name for source in sweep.beside))


def _check(sweep: Sweep, designs: Sequence[Design]) -> None:
    """Refuses what no design can use, with the nearest name."""
    for measure in sweep.measures:
        if measure not in MEASURES:
            raise InputError(f"there is no measure '{measure}': {nearest(measure, MEASURES)}")
    if sweep.order not in ORDERS:
        raise InputError(f"there is no order '{sweep.order}': {nearest(sweep.order, ORDERS)}")
    amount = prod(len(sizes) for sizes in sweep.axes.values()) * len(sweep.designs)
    if amount > POINTS:
        raise InputError(f"these sizes make {amount:,} points, more than {POINTS:,}: give fewer sizes.")
    legs = {leg for design in designs for leg in _legs(design)}
    _known([*sweep.legs, *sweep.axes], {*legs, *LENGTHS}, "no design here has a leg")
    _known(sweep.settings, {name for design in designs for name in design.settings}, "no design here has a setting")
    for name in sweep.axes:
        if name in sweep.legs or {"n": sweep.n, "m": sweep.m}.get(name) is not None:
            raise InputError(f"'{name}' has one size and several: give it once, the several with --over.")
    if sweep.against_legs and sweep.against is None:
        raise InputError("sizes of another design are given, and no other design: name it with --against.")


def _known(given: Iterable[str], known: set[str], what: str) -> None:
    for name in given:
        if name not in known:
            raise InputError(f"{what} '{name}': {nearest(name, known)}")


def _legs(design: Design) -> Iterator[str]:
    """The legs that have a size."""
    return (leg for leg, size in design.legs.items() if size is not None)


@dataclass(frozen=True)
class _Pricer:
    """Prices each design at each combination of sizes once."""

    sweep: Sweep
    designs: Mapping[str, Design]  # as loaded, by source
    load: Load
    price: Price
    graphs: dict[str, Priced] = field(default_factory=dict)
    found: dict[str, Mapping[str, int]] = field(default_factory=dict)

    def points(self) -> Iterator[Point]:
        sweep = self.sweep
        for source in sweep.designs:
            for values in product(*sweep.axes.values()):
                sizes = dict(zip(sweep.axes, values, strict=True))
                own, against = self.total(source, sizes, {}), None
                if sweep.against is not None:
                    known = {**{leg: size for leg, size in sweep.legs.items() if isinstance(size, int)}, **sizes}
                    fixed = {leg: _arithmetic(leg, text, known) for leg, text in sweep.against_legs.items()}
                    against = self.total(sweep.against, sizes, fixed)
                yield Point(self.designs[source].name, sizes, own, against)

    def total(self, source: str, sizes: Mapping[str, int], fixed: Mapping[str, int]) -> Mapping[str, int]:
        """A design and those beside it, one after the other: all adds up, but at the peak only one of them runs."""
        parts = [self.one(source, sizes, fixed), *(self.one(other, sizes, {}) for other in self.sweep.beside)]
        total = {name: sum(part[name] for part in parts) for name in MEASURES}
        total["peak"] = max(part["peak"] - part["weights"] for part in parts) + sum(part["weights"] for part in parts)
        return {name: total[name] for name in self.sweep.measures}

    def one(self, source: str, sizes: Mapping[str, int], fixed: Mapping[str, int]) -> Mapping[str, int]:
        """A design at the sizes that it has, where `fixed` ones come first."""
        design, given = self.designs[source], {**self.sweep.legs, **sizes, **fixed}
        legs = {leg: size for leg, size in given.items() if leg in design.legs and leg not in LENGTHS}
        settings = {name: value for name, value in self.sweep.settings.items() if name in design.settings}
        key = repr((source, legs, settings))
        if key not in self.graphs:
            self.graphs[key] = self.price(self.load(design, legs, settings))
        priced = self.graphs[key]
        n, m = ({"n": self.sweep.n, "m": self.sweep.m, **sizes, **fixed}[name] for name in LENGTHS)
        point = repr((key, n, m))
        if point not in self.found:
            lengths = lengths_of(priced.graph, n, m)
            self.found[point] = self.measured(priced.at(lengths), lengths)
        return self.found[point]

    def measured(self, graph: Graph, lengths: Mapping[str, int]) -> Mapping[str, int]:
        batch, width = self.sweep.batch, dtype_bytes(self.sweep.dtype)
        found = cost(graph, lengths, batch, width)
        return {
            "macs": found.macs,
            "routed": found.total.routed_macs,
            "training": training_macs(graph, lengths, batch),
            "parameters": found.parameters,
            "saved": found.total.saved_floats,
            "peak": found.total.live_bytes,
            "weights": width * (found.parameters + found.frozen),
        }


def _arithmetic(leg: str, text: int | float | str, known: Mapping[str, int]) -> int:
    """A size of the other design. Raises InputError."""
    where = f"the size of '{leg}' of the other design, '{text}'"
    try:
        tree = parse(text)
        for name in names(tree):
            if name.name not in known:
                raise InputError(f"{where}, has the unknown name '{name.name}': {nearest(name.name, known)}")
        value = evaluate(tree, known)
    except Refusal as refusal:
        raise InputError(f"{where}: {refusal.message}") from None
    if not isinstance(value, int):
        raise InputError(f"{where}, is {value}, and must be a whole number.")
    return value


def head(found: Swept) -> str:
    """`gfish against mhsa, beside mlp: g = 2; batch 1, float32, as planned`."""
    sweep = found.sweep
    names = ", ".join(dict.fromkeys(point.design for point in found.points))
    against = f" against {found.against}" if found.against else ""
    beside = f", beside {' and '.join(found.beside)}" if found.beside else ""
    lengths = {"n": sweep.n, "m": sweep.m}
    given = {name: size for name, size in lengths.items() if size is not None and name not in sweep.axes}
    sizes = ", ".join(f"{name} = {size}" for name, size in {**sweep.legs, **sweep.settings, **given}.items())
    own = ", ".join(f"{name} = {size}" for name, size in sweep.against_legs.items())
    other = f"; {found.against} {own}" if own else ""
    counted = f"batch {sweep.batch}, {sweep.dtype}, {ORDERS[sweep.order]}"
    return f"{names}{against}{beside}: {f'{sizes}{other}; ' if sizes or other else ''}{counted}"


def _rows(found: Swept, measure: str) -> list[str]:
    series = found.series()
    axis, sizes = next(iter(found.sweep.axes.items()))
    rows = [[f"{axis} =", *(str(size) for size in sizes)]]
    rows += [[name, *(cell(point, measure) for point in points)] for name, points in series.items()]
    return columns(rows)


def cell(point: Point, measure: str) -> str:
    """A ratio with three decimals, a count with a suffix."""
    value = point.displayed(measure)
    if value is None:
        return "-"
    return f"{value:.3f}" if point.against is not None else human(int(value))
