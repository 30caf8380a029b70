"""The measured rates of a machine, which price plans: a table in a file. One is shipped, one may be of this machine.

`tensornet-attn doctor --calibrate` measures this machine; `tensornet-attn doctor --calibrate -o FILE` writes a table to
ship. See `seconds` for how plans are priced.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass, replace
from datetime import date
from functools import cache, cached_property
from importlib import metadata, resources
from itertools import pairwise
from math import exp, log
from pathlib import Path
from typing import Any, get_args, get_type_hints

from tensornet_attn.cost.products import MeasuredRate, Shape, rate_at
from tensornet_attn.errors import InputError
from tensornet_attn.files import user_folder, write_whole
from tensornet_attn.ops.maps import MAPS

FORMAT = 4  # of files; another one if efficiencies mean something else
ELEMENTWISE = "elementwise"
NOISE, DROPOUT, SINUSOID = "noise", "dropout", "sinusoid"
CALIBRATE = "tensornet-attn doctor --calibrate"
KEPT = 2**25 - 2**12  # bytes of a tensor whose memory the C library keeps for others; larger ones get new pages
PASSED = 3  # tensors of a measured pass: two are read, one is written


@dataclass(frozen=True)
class Machine:
    """What a table is valid for. `threads`: of torch, while it was measured."""

    processor: str
    cores: int
    threads: int
    torch: str


@dataclass(frozen=True)
class Pair:
    """Seconds of fused attention for one pair of a query and a key of a head of this width: forward, and with backward.

    `queries`: their number; SDPA takes larger blocks of more queries.
    """

    queries: int
    width: int
    forward: float
    training: float


@dataclass(frozen=True)
class Each:
    """Seconds of an elementwise map for each number, beyond those of the fastest map: forward, and with backward.

    `NOISE` and `DROPOUT` are the numbers that a training step draws, `SINUSOID` those of a constant of this kind.
    """

    name: str
    forward: float
    training: float


@dataclass(frozen=True)
class Efficiency:
    """The measured time of an implementation over that of its products, exponentials and passes: of both passes."""

    kind: str
    forward: float
    training: float


@dataclass(frozen=True)
class RateTable:
    """The rates of a machine in float32. `measured`: the day. `command`: the command that measured them.

    `products`: FLOPs per second by shape; `projected`: of rows with at least so many numbers times a weight. `passes`:
    bytes per second that an elementwise operation reads and writes, by the bytes of its result. `bandwidth`: bytes per
    second of a copy beyond the caches. `exponentials`: per second. `call`, `module`: seconds of an operation on few
    elements, and of a call of a module besides its operations.
    """

    machine: Machine
    measured: str
    command: str
    products: tuple[MeasuredRate, ...]
    projected: tuple[int, float]
    passes: tuple[tuple[int, float], ...]
    bandwidth: float
    exponentials: float
    maps: tuple[Each, ...]
    call: tuple[float, float]
    module: tuple[float, float]
    attention: tuple[Pair, ...]
    efficiency: tuple[Efficiency, ...]

    @property
    def rate(self) -> float:
        """FLOPs per second of the fastest product."""
        return max(product.flops for product in self.products)

    def pass_rate(self, size: int) -> float:
        """Bytes per second of an elementwise operation whose result has `size` bytes, besides new pages."""
        return between(min(size, KEPT), self.passes)

    def of_pages(self, size: int) -> float:
        """Seconds in which the system provides the pages of a new tensor of `size` bytes."""
        if size <= KEPT:
            return 0.0
        return PASSED * size * max(0.0, 1 / between(size, self.passes) - 1 / self.pass_rate(size))

    def of_pair(self, queries: int, width: int, backward: bool) -> float:
        """Seconds of fused attention for a query and a key of a head; beyond the widest measured one, by its width."""
        by_queries: dict[int, list[tuple[int, float]]] = {}
        for pair in self.attention:
            by_queries.setdefault(pair.queries, []).append((pair.width, pair.training if backward else pair.forward))
        wide = max(1.0, width / max(pair.width for pair in self.attention))
        return wide * between(queries, [(number, between(width, rows)) for number, rows in by_queries.items()])

    def of_map(self, function: str, backward: bool) -> float:
        """Seconds of a map for each number besides its passes; if it was not measured, those of an exponential.

        A map with the same numbers counts before one with other numbers: `power(2)` before `power`.
        """
        name = function.partition("(")[0]
        if measured := self._map.get(function) or self._map.get(name):
            return measured.training if backward else measured.forward
        return 1 / self.exponentials if name in MAPS and MAPS[name].exponential else 0.0

    def efficiency_of(self, kind: str, backward: bool) -> float:
        """The factor of a kind of part; if it was not measured, that of elementwise operations."""
        efficiency = self._efficiency.get(kind) or self._efficiency.get(ELEMENTWISE)
        return 1.0 if efficiency is None else efficiency.training if backward else efficiency.forward

    def product_rate(self, shape: Shape) -> float:
        """FLOPs per second of products of a shape; of each shape it is interpolated once."""
        if shape not in self._product_rates:
            self._product_rates[shape] = rate_at(shape, self.products)
        return self._product_rates[shape]

    @cached_property
    def _product_rates(self) -> dict[Shape, float]:
        return {}

    @cached_property
    def _map(self) -> dict[str, Each]:
        return {entry.name: entry for entry in self.maps}

    @cached_property
    def _efficiency(self) -> dict[str, Efficiency]:
        return {entry.kind: entry for entry in self.efficiency}

    def as_dict(self) -> dict[str, Any]:
        return {"format": FORMAT} | asdict(self)


def between(x: float, samples: Sequence[tuple[float, float]]) -> float:
    """The value at x, by linear interpolation of logarithms between known points; constant beyond the first and last.

    >>> round(between(4, [(2, 10.0), (8, 1000.0)]), 6), between(1, [(2, 10.0), (8, 1000.0)])
    (100.0, 10.0)
    """
    points = sorted(samples)
    if x <= points[0][0]:
        return points[0][1]
    for (left, low), (right, high) in pairwise(points):
        if x <= right:
            share = (log(x) - log(left)) / (log(right) - log(left))
            return round(exp(log(low) + share * (log(high) - log(low))), 15)
    return points[-1][1]


@cache
def shipped() -> RateTable:
    """The table of devices without their own; `machine` in the file says where it was measured."""
    contents = resources.files("tensornet_attn.cost").joinpath("rates.json").read_text(encoding="utf-8")
    return from_dict(json.loads(contents))


def calibration_file() -> Path:
    """The table of this machine: `rates.json` in `files.user_folder`. Raises InputError if there is none."""
    return user_folder() / "rates.json"


def remember(table: RateTable, path: Path | None = None) -> Path:
    """Writes a table, atomically, by default as that of this machine. Returns the path."""
    if path is None:
        path = calibration_file()
        path.parent.mkdir(parents=True, exist_ok=True)
    rows = (f"{json.dumps(key)}: {_lines(value)}" for key, value in table.as_dict().items())
    write_whole(path, ("{\n" + ",\n".join(rows) + "\n}\n").encode())
    return path


def _lines(value: Any) -> str:
    """A value as JSON; rows of a table have a line each."""
    if not (isinstance(value, list | tuple) and value and isinstance(value[0], dict | list | tuple)):
        return json.dumps(value)
    return "[\n " + ",\n ".join(map(json.dumps, value)) + "\n]"


def of_this_machine() -> RateTable:
    """The table of this machine. Raises InputError if there is none, if it is damaged, or of another machine."""
    path = calibration_file()
    if not path.is_file():
        raise InputError(f"this machine has not been measured; run '{CALIBRATE}', which takes about 20 seconds.")
    table = read(path)
    measured, now = table.machine, machine(table.machine.threads)
    for name in ("processor", "cores", "torch"):
        before, here = getattr(measured, name), getattr(now, name)
        if before != here:
            what = {"processor": "the processor", "cores": "the number of cores", "torch": "the version of torch"}[name]
            raise InputError(f"{path}: {what} was {before}, and is {here} now; run '{CALIBRATE}' again.")
    return table


def read(path: Path) -> RateTable:
    """The table in a file. Raises InputError if it is damaged, or if another version wrote it."""
    try:
        record = json.loads(path.read_bytes())
        if record["format"] == FORMAT:
            return completed(from_dict(record))
        fault = "was written by another version of tensornet-attn"
    except (ValueError, KeyError, TypeError, AttributeError):
        fault = "is damaged"
    raise InputError(f"{path} {fault}; run '{CALIBRATE}' again.")


def completed(table: RateTable) -> RateTable:
    """The table with the shipped efficiencies of kinds that were not measured, such as C++ kernels not in the cache."""
    kinds = {row.kind for row in table.efficiency}
    return replace(
        table, efficiency=(*table.efficiency, *(row for row in shipped().efficiency if row.kind not in kinds))
    )


def from_dict(record: Mapping[str, Any]) -> RateTable:
    """The table of its JSON form. Raises ValueError, KeyError or TypeError if the form is wrong."""
    table: RateTable = _checked(RateTable, {name: field for name, field in record.items() if name != "format"})
    date.fromisoformat(table.measured)
    if not (table.products and table.passes and table.attention and table.efficiency):
        raise ValueError("empty")
    return table


def _checked(kind: Any, value: Any) -> Any:
    """The value of a type: a record of its fields, a tuple of its items, a text, a positive number or integer."""
    if isinstance(kind, type) and is_dataclass(kind):
        types = get_type_hints(kind)
        if types.keys() != value.keys():
            raise KeyError(*types)
        return kind(**{name: _checked(types[name], value[name]) for name in types})
    if items := get_args(kind):
        kinds = items[:1] * len(value) if items[-1] is Ellipsis else items
        return tuple(_checked(*pair) for pair in zip(kinds, value, strict=True))
    accepted = (int, float) if kind is float else (kind,)
    if type(value) not in accepted or (kind is not str and not (0 < value < 1e18)):
        raise ValueError("not a text, or a positive number")
    return kind(value)


def machine(threads: int) -> Machine:
    """This machine."""
    return Machine(processor(), os.cpu_count() or 1, threads, metadata.version("torch"))


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()  # on Linux
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
