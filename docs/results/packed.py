"""Packed documents beside a batch, one call each, and padding: python docs/results/packed.py

Forward and backward, float32, one thread, f 512, 8 heads, causal; all in turns, medians of ratios.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

import tensornet_attn as ta

ROUNDS, F = 7, 512
EVEN, RAGGED = [256] * 16, [*range(32, 513, 32)]


def seconds(run: Callable[[], torch.Tensor]) -> float:
    """Of a forward and its backward."""
    start = perf_counter()
    run().sum().backward()
    return perf_counter() - start


def ratios(layer: torch.nn.Module, lengths: list[int]) -> str:
    """Of documents of these lengths."""
    row = torch.randn(1, sum(lengths), F, requires_grad=True)
    batch = torch.randn(len(lengths), max(lengths), F, requires_grad=True)
    offsets = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32)
    runs = {
        "packed": lambda: layer(row, cu_seqlens=offsets),
        "batch": lambda: layer(batch),
        "calls": lambda: torch.cat([layer(part) for part in row.split(lengths, 1)], 1),
    }
    found = [{one: seconds(run) for one, run in runs.items()} for _ in range(ROUNDS + 1)][1:]
    return ", ".join(
        f"{median(each['packed'] / each[one] for each in found):.2f} of {one}" for one in ("batch", "calls")
    )


def main() -> None:
    torch.set_num_threads(1)
    for name in ("mhsa", "linear", "fmm_fast_weight1"):
        layer = ta.compile(name, causal=True)
        for lengths in (EVEN, RAGGED):
            what = f"{len(lengths)} documents of {min(lengths)} to {max(lengths)}"
            print(f"{name}, {what}: {ratios(layer, lengths)}", flush=True)


if __name__ == "__main__":
    main()
