"""Kernels of regions around a softmax compile for two GPUs, in their registers and memory."""

from __future__ import annotations

import sys

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn import compiler
from tensornet_attn.graph import build
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.nn.triton.resources import Used, compiling

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="triton is for Linux alone")
ROWS = 256
OTHERS = (
    "alibi cross differential epa_xl fish gaussian gfish gfish_release gqa hard_gfish heads_only mgk mgk_hard mish moa "
    "mqa skip_left skip_right smgk talking_heads thsa thsa_low_rank trainable_heads_only transformer_xl"
).split()


def used_by(name: str, target: int, dtype: torch.dtype) -> list[Used]:
    """What each kernel of a shipped design uses, forward and backward, at its own sizes."""
    design = ta.load(name)
    module = CompiledDesign(design, compiler.plan_of(build(design), "triton"), compiler._realise, None, dtype)
    sizes = [(1, ROWS, *(design.legs[leg] for leg in t.legs[1:])) for t in module.plan.graph.of_role("input")]
    with compiling(target) as used:
        module(*(torch.zeros(*size, dtype=dtype, requires_grad=True) for size in sizes)).sum().backward()
    return [one for one in used if "_tiles_" in one.kernel]


def check(name: str, target: int, dtype: torch.dtype) -> None:
    used = used_by(name, target, dtype)
    assert {one.kernel.rpartition("_")[2] for one in used} >= {"forward", "rows", "keys"}
    assert [(one, one.reasons_against) for one in used if one.reasons_against] == []


@pytest.mark.parametrize("name", ["mhsa", "hard_fish"])
def test_a_slice(name: str) -> None:
    check(name, 90, torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("target", [80, 90])
def test_others(name: str, target: int) -> None:
    check(name, target, torch.bfloat16)
