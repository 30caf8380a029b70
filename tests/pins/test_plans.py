"""The plans of all shipped designs, their prices and what they keep for the backward, are as pinned."""

from __future__ import annotations

from functools import cache

import pytest

import tensornet_attn as ta
from tests.pins.pinned import Pinned
from tests.pins.structure import causal_or_not, elsewhere, plan, plan_lines, price, saved_line
from tests.shipped import shipped

NAMES = ta.list_designs()
WORKLOADS = ("training", "prefill", "decoding")
MASKS = {False: "not causal", True: "causal"}
Mode = tuple[str, str, bool]  # backend, workload, causal
FILES = [pytest.param("plans.txt", id="quick"), pytest.param("plans_slow.txt", id="all", marks=pytest.mark.slow)]


@cache
def modes(name: str) -> list[Mode]:
    """All of torch, and one of triton: what a test without slow ones looks at. Then the others."""
    each = [(workload, causal) for causal in causal_or_not(name) for workload in WORKLOADS]
    first = [*(("torch", *mode) for mode in each), ("triton", "training", bool(shipped(name).causal))]
    return [*first, *(mode for back in ("inductor", "triton") for one in each if (mode := (back, *one)) not in first)]


def quick(name: str) -> list[Mode]:
    return modes(name)[: 1 + len(causal_or_not(name)) * len(WORKLOADS)]


def told(mode: Mode) -> str:
    backend, workload, causal = mode
    return f"{backend} {workload} {MASKS[causal]}"


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("name", NAMES)
def test_plans_and_prices(name: str, file: str, pinned: Pinned) -> None:
    """Modes with equal plans share the lines; those of the slow file may be in the quick one."""
    plans: dict[tuple[str, ...], list[str]] = {}
    for mode in quick(name):
        plans.setdefault(plan_lines(plan(name, *mode)), []).append(f"# {told(mode)}{elsewhere(plan(name, *mode))}")
    if file == "plans_slow.txt":
        known = {lines: f"; as {heads[0].removeprefix('# ').partition(';')[0]}" for lines, heads in plans.items()}
        plans = {}
        for mode in modes(name)[len(quick(name)) :]:
            lines = plan_lines(plan(name, *mode))
            head = f"# {told(mode)}{elsewhere(plan(name, *mode))}{known.get(lines, '')}"
            plans.setdefault(() if lines in known else lines, []).append(head)
    pinned.check(file, name, [line for lines, heads in plans.items() for line in (*heads, *lines)])
    slow = file == "plans_slow.txt"
    shown = modes(name)[len(quick(name)) :] if slow else quick(name)
    pinned.check("prices_slow.txt" if slow else "prices.txt", name, prices(name, shown))


def prices(name: str, shown: list[Mode]) -> list[str]:
    """Predicted seconds on the generic device, peak of bytes, and what the backward needs."""
    found = []
    for mode in shown:
        made = plan(name, *mode)
        line = f"{told(mode)}: {price(made).seconds:.12g} s, {price(made).bytes} bytes"
        found.append(f"{line}; kept {saved_line(made)}" if mode[1] == "training" else line)
    return found


@pytest.mark.parametrize("file", ["plans.txt", "plans_slow.txt", "prices.txt", "prices_slow.txt"])
def test_no_pin_without_a_design(file: str, pinned: Pinned) -> None:
    pinned.only(file, NAMES)
