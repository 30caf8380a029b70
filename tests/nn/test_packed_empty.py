"""Packed calls in which some documents are empty: those are as if they were not there, in outputs, gradients, means."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from tests.designs.cases import CASES, compiled
from tests.nn.test_packed import DESIGNS, Called, key_lengths, made, offsets, padded, rows_of, words
from tests.random_call import F64, assert_same
from tests.random_call import results as results_of
from tests.refusals import refusal

EMPTY = ((0, 5), (5, 0), (0, 0, 5, 0, 3, 5, 1, 0), (0,), (0, 0))


def without_empty(name: str, causal: bool | None, lengths: Sequence[int]) -> None:
    """Outputs and gradients are those of the other documents; of none, those of no document."""
    module = made(name, causal)
    inputs, sides = rows_of(module, lengths), [lengths, key_lengths(lengths)]

    def call(*given: Tensor) -> Tensor:
        parts = [x.split([*own], 1) for x, own in zip(given, sides, strict=False)]
        found = [module(*own) for own in zip(*parts, strict=True) if own[0].shape[1]]
        return torch.cat(found, 1) if found else sum((x * 0).sum() for x in given) + given[0]

    for dear in (False, True):
        with padded(dear):
            found = results_of(module, inputs, words(module, lengths))
        wanted = results_of(Called(module, call), inputs, {})
        if not any(lengths):
            assert found["output"].shape[1] == 0  # type: ignore[union-attr]
            frozen = {f"gradient of {name}" for name, weight in module.named_parameters() if not weight.requires_grad}
            assert {name for name, value in found.items() if value is None} == frozen
            found["output"] = wanted["output"]
        assert_same(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", EMPTY, ids=str)
@pytest.mark.parametrize(("name", "causal"), DESIGNS)
def test_a_document_may_be_empty(name: str, causal: bool | None, lengths: tuple[int, ...]) -> None:
    without_empty(name, causal, lengths)


@pytest.mark.parametrize("lengths", EMPTY, ids=str)
@pytest.mark.parametrize(("name", "causal"), [("transformer_xl", True), ("band", False), ("cross", False)])
def test_a_document_may_be_empty_in_some(name: str, causal: bool, lengths: tuple[int, ...]) -> None:
    without_empty(name, causal, lengths)


def test_an_empty_document_counts_in_no_mean() -> None:
    module = compiled("moa_regularised", "torch", True).train()
    (x,) = rows_of(module, (3, 2))
    y, losses = module(x, cu_seqlens=offsets((3, 2)), losses=True)
    z, more = module(x, cu_seqlens=offsets((0, 3, 0, 2)), losses=True)
    torch.testing.assert_close(y, z)
    for name, value in losses.items():
        torch.testing.assert_close(more[name], value)
    wanted = "moa_regularised: all documents are empty, so there are no losses and states."
    assert refusal(module, x[:, :0], cu_seqlens=offsets((0, 0)), losses=True) == wanted


@pytest.mark.parametrize("name", ["mhsa_rope", "transformer_xl", "band", "fmm_fast_weight1", "gated_deltanet"])
def test_a_document_of_a_traced_call_may_be_empty(name: str) -> None:
    module = made(name, True)
    torch._dynamo.reset()
    whole = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for lengths in ((0, 0, 5, 0), (3, 0, 2)):
        inputs = rows_of(module, lengths)
        wanted = results_of(module, inputs, {"cu_seqlens": offsets(lengths)})
        given = {"cu_seqlens": offsets(lengths), "max_seqlen": 6}
        assert_same(results_of(Called(module, lambda *xs, own=given: whole(*xs, **own)), inputs, {}), wanted)


@pytest.mark.parametrize("name", ["mhsa", "linear", "fmm_fast_weight1", "gated_deltanet"])
def test_a_document_of_a_cache_may_be_empty(name: str) -> None:
    """It begins in a later call."""
    module = made(name, None if CASES[name].causal == (None,) else True)
    (x,) = rows_of(module, (3, 0, 4))
    step = torch.randn(3, 1, x.shape[-1], dtype=F64).abs()
    with torch.no_grad():
        cache = module.new_cache()
        y = module(x, cu_seqlens=offsets((3, 0, 4)), cache=cache)
        torch.testing.assert_close(y, torch.cat([module(one) for one in x.split((3, 4), 1)], 1))
        wanted = [
            module(torch.cat((x[:, :3], step[:1]), 1)),
            module(step[1:2]),
            module(torch.cat((x[:, 3:], step[2:]), 1)),
        ]
        torch.testing.assert_close(module(step, cache=cache), torch.cat([one[:, -1:] for one in wanted]))
