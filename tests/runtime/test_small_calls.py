"""Calls much smaller than a block, with gradients: plain code, without the block loop (`tests/conftest.py`)."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.runtime import blockwise
from tests.designs.cases import CASES, check, compiled, inputs_of
from tests.hidden_cases import BAD, F64, MASKS, Case
from tests.hidden_cases import check as check_hidden

NAMES = "gfish talking_heads mish transformer_xl thsa_xl cope mgk_em deberta_v2 t5 gemma2_local stick_breaking".split()


@pytest.fixture(autouse=True)
def _plain() -> Iterator[None]:
    with patch.object(blockwise, "KEEP", 1), patch.object(blockwise, "blocks", None):
        yield


@pytest.mark.parametrize("name", NAMES)
def test_values_and_gradients_are_those_of_plain_loops(name: str) -> None:
    case, inputs = CASES[name], inputs_of(name)
    keys, draw = case.inputs[-1], torch.Generator().manual_seed(2)
    for causal in case.causal:
        module = compiled(name, "torch", causal)
        assert "blockwise(" in str(module.source)
        check(name, module, inputs, causal)
        check(name, module, inputs, causal, key_mask=torch.rand(2, keys, generator=draw) < 0.6)
        check(name, module, inputs, causal, mask=torch.rand(case.inputs[0], keys, generator=draw) < 0.6)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("form", ["a map of it", "two boxes", "times"])
def test_what_a_mask_hides_reaches_neither_the_output_nor_a_gradient(form: str, mask: str) -> None:
    case = Case("exp", "softmax", form, mask)
    if case.possible:
        check_hidden(case, [("torch", {"linear_memory": True})], 24, F64, BAD[2])


def test_a_call_as_large_as_a_block_runs_block_by_block() -> None:
    module = ta.compile(ta.load("talking_heads", legs={"f": 8}))
    assert module(torch.zeros(1, 64, 8)).shape == (1, 64, 8)
    with patch.object(blockwise, "KEEP", 64), pytest.raises(TypeError, match="not callable"):
        module(torch.zeros(1, 64, 8))


def test_second_derivatives() -> None:
    module, (x,) = compiled("talking_heads", "torch"), inputs_of("talking_heads", batch=1)
    x = x[:, :3].detach().requires_grad_()
    assert torch.autograd.gradgradcheck(module, (x,), fast_mode=True)


def test_equal_calls_are_checked_once_and_others_anew() -> None:
    module = ta.compile(ta.load("mhsa", legs={"f": 8}))
    x = torch.randn(2, 5, 8)
    assert torch.equal(module(x), module(x))
    for wrong in (torch.randn(2, 5, 7), torch.zeros(2, 5, 8, dtype=torch.int64), torch.randn(8)):
        with pytest.raises(ta.InputError):
            module(wrong)
        assert module(x).shape == (2, 5, 8)
    assert module(torch.randn(3, 8)).shape == (3, 8)
