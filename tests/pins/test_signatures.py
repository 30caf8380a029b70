"""The public names, what they take and what their results have are as pinned."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

import tensornet_attn as ta
from tests.pins.pinned import Pinned
from tests.pins.signatures import lines_of

FACES = [f"tensornet_attn{part}" for part in ("", ".models", ".nn", ".tasks", ".search")]


@pytest.mark.parametrize("face", FACES)
def test_public_names(face: str, pinned: Pinned) -> None:
    module = import_module(face)
    pinned.check("names.txt", face, sorted(module.__all__))


@pytest.mark.parametrize("face", FACES)
def test_signatures(face: str, pinned: Pinned) -> None:
    module = import_module(face)
    found = [line for name in sorted(module.__all__) for line in lines_of(name, getattr(module, name))]
    pinned.check("signatures.txt", face, found)


def results() -> dict[str, Any]:
    """What public functions give, by how it is come by: the classes have no public place of their own."""
    module, report, model = ta.compile("mhsa", device="meta"), ta.cost("mhsa"), ta.models.load("wikitext_small")
    return {
        "ta.compile()": module,
        "ta.compile().plan": module.plan,
        "ta.compile().plan.regions[0]": module.plan.regions[0],
        "ta.cost()": report,
        "ta.cost().written": report.written,
        "ta.cost().written.steps[0]": report.written.steps[0],
        "ta.models.load()": model,
        "ta.models.load().cost()": model.cost(),
        "ta.tasks.task_named()": ta.tasks.task_named("mqar", length=16, pairs=2, vocabulary=16),
    }


def test_results(pinned: Pinned) -> None:
    found = [line for name, value in results().items() for line in lines_of(name, type(value))]
    pinned.check("signatures.txt", "results of public functions", found)
