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
    """Modes with equal plans share the lines; of other plans there are the lines that differ from the first one."""
    slow, found, known = file == "plans_slow.txt", list[str](), dict[tuple[str, ...], str]()
    for mode in modes(name) if slow else quick(name):
        lines, head = plan_lines(plan(name, *mode)), f"# {told(mode)}{elsewhere(plan(name, *mode))}"
        shown = (mode not in quick(name)) == slow
        if lines in known:
            found += [f"{head}; as {known[lines]}"] * shown
            continue
        first = next(iter(known), ())
        own = min(differences(lines, first), lines, key=len) if first else lines
        found += [f"{head}; as {known[first]} but for" if own is not lines else head, *own] * shown
        known[lines] = told(mode)
    pinned.check(file, name, found)
    pinned.check("prices_slow.txt" if slow else "prices.txt", name, prices(name, slow))


def differences(lines: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """The lines of a plan that another has not, and the numbers of those that only the other has."""
    own = {line.partition("[")[0] for line in lines}
    gone = [number.strip() for number in (line.partition("[")[0] for line in other) if number not in own]
    return (*(line for line in lines if line not in other), *([f"without {' '.join(gone)}"] if gone else []))


def prices(name: str, slow: bool) -> list[str]:
    """Predicted seconds on the generic device, peak of bytes, and what the backward needs; equal ones share a line."""
    found: dict[str, list[Mode]] = {}
    for mode in modes(name) if slow else quick(name):
        made = plan(name, *mode)
        line = f"{price(made).seconds:.12g} s, {price(made).bytes} bytes"
        line += f"; kept {saved_line(made)}" if mode[1] == "training" else ""
        found.setdefault(line, []).append(mode)
    lines = []
    for line, equal in found.items():
        known = slow and equal[0] in quick(name)
        shown = [told(mode) for mode in equal if (mode not in quick(name)) == slow]
        lines += [f"{', '.join(shown)}: {f'as {told(equal[0])}' if known else line}"] * bool(shown)
    return lines


@pytest.mark.parametrize("file", ["plans.txt", "plans_slow.txt", "prices.txt", "prices_slow.txt"])
def test_no_pin_without_a_design(file: str, pinned: Pinned) -> None:
    pinned.only(file, NAMES)
