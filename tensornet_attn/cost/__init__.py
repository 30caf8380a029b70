"""Predicted costs of graphs: work, memory traffic and memory of each step, as written and as planned; without torch."""

from tensornet_attn.cost.devices import DEVICES, GENERIC, Device, device_named
from tensornet_attn.cost.report import Cost, Report, StepCost, cost, cost_of
from tensornet_attn.cost.sizes import DTYPE_BYTES, dtype_bytes, lengths_of, sizes_at

__all__ = [
    "DEVICES",
    "DTYPE_BYTES",
    "GENERIC",
    "Cost",
    "Device",
    "Report",
    "StepCost",
    "cost",
    "cost_of",
    "device_named",
    "dtype_bytes",
    "lengths_of",
    "sizes_at",
]
