"""The target of a plan: lengths and workload, the device whose costs are used, and requirements on the plan.

The code of every plan is correct for all lengths; the target selects the sizes and device that it is optimised for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypedDict, cast
from warnings import warn

from tensornet_attn import limits
from tensornet_attn.cost.devices import GENERIC, Device, costs_on_cpu, device_named
from tensornet_attn.cost.sizes import dtype_bytes, sizes_at, whole
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.graph.graph import Graph
from tensornet_attn.graph.pairs import BATCH
from tensornet_attn.keywords import caller

UNITS = {"": 1, "b": 1, **{f"{p}b": 1000**i for i, p in enumerate("kmgt", 1)}}
UNITS |= {f"{p}ib": 1024**i for i, p in enumerate("kmgt", 1)}


@dataclass(frozen=True)
class Workload:
    """The default numbers of queries and keys, and whether a backward follows."""

    queries: int
    keys: int
    backward: bool


WORKLOADS = {
    "training": Workload(1024, 1024, backward=True),
    "prefill": Workload(4096, 4096, backward=False),
    "decoding": Workload(1, 4096, backward=False),
}


@dataclass(frozen=True)
class Target:
    """A workload, sizes and dtype that replace its defaults, a device, and requirements.

    `memory`: the limit of the predicted peak in bytes. `linear_memory`: no tensor has both a query and a key leg.
    `strict`: all regions run on the requested backend. Raises InputError if a value is invalid.
    """

    workload: str = "training"
    device: Device = GENERIC
    n: int | None = None
    m: int | None = None
    batch: int = 1
    dtype: str = "float32"
    memory: int | None = None
    linear_memory: bool = False
    strict: bool = False

    def __post_init__(self) -> None:
        if self.workload not in WORKLOADS:
            raise InputError(f"there is no workload '{self.workload}': {nearest(str(self.workload), WORKLOADS)}")
        lengths = {name: length for name, length in (("n", self.n), ("m", self.m)) if length is not None}
        for name, size in {**lengths, "batch": self.batch}.items():
            whole(name, size)
        dtype_bytes(self.dtype)

    @property
    def backward(self) -> bool:
        return WORKLOADS[self.workload].backward

    @property
    def bytes(self) -> int:
        """Bytes per element."""
        return dtype_bytes(self.dtype)

    def sizes(self, graph: Graph) -> dict[str, int]:
        """The sizes of the legs that are known at run time only; `m` defaults to `n`.

        Default lengths are limited to the maximum of their leg. A requested length above it raises InputError.
        """
        workload, requested = WORKLOADS[self.workload], {"query": self.n, "key": self.m or self.n}
        usual = {"query": workload.queries, "key": workload.keys}
        legs = [leg for leg in graph.legs if leg.sequence]
        lengths = {leg.name: requested[leg.kind] or min(usual[leg.kind], leg.maximum or limits.SIZE) for leg in legs}
        sizes_at(graph, lengths)
        distances = sum(lengths.values()) - 1
        relative = {leg.name: distances for leg in graph.legs if leg.kind == "relative" and leg.size is None}
        return lengths | relative | {BATCH: self.batch}

    def words(self, sizes: Mapping[str, int]) -> str:
        """The workload as text: 'training, n = 1,024, m = 1,024, batch 1, float32'."""
        lengths = [f"{leg} = {size:,}" for leg, size in sizes.items() if leg != BATCH]
        return ", ".join([self.workload, *lengths, f"batch {self.batch:,}", self.dtype])


TRAINING = Target()


class CurrentOptions(TypedDict, total=False):
    """The keyword arguments of `target_from`."""

    workload: str
    device_costs: str | Device
    n: int | None
    m: int | None
    batch: int
    memory: int | str | None
    linear_memory: bool
    strict: bool


class TargetOptions(CurrentOptions, total=False):
    """The same for functions that forward them; `bucket` is a deprecated name of `workload`."""

    bucket: str


def current(options: TargetOptions) -> CurrentOptions:
    """The options with deprecated names replaced, with a FutureWarning. Raises InputError if both names are given."""
    if "bucket" not in options:
        return cast(CurrentOptions, options)
    if "workload" in options:
        raise InputError("'bucket' is the deprecated name of 'workload'; give only 'workload'.")
    warn("'bucket' is deprecated; use workload=... instead.", FutureWarning, stacklevel=caller())
    renamed = {("workload" if name == "bucket" else name): option for name, option in options.items()}
    return cast(CurrentOptions, renamed)


def target_from(
    dtype: object = None,
    workload: str = "training",
    device_costs: str | Device = GENERIC,
    n: int | None = None,
    m: int | None = None,
    batch: int = 1,
    memory: int | str | None = None,
    linear_memory: bool = False,
    strict: bool = False,
) -> Target:
    """The target for these options; `dtype` affects only the predicted memory. Raises InputError."""
    device = device_costs if isinstance(device_costs, Device) else device_named(device_costs)
    kind = "float32" if dtype is None or memory is None else str(dtype).removeprefix("torch.")
    return Target(workload, device, n, m, batch, kind, bytes_of(memory), linear_memory, strict)


def target_on_cpu(backend: str, wanted: TargetOptions) -> Target:
    """The target of a module on a CPU for these options. Raises InputError."""
    options = current(wanted)
    costs = costs_on_cpu(backend, options.get("workload", TRAINING.workload))
    return target_priced(costs, options)


def target_priced(costs: str, wanted: CurrentOptions, dtype: object = None) -> Target:
    """The target for these options, priced for `costs` unless they name a device. Raises InputError."""
    options: CurrentOptions = {"device_costs": costs, **wanted}
    return target_from(dtype, **options)


def bytes_of(memory: int | str | None) -> int | None:
    """A memory limit in bytes, from an integer or text such as '2GiB' or '500 MB'. Raises InputError.

    >>> bytes_of("2GiB"), bytes_of("500 MB"), bytes_of(None)
    (2147483648, 500000000, None)
    """
    if memory is None:
        return None
    match = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,6})?)\s*([a-z]*)\s*", str(memory), re.IGNORECASE)
    unit = UNITS.get(match[2].lower()) if match else None
    if isinstance(memory, bool) or match is None or unit is None or (number := int(float(match[1]) * unit)) < 1:
        raise InputError(f"memory is {memory!r:.40}; give a positive number of bytes, e.g. 2GiB, 500MB or 1000000.")
    return number
