"""Devices of the roofline model, each with an arithmetic rate and a memory bandwidth.

`this` is the local machine, as measured by `tensornet-attn doctor --calibrate`; see `calibration_file`.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tensornet_attn.errors import InputError, nearest
from tensornet_attn.files import write_whole


@dataclass(frozen=True)
class Device:
    """Peak FLOPs per second and bytes per second, both integers, so that costs compare exactly.

    `bandwidth` None: memory is free, only FLOPs count. `width`: bytes of the elements for which the rate holds.
    """

    name: str
    rate: int
    bandwidth: int | None = None
    width: int = 4

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
        Device("cpu", rate=10**11, bandwidth=2 * 10**10),  # about two cores; `this` is the local machine
        # NVIDIA H200 datasheet, SXM: FP32 67 TFLOPS, BFLOAT16 1,979 with sparsity, twice the dense rate; 4.8 TB/s.
        Device("h200", rate=67 * 10**12, bandwidth=48 * 10**11),
        Device("h200-bfloat16", rate=989 * 10**12, bandwidth=48 * 10**11, width=2),
        # NVIDIA A100 datasheet, 80 GB SXM: FP32 19.5 TFLOPS, BFLOAT16 312 dense; 2,039 GB/s.
        Device("a100", rate=195 * 10**11, bandwidth=2039 * 10**9),
        Device("a100-bfloat16", rate=312 * 10**12, bandwidth=2039 * 10**9, width=2),
    )
}
GENERIC = DEVICES["generic"]
THIS = "this"


def device_named(name: str) -> Device:
    """A device of the table, or `this` for the measured local machine. Raises InputError, with the most similar name.

    >>> device_named("generic").rate
    20000000000000
    """
    if name == THIS:
        return _measured(calibration_file())
    if name not in DEVICES:
        raise InputError(f"there is no device '{name}' in the cost table: {nearest(str(name), (*DEVICES, THIS))}")
    return DEVICES[name]


def calibration_file() -> Path:
    """The file with the rates of this machine: `tensornet-attn/device.json` in XDG_CACHE_HOME or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tensornet-attn" / "device.json"


def remember(device: Device) -> Path:
    """Writes the rates of this machine to the calibration file, atomically, and returns its path."""
    path = calibration_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(asdict(device), indent=2) + "\n").encode())
    return path


def _measured(path: Path) -> Device:
    """The device in a file written by `remember`. Raises InputError if the file is missing or damaged."""
    if not path.is_file():
        raise InputError(
            "this machine has not been measured; run 'tensornet-attn doctor --calibrate', which takes about a second."
        )
    try:
        found = json.loads(path.read_bytes())
        rates = [found["rate"], found["bandwidth"]]
    except (ValueError, KeyError, TypeError):
        rates = []
    if not rates or not all(type(rate) is int and 0 < rate < 10**18 for rate in rates):
        raise InputError(f"{path} is damaged; run 'tensornet-attn doctor --calibrate' again.")
    return Device(THIS, *rates)
