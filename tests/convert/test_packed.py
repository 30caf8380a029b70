"""Sequences packed into one row of a converted model: each is computed by itself, in designs that take no mask too."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tensornet_attn.convert.replace import convert_model
from tensornet_attn.convert.wrap import Swapped
from tensornet_attn.errors import InputError
from tests.convert import models

LENGTHS = (2, 4, 3)
CLOSE = {"rtol": 0, "atol": 1e-5}


def packed(positions: bool = True) -> dict[str, Tensor]:
    """Three sequences in one row."""
    ids = models.inputs("llama")["input_ids"][:1]
    places = torch.cat([torch.arange(length) for length in LENGTHS])[None]
    return {"input_ids": ids, **({"position_ids": places} if positions else {})}


def apart(model: Any) -> Tensor:
    rows = packed()["input_ids"].split(LENGTHS, 1)
    return torch.cat([model(row, use_cache=False)[0] for row in rows], 1)


def words(model: Any) -> Callable[[], set[str]]:
    """Which arguments the designs of a model are called with."""
    found = set[str]()
    for module in model.modules():
        if isinstance(module, Swapped):
            module.design.register_forward_pre_hook(
                lambda _, given, named: found.update(key for key, value in named.items() if value is not None),
                with_kwargs=True,
            )
    return lambda: found


@pytest.mark.parametrize("name", ["llama", "mistral"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_positions_that_start_anew(name: str, implementation: str) -> None:
    before = models.made(name, attn_implementation=implementation)
    after = convert_model(copy.deepcopy(before), "thsa")
    given = words(after)
    with torch.no_grad():
        found = after(**packed(), use_cache=False)[0]
        torch.testing.assert_close(found, apart(before), **CLOSE)
        assert given() == {"cu_seqlens"}


def test_designs_without_a_mask_take_them() -> None:
    model = convert_model(models.made("llama"), "fmm_fast_weight1", init="fresh")
    with torch.no_grad():
        torch.testing.assert_close(model(**packed(), use_cache=False)[0], apart(model), **CLOSE)


def test_offsets_without_positions() -> None:
    before = models.made("gpt2")
    model = convert_model(before, "linear", init="fresh")
    attention = next(module for module in model.modules() if isinstance(module, Swapped))
    x = torch.randn(1, 9, 24)
    offsets = torch.tensor([0, 2, 6, 9], dtype=torch.int32)
    found = attention(hidden_states=x, attention_mask=None, cu_seq_lens_q=offsets)[0]
    wanted = [attention(hidden_states=row, attention_mask=None)[0] for row in x.split(LENGTHS, 1)]
    torch.testing.assert_close(found, torch.cat(wanted, 1))
    mask = torch.ones(1, 1, 9, 9, dtype=torch.bool).tril()
    with pytest.raises(InputError, match="it takes no packed sequences without a mask"):
        attention(hidden_states=x, attention_mask=mask, cu_seq_lens_q=offsets)
