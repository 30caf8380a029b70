"""Layers that other packages wrote: the design with their weights gives their outputs and gradients, and gives back."""

from __future__ import annotations

import re
from collections import Counter
from importlib import metadata
from pathlib import Path

import pytest

from tests.parity import LAYERS, ParityLayer, compare

PAGE = Path(__file__).resolve().parents[2] / "docs" / "parity.md"
DOUBLE, SINGLE = 1e-12, 3e-6  # of differences, in units of the largest number: float64, and float32 within


@pytest.mark.filterwarnings(
    "ignore:Triton is not supported:UserWarning"
)  # fla-core says so, which transformers asks for
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: f"{layer.package}: {layer.name}")
def test_a_layer_and_its_design_agree(layer: ParityLayer) -> None:
    found = compare(layer)
    assert max(found.output, found.gradients, found.back) <= (SINGLE if layer.single else DOUBLE)


def test_the_page_has_a_row_for_each_and_the_versions_that_the_tests_run_with() -> None:
    text = PAGE.read_text(encoding="utf-8")
    titles = re.findall(r"^## (\S+) (\d\S*)$", text, re.MULTILINE)
    assert dict(titles) == {name: metadata.version(name) for name in {layer.package for layer in LAYERS}}
    rows = Counter(re.findall(r"^\| `([^`]*)` \|", text, re.MULTILINE))
    assert rows == Counter(layer.name for layer in LAYERS)
