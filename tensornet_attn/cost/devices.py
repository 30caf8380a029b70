"""Devices that plans are priced for: an arithmetic rate and a memory bandwidth, or a table of measured rates.

`this` is the local machine, as measured by `tensornet-attn doctor --calibrate`, `cpu` the machine of the shipped table:
see `rates`.
"""

from __future__ import annotations

from dataclasses import dataclass

from tensornet_attn.cost.rates import RateTable, of_this_machine, shipped
from tensornet_attn.errors import InputError, nearest


@dataclass(frozen=True)
class Device:
    """Peak FLOPs per second and bytes per second, both integers, so that costs compare exactly.

    `bandwidth` None: memory is free, only FLOPs count. `width`: bytes of the elements for which the rate holds.
    `measured`: steps are priced by the table. `table`: None for the shipped one, which gives ratios of implementations
    for other devices too. `gpu`: blocks of queries go through memory, an operation at a time.
    """

    name: str
    rate: int
    bandwidth: int | None = None
    width: int = 4
    measured: bool = False
    table: RateTable | None = None
    gpu: bool = False

    @property
    def rates(self) -> RateTable:
        return self.table or shipped()

    def time(self, flops: int, moved: int) -> int:
        """max(FLOPs / rate, bytes / bandwidth) in units of 1 / (rate * bandwidth) seconds, an exact integer."""
        return flops if self.bandwidth is None else max(flops * self.bandwidth, moved * self.rate)

    def seconds(self, time: int) -> float:
        """Converts the result of `time` to seconds."""
        return time / (self.rate * (self.bandwidth or 1))


DEVICES = {
    device.name: device
    for device in (
        # Never changes, because committed plans and generated files depend on it: 20 FLOPs per byte.
        Device("generic", rate=20 * 10**12, bandwidth=10**12),
        Device("flops", rate=10**12),  # counts only FLOPs
        Device("cpu", rate=10**11, bandwidth=25 * 10**9, measured=True),  # the machine of the shipped table
        # NVIDIA H200 datasheet, SXM: FP32 67 TFLOPS, BFLOAT16 1,979 with sparsity, twice the dense rate; 4.8 TB/s.
        Device("h200", rate=67 * 10**12, bandwidth=48 * 10**11, gpu=True),
        Device("h200-bfloat16", rate=989 * 10**12, bandwidth=48 * 10**11, width=2, gpu=True),
        # NVIDIA A100 datasheet, 80 GB SXM: FP32 19.5 TFLOPS, BFLOAT16 312 dense; 2,039 GB/s.
        Device("a100", rate=195 * 10**11, bandwidth=2039 * 10**9, gpu=True),
        Device("a100-bfloat16", rate=312 * 10**12, bandwidth=2039 * 10**9, width=2, gpu=True),
    )
}
GENERIC = DEVICES["generic"]
THIS = "this"


def costs_on_cpu(backend: str, workload: str) -> str:
    """The entry used to plan a module on a CPU.

    It is `generic` where the measured rates say nothing: for the kernels of a GPU, which triton's interpreter runs, and
    for the single queries of decoding, which read all keys for few operations.
    """
    return GENERIC.name if backend == "triton" or workload == "decoding" else "cpu"


def device_named(name: str) -> Device:
    """A device of the table, or `this` for the measured local machine. Raises InputError, with the most similar name.

    >>> device_named("generic").rate
    20000000000000
    """
    if name == THIS:
        return device_of(of_this_machine())
    if name not in DEVICES:
        raise InputError(f"there is no device '{name}' in the cost table: {nearest(str(name), (*DEVICES, THIS))}")
    return DEVICES[name]


def device_of(table: RateTable, name: str = THIS) -> Device:
    """The device of a table."""
    return Device(name, int(table.rate), int(table.bandwidth), measured=True, table=table)
