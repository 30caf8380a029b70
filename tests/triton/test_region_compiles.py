"""Kernels of shipped designs compile for two GPUs, forward and backward, in their registers and memory."""

from __future__ import annotations

import re
import sys
from dataclasses import replace

import pytest
import torch

import tensornet_attn as ta
from docs.generate.catalogue import Catalogue
from docs.generate.page import kernels_of_designs
from tensornet_attn.cli.__main__ import main
from tensornet_attn.compiler import plan_of
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.runtime.triton.kernels import region_launch
from tensornet_attn.runtime.triton.survey import Used
from tests.designs.cases import ATTENTION
from tests.masked import design as masked
from tests.ops.test_softmax import design as sinks
from tests.plan.blockwise_cases import TAKEN
from tests.regions import WIDE

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="triton is for Linux alone")
QUICK = ("mhsa", "hard_fish")
ONE = Used("one", "fp32", "CHUNK 64", 90, 4, 255, 64, 500)
FOUND = {"mhsa": [ONE, replace(ONE, registers=3, shared=9000)], "mlp": []}


def check(name: str, target: int, dtype: torch.dtype | None = None) -> None:
    used = ta.kernels(name, target, dtype)
    assert used
    assert [(one, one.reasons_against) for one in used if one.reasons_against] == []
    if dtype is None and target == 90:
        assert [one for one in used if "_tiles_" in one.kernel and twice(one)] == []
    if any("_tiles_" in one.kernel for one in used):
        found = {one.kernel.rpartition("_")[2] for one in used}
        assert "forward" in found
        assert found & {"rows", "keys"}


def twice(one: Used) -> bool:
    """Whether warps make the same: four of sm_90 have 64 rows together, eight 128."""
    n, m = (int(size) for size in re.findall(r"_block (\d+)", one.sizes)[:2])
    return 64 <= (m if one.kernel.endswith("_keys") else n) < 16 * one.warps


@pytest.mark.parametrize("name", QUICK)
def test_a_slice(name: str) -> None:
    check(name, 90)


@pytest.mark.parametrize(
    "mask",
    ["causal and (window(w, 0) or prefix(p))", pytest.param("not (block(w) or prefix(p))", marks=pytest.mark.slow)],
)
def test_formulas_of_masks(mask: str) -> None:
    source = masked(mask)
    used = ta.kernels(source | {"legs": source["legs"] | {"f": 64, "d": 32}}, 90)
    assert {one.kernel for one in used} >= {"y_1_tiles_forward", "y_1_tiles_rows", "y_1_tiles_keys"}
    assert [(one, one.reasons_against) for one in used if one.reasons_against] == []


@pytest.mark.parametrize("name", ["mhsa", pytest.param("talking_heads", marks=pytest.mark.slow)])
def test_parts_of_the_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(region_launch, "parts_for", lambda programs, blocks, processors: 4)
    used = ta.kernels(name, 90)
    assert "join_parts" in {one.kernel for one in used}
    assert [(one, one.reasons_against) for one in used if one.reasons_against] == []


@pytest.mark.slow
@pytest.mark.parametrize("target", [80, 90])
def test_wide_scores_and_many_ranks(target: int) -> None:
    used = ta.kernels(ta.load("thsa", legs={"r": 256, "s": 256}), target, torch.bfloat16)
    assert [(one, one.reasons_against) for one in used if one.reasons_against] == []


def test_sinks() -> None:
    source = sinks("blocks", "heads", "causal and window(127, 0)")
    used = ta.kernels(source | {"legs": {"f": 64, "h": "head 2", "d": "f / h"}}, 90)
    assert {one.kernel for one in used} >= {"y_1_tiles_forward", "y_1_tiles_rows", "y_1_tiles_keys"}
    assert [(one, one.reasons_against) for one in used if one.reasons_against] == []


@pytest.mark.slow
@pytest.mark.parametrize("target", [80, 90])
@pytest.mark.parametrize("name", ["mhsa", "mgk", "differential", "thsa", "transformer_xl"])
def test_in_float32(name: str, target: int) -> None:
    check(name, target, torch.float32)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kept", "divided by sums", "powers", "the mean and the sum over keys"])
def test_what_is_no_softmax(name: str) -> None:
    used = ta.kernels(TAKEN[name], 90)
    assert used
    assert [(one, one.reasons_against) for one in used if one.reasons_against] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"),
    [(name, 90) for name in sorted(ATTENTION)]
    + [(name, 80) for name in sorted({name for name, _ in WIDE} & {*ATTENTION})],
)
def test_all(name: str, target: int) -> None:
    if "triton" in plan_of(build(ta.load(name)), "triton").backends.values():
        check(name, target)
    else:
        assert ta.kernels(name, target) == []


def test_a_design_without_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert ta.kernels("mlp") == []
    assert main(["explain", "mlp", "--kernels"]) == 0
    assert capsys.readouterr().out == (
        "mlp has no Triton kernels; 'tensornet-attn explain mlp --backend triton' prints the reasons.\n"
    )


def test_a_design_of_ones_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Sizes, causal and dtype are those asked for; what does not fit is said below the table."""
    words = ["explain", "mhsa", "--legs", "f=32,h=2", "--causal", "--kernels"]
    assert main([*words, "--dtype", "float16"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("With triton 3.")
    assert [line.split(" | ")[:2] for line in out[5:]] == [
        [f"| `{name}`", "fp16 fp32"]
        for _ in (80, 90)
        for name in ("y_1_tiles_forward", "row_products", "y_1_tiles_rows", "y_1_tiles_keys")
    ]
    assert main([*words, "--dtype", "int8"]) == 1
    assert "there are no kernels for dtype 'int8'" in capsys.readouterr().err


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match=r"there is no target 70: 80 or 90"):
        ta.kernels("mhsa", 70)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ta.MissingPartError, match="pip install triton"):
        ta.kernels("mhsa")


def test_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row for each design with kernels, of the most that any of them uses."""
    catalogue = Catalogue()
    few = [entry for entry in catalogue if entry.name in ("mhsa", "mlp")]
    monkeypatch.setattr(Catalogue, "__iter__", lambda self: iter(few))
    monkeypatch.setattr("tensornet_attn.compiler.kernels", lambda design, target: FOUND[design.name])
    assert kernels_of_designs(catalogue).splitlines()[-3:] == [
        "| design | kernels | registers, sm_80 | stack, sm_80 | shared memory, sm_80 "
        "| registers, sm_90 | stack, sm_90 | shared memory, sm_90 |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        "| [mhsa](designs/mhsa.md) | 2 | 255 | 64 | 9,000 | 255 | 64 | 9,000 |",
    ]
