"""C++ of tile programs: what is printed for every design, and values and gradients where a compiler is there."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.graph import build
from tensornet_attn.runtime.cpp import reason_against_cpp
from tensornet_attn.tiles.cpp.source import RegionSource, region_of, source
from tensornet_attn.tiles.program import Unfit
from tests.agreement import modules
from tests.masked import MASKS
from tests.masked import design as masked
from tests.random_call import F64, same_results

needs_compiler = pytest.mark.skipif(bool(reason_against_cpp()), reason="there is no C++ compiler")
SINK_AND_TABLE = """
name: mixed
extends: talking_heads
legs: {f: 12, g: head 3, h: head 2, e: head 2, p: relative 5}
settings: {w: 20}
weights:
  sink: {legs: h, init: normal(1)}
  B: {legs: h p, init: normal(1)}
diagram:
  near: {rel_shift: p, to: m, of: B}
  A:
    softmax: m
    mask: window(w, 0) and dilated(2)
    sink: sink[h]
    of: Pl[g h] Q[n g d] K[m g d] + near[h n m] -> h n m
"""
THSA = {"f": 16, "r": 12, "s": 10}
DESIGNS = [
    "talking_heads",
    "transformer_xl",
    "deberta_v2",
    "mgk",
    "smgk",
    "mgk_em",
    "gau",
    "gfish",
    "fox",
    "differential",
]
DESIGNS += ["gemma2", "epa_xl", "thsa", "l2_attention", "mish", "thsa_kron", "diffllama"]


def regions(source: Any, **options: Any) -> list[RegionSource]:
    """The C++ of all kernels of tiles of a design."""
    schedule = plan_of(build(ta.load(source), **options), "triton").schedule
    kinds = ("tiles", "blockwise")
    steps = [step for step in schedule.steps if step.kernel is not None and step.kernel.kind in kinds]
    found = []
    for step in steps:
        try:
            found.append(region_of(schedule, step))
        except Unfit:
            continue
    return found


@pytest.mark.parametrize("name", ta.list_designs())
def test_the_text_declares_what_it_reads(name: str) -> None:
    for region in regions(name):
        text = source(region)
        assert text.count("{") == text.count("}")
        assert not re.search(r"@\w+@", text)
        for part in region.text.split('extern "C"')[1:]:
            own = set(re.findall(r"\b(?:tile\d*|in\d+|total|entries|turned\d*)_\w+", part))
            declared = set(re.findall(r"real\* (\w+) =", part)) | set(re.findall(r"long\* (\w+) =", part))
            declared |= set(re.findall(r"long (\w+) =", part)) | set(re.findall(r"\*(\w+_step) =", part))
            assert own <= declared


def test_a_stored_tile_is_made_once() -> None:
    (region,) = regions("talking_heads")
    forward, backward = region.text.split('extern "C"')[1:]
    assert forward.count("multiply_turned(") == 1  # the scores
    assert backward.count("multiply_turned(") == 2  # the scores, the gradient of the maps
    assert backward.count("multiply(") == 3  # the gradients of queries, keys and values


def test_factors_outside_of_products_save_products() -> None:
    (region,) = regions("gfish")
    forward = region.text.split('extern "C"')[1]
    loop = forward[: forward.index("multiply_turned(")].rpartition("for (int at_")[2]
    assert loop.startswith("g = 0; at_g < 4;")  # not for each g and k


def test_small_numbers_of_rows_do_not_transpose_keys() -> None:
    (region,) = regions("hard_fish")
    assert "if (turns && turned" in region.text


def test_a_mask_leaves_out_blocks_that_it_hides() -> None:
    (region,) = regions(masked("prefix(p)", own=False))
    assert re.search(r"if \(!\(.*continue;", region.text)
    (region,) = regions(masked("window(w, 0)", own=False))
    assert not re.search(r"if \(!\(.*continue;", region.text)
    assert "start < tl::minimum(key_end" in region.text


def compared(source: Any, **options: Any) -> tuple[nn.Module, nn.Module]:
    """The design as written, and by C++."""
    design = ta.load(source) if isinstance(source, str) else source
    torch.manual_seed(0)
    oracle = ta.compile(design, "reference", **options).to(F64).eval()
    module = ta.compile(design, "cpp", dtype=F64, **options).to(F64).eval()
    module.load_state_dict(oracle.state_dict())
    return oracle, module


def check(oracle: nn.Module, module: nn.Module, width: int, lengths: tuple[int, ...] = (70, 150)) -> None:
    assert on_cpp(module)
    n, m = lengths
    draw = torch.Generator().manual_seed(1)
    x = torch.randn(2, n, width, generator=draw, dtype=F64)
    both = [x, torch.randn(2, m, width, generator=draw, dtype=F64)] if "memory" in inputs_of(module) else [x]
    keep = torch.rand(2, n, m if len(both) > 1 else n, generator=draw) < 0.7
    keep[:, 3] = False
    for options in ({}, {"mask": keep}):
        same_results(module, oracle, both, options)


def on_cpp(module: nn.Module) -> bool:
    """Whether C++ computes a kernel of a module."""
    return any(step.kernel is not None and step.kernel.kind == "native" for step in module.plan.schedule.steps)  # type: ignore[union-attr, operator]


def inputs_of(module: nn.Module) -> list[str]:
    return [*module.design.inputs]  # type: ignore[union-attr, list-item]


@needs_compiler
def test_sinks_tables_and_masks_that_are_no_interval() -> None:
    oracle, module = compared(SINK_AND_TABLE)
    check(oracle, module, 12)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("name", DESIGNS)
def test_values_and_gradients(name: str) -> None:
    width = {"thsa": 16, "thsa_kron": 128}.get(name, 64)  # at 128, a program of thsa_kron has 8 of 16 tiles of a leg
    oracle, module = compared(ta.load(name, legs=THSA if name == "thsa" else {"f": width}))
    check(oracle, module, width)


@needs_compiler
@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
def test_masks_of_the_table(mask: str) -> None:
    oracle, module = modules(masked(mask, own=False, wide=True), "cpp")
    assert on_cpp(module)
    for n, m in ((70, 60), (9, 70), (300, 300)):
        inputs = [torch.randn(1, length, 6, dtype=F64) for length in (n, m)]
        options = {"mask": torch.rand(n, m) < 0.6} if n < m else {}
        same_results(module, oracle, inputs, options)
