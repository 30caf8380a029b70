"""`verify_kernels`: Triton kernels beside the reference before a device uses them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.bench import contestants
from tensornet_attn.bench.case import TRAINING, Case
from tensornet_attn.bench.compare import WrongError
from tensornet_attn.nn import runs
from tensornet_attn.runtime import cpp
from tensornet_attn.verify import kernels
from tests.refusals import refusal

DESIGN = "{name: NAME, extends: hard_fish, legs: {f: 16, g: head 2, h: head 2, d: 4}}"


def test_right_kernels_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    design = ta.load(DESIGN.replace("NAME", "right"))
    layer = ta.compile(design, "triton", verify_kernels=True)
    assert layer.plan.backend == "triton"
    monkeypatch.setattr(kernels, "mismatch", lambda *_: pytest.fail("compared twice, or without being asked"))
    assert ta.compile(design, "triton", verify_kernels=True).plan == layer.plan
    ta.compile(DESIGN.replace("NAME", "not_asked"), "triton")
    assert ta.verify(layer, torch.randn(2, 9, 16), key_mask=torch.rand(2, 9) < 0.7)


def test_wrong_kernels_are_reported_and_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    load, design = runs.load_class, ta.load(DESIGN.replace("NAME", "wrong"))

    def wrong(source: str, *names: str) -> Any:
        return load(source.replace("[:, None] + dot_of(", "[:, None] + 1.01 * dot_of("), *names)

    monkeypatch.setattr(runs, "load_class", wrong)
    with pytest.warns(
        UserWarning, match="backend 'triton' cannot run: kernels differ from the reference: 'y' differs by"
    ):
        layer = ta.compile(design, "triton", verify_kernels=True)
    assert layer.plan.backend == "torch"
    (report,) = (path for path in cpp.cpp_folder().glob("triton-*.report.txt") if str(path) in layer.explain())
    assert "'wrong' on backend 'triton' differ" in report.read_text()
    assert "kernels differ" in refusal(ta.compile, design, "triton", verify_kernels=True, strict=True)
    with pytest.raises(WrongError, match="kernels differ from the reference"):
        contestants.contestant("triton", Case(design, 16), TRAINING, 1e9)
    found = ta.verify(ta.compile(design, "triton"), torch.randn(2, 9, 16))
    assert found.first is not None
    assert found.first.name == "y"
