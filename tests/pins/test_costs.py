"""What `ta.cost` says of all shipped designs and models is as pinned."""

from __future__ import annotations

from typing import Any

import pytest

import tensornet_attn as ta
from tests.pins.pinned import Pinned, joined
from tests.pins.structure import causal_or_not
from tests.shipped import shipped

NAMES, MODELS = ta.list_designs(), ta.models.list_models()
SIZES: dict[str, dict[str, Any]] = {
    "as given": {},
    "short": {"n": 64, "m": 64, "batch": 2, "dtype": "bfloat16"},
    "one query": {"n": 1, "m": 256},
}
COUNTED = ("macs", "routed_macs", "elementwise", "bytes", "live_bytes", "saved_floats")


@pytest.mark.parametrize("name", NAMES)
def test_costs_of_designs(name: str, pinned: Pinned) -> None:
    """Of a forward in training; in evaluation too where that is less. At all sizes where it is as causal as it says."""
    found, facts = [], dict[str, list[tuple[str, str]]]()
    for causal in causal_or_not(name):
        own = causal == bool(shipped(name).causal)
        for size, options in SIZES.items() if own else [("as given", SIZES["as given"])]:
            masks = "causal" if causal else "not causal"
            mode = f"{size}, {masks}"
            try:
                report = ta.cost(shipped(name), causal=causal, **options)
            except ta.InputError:
                found.append(f"{mode}: refused")
                continue
            lengths = " ".join(f"{leg}={length}" for leg, length in report.lengths)
            found.append(f"{mode}: {lengths}; state of decoding {report.decoding_state}")
            assert report.planned is not None
            for word, part in (("written", report.written), ("planned", report.planned)):
                found.append(f"  {word}: {counts(part.total)}")
                if part.evaluation.macs != part.total.macs:
                    found.append(f"  {word}, in evaluation: {counts(part.evaluation)}")
            if size == "as given":
                kept = f"{report.parameters}, frozen {report.written.frozen}"
                facts.setdefault("parameters", []).append((masks, kept))
                for word, part in (("written", report.written), ("planned", report.planned)):
                    formulas = f"{part.formula}; routed: {part.routed_formula}"
                    facts.setdefault(f"{word} macs", []).append((masks, formulas))
    found += [f"{what}, {line}" for what, rows in facts.items() for line in joined(rows)]
    pinned.check("costs.txt", name, found)


def counts(part: Any) -> str:
    return ", ".join(f"{name} {getattr(part, name)}" for name in COUNTED)


@pytest.mark.parametrize("name", MODELS)
def test_costs_of_models(name: str, pinned: Pinned) -> None:
    found = []
    for options in ({}, {"n": 64, "batch": 2}):
        whole = ta.models.load(name).cost(**options)
        found += [
            f"n={whole.n} m={whole.m} batch={whole.batch}: macs {whole.macs}, routed {whole.routed_macs}, parameters "
            f"{whole.parameters}, frozen {whole.frozen}"
        ]
        rows = [(row.what, row.macs, row.routed_macs, row.parameters) for row in whole.rows]
        for what, *numbers in dict.fromkeys(rows):
            times = rows.count((what, *numbers))
            found.append(f"  {times} x {what}: macs {numbers[0]}, routed {numbers[1]}, parameters {numbers[2]}")
    pinned.check("costs_of_models.txt", name, found)


@pytest.mark.parametrize(("file", "names"), [("costs.txt", NAMES), ("costs_of_models.txt", MODELS)])
def test_no_pin_without_a_subject(file: str, names: list[str], pinned: Pinned) -> None:
    pinned.only(file, names)
