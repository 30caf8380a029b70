"""Results as data: the entry of a contestant, the result of a pass, and a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median, quantiles
from typing import Any

from tensornet_attn.bench.floor import PassFloor
from tensornet_attn.bench.machine import Rates

MEASURED, SKIPPED, FAILED, WRONG = "measured", "skipped", "failed", "wrong"
VERSION = 2  # of the JSON form


@dataclass(frozen=True)
class Spread:
    """Median and quartiles."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles, with linear interpolation.

    >>> spread([4.0, 1.0, 3.0, 2.0, 5.0])
    Spread(median=3.0, low=2.0, high=4.0)
    """
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, _, high = quantiles(values, n=4, method="inclusive")
    return Spread(median(values), low, high)


def ratio(theirs: Sequence[float], ours: Sequence[float]) -> Spread:
    """The other's time over ours: the ratio of medians, and quartiles of the ratios in each round.

    Both times of a round are measured within moments, so that a slow machine affects both.

    >>> ratio([4.0, 8.0, 6.0], [2.0, 2.0, 3.0])
    Spread(median=3.0, low=2.0, high=3.0)
    """
    pairs = spread([a / b for a, b in zip(theirs, ours, strict=True)])
    return Spread(median(theirs) / median(ours), pairs.low, pairs.high)


@dataclass
class Entry:
    """One contestant. `status`: measured, skipped (unsupported), failed (an exception) or wrong (incorrect results).

    `seconds`: time of one call, from `rounds` samples of `calls` calls. `ratio`: its time over ours. `peak_bytes`:
    memory beyond inputs and weights. `error`: relative error to the reference, at length `checked_n`. `floor`: the
    minimum seconds of our plan for what it computes, see `model`; None if rates were not measured.
    """

    name: str
    status: str = MEASURED
    reason: str = ""
    note: str = ""
    seconds: Spread | None = None
    rounds: int = 0
    calls: int = 0
    ratio: Spread | None = None
    peak_bytes: int | None = None
    error: float | None = None
    checked_n: int | None = None
    floor: float | None = None

    @property
    def of_floor(self) -> float | None:
        """The share of the floor that it reaches: the floor over its median time."""
        return None if self.floor is None or self.seconds is None else self.floor / self.seconds.median

    def as_dict(self) -> dict[str, Any]:
        return asdict(self) | {"of_floor": self.of_floor}

    @property
    def measured(self) -> bool:
        return self.status == MEASURED


@dataclass
class PassResult:
    """One pass of one design at one length. `ours` names the entry of `model`, which is the denominator of ratios."""

    design: str
    kind: str
    n: int
    batch: int
    dtype: str
    device: str
    causal: bool
    legs: Mapping[str, int]
    settings: Mapping[str, float]
    ours: str
    entries: list[Entry] = field(default_factory=list)
    model: PassFloor | None = None

    @property
    def share(self) -> float | None:
        """The floor over our median time, or None if one of them is missing."""
        mine = next((entry.seconds for entry in self.entries if entry.name == self.ours), None)
        floor = self.model.floor if self.model is not None else None
        return floor / mine.median if mine is not None and floor is not None else None

    @property
    def runs(self) -> bool:
        """Whether a contestant did not fail; all fail if their process ends."""
        return any(entry.status != FAILED for entry in self.entries)

    def entry(self, name: str) -> Entry:
        return next(entry for entry in self.entries if entry.name == name)

    def as_dict(self) -> dict[str, Any]:
        fields = {key: attribute for key, attribute in asdict(self).items() if key not in ("kind", "entries", "model")}
        return fields | {
            "pass": self.kind,
            "model": self.model and asdict(self.model) | {"share": self.share},
            "contestants": [entry.as_dict() for entry in self.entries],
        }


@dataclass
class BenchmarkRun:
    """A run: the command, the machine, the options, and the results so far.

    `rates`: measured rates of the machine before and after. `criteria`: outcomes of the targets.
    """

    command: str
    machine: Mapping[str, object]
    options: Mapping[str, object]
    results: list[PassResult] = field(default_factory=list)
    finished: bool = False
    load: list[float | None] = field(default_factory=list)  # before and after
    rates: list[Rates] = field(default_factory=list)
    criteria: list[Mapping[str, object]] = field(default_factory=list)

    @property
    def rate(self) -> Rates | None:
        """The rates before."""
        return self.rates[0] if self.rates else None

    @property
    def wrong(self) -> list[str]:
        """A sentence for each contestant with incorrect results, and for each layer of yours that raised an error."""
        return [
            f"'{entry.name}' of '{result.design}', n {result.n}, {result.kind}: {entry.reason}"
            for result in self.results
            for entry in result.entries
            if entry.status == WRONG or (entry.status == FAILED and ":" in entry.name and result.runs)
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "tensornet_attn_bench": VERSION,
            "command": self.command,
            "machine": dict(self.machine),
            "load": self.load,
            "rates": [asdict(rates) for rates in self.rates],
            "options": dict(self.options),
            "finished": self.finished,
            "results": [result.as_dict() for result in self.results],
            "aims": list(self.criteria),
        }
