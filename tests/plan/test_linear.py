"""Which boxes sum the keys first, why others do not, and that the result is the same."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tests.agreement import same_outcome

from .linear_cases import LINEAR, REFUSED, SIZES

SHIPPED = ("linear", "mlk", "smlk", "thsa_elu", "thsa_square", "kernel_fish", "kernel_gfish")
CHOSEN = "linear attention: the keys are summed first"


def draw(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def modules(source: Any, causal: bool | None, backend: str = "torch", **options: Any) -> tuple[Any, Any]:
    design = ta.load(source)
    ours, oracle = (ta.compile(design, own, causal, dtype=torch.float64, **options) for own in (backend, "reference"))
    state = {name: draw(*value.shape, seed=i) for i, (name, value) in enumerate(oracle.state_dict().items())}
    ours.load_state_dict(state)
    oracle.load_state_dict(state)
    return ours, oracle


def same_with_masks(ours: Any, oracle: Any, n: int, m: int, batch: tuple[int, ...], *masks: Tensor) -> None:
    """Equal outcomes without masks, with one of keys, with one of pairs beside it, and with each of `masks`."""
    inputs, keys = [draw(*batch, n, 4), draw(*batch, m, 4, seed=1)], draw(*batch, m, seed=2) > -0.3
    pairs = {"mask": draw(n, m, seed=3) > -0.3, "key_mask": keys}
    for see in ({}, {"key_mask": keys}, pairs, *({"mask": mask} for mask in masks)):
        same_outcome(ours, oracle, inputs, **see)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", LINEAR)
def test_the_keys_are_summed_first_and_the_result_is_the_same(name: str, causal: bool) -> None:
    ours, oracle = modules(LINEAR[name], causal)
    assert f"  A.o: {CHOSEN}" in ours.explain()
    heads = [SIZES[leg] for leg in ours.plan.graph.step["A"].legs if leg not in ("n", "m")]
    for (n, m), batch in itertools.product([(5, 5), (3, 6), (6, 3), (1, 1)], [(), (2,)]):
        same_with_masks(ours, oracle, n, m, batch, draw(*batch, *heads, n, m, seed=4) > -0.3)


def check_refusal(source: Any, reason: str | None, causal: bool | None, chosen: str, row: str) -> None:
    """The row of the table refuses for this reason, or is chosen where there is none; the result is right."""
    ours, oracle = modules(source, causal)
    assert (chosen if reason is None else f"\n    not {row}: {reason}") in ours.explain()
    assert (chosen in ours.explain()) == (reason is None)
    same_outcome(ours, oracle, [draw(2, 5, 4), draw(2, 6, 4, seed=1)])


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_the_reason_and_still_right(name: str) -> None:
    check_refusal(*REFUSED[name], False, CHOSEN, "linear attention")


def test_short_sequences_keep_their_scores() -> None:
    told = ta.compile("linear", n=16, device_costs="generic").explain()
    reason = "summing over the keys first would take 1.14 times as long at the rates of cpu"
    assert CHOSEN not in told
    assert f"\n    not linear attention: {reason}" in told


def test_ties_go_to_linear_attention_which_gains_with_the_length() -> None:
    told = ta.explain("kernel_gfish", "torch", causal=True, device_costs="cpu")
    assert "predicted: 81.9 milliseconds instead of 74.6 milliseconds, as near as predictions are" in told
    assert "instead of 101 milliseconds, as near as predictions are: linear attention gains with the length\n" in told


@pytest.mark.parametrize("name", SHIPPED)
@pytest.mark.parametrize("causal", [False, True])
def test_shipped_designs(name: str, causal: bool) -> None:
    chunk = {"thsa_elu": 16, "thsa_square": 16, "kernel_fish": 128, "kernel_gfish": 128}.get(name, 64)
    how = f", in chunks of {chunk}" if causal else ""
    told = f"  A.o: {CHOSEN}{how}; with a run-time mask, the scores are computed"
    lines = ta.compile(name, causal=causal, device_costs="generic").explain().splitlines()
    assert any(line.partition("; inside: ")[0] == told for line in lines)


@pytest.mark.parametrize("name", ["linear", "kernel_gfish"])
def test_inputs_of_any_batch_even_none(name: str) -> None:
    for causal in (False, True):
        ours, oracle = modules(ta.load(name, {"f": 8, "h": 2, "d": 4}), causal)
        for batch in ((), (0,), (2, 3)):
            same_outcome(ours, oracle, [draw(*batch, 5, 8)])
