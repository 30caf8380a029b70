"""Where Triton cannot run: a sentence that says why, and the plan that is used instead."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.errors import InputError

NO_GPU = "there is no GPU, and triton runs on the CPU only where TRITON_INTERPRET=1 is set"


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("tensornet_attn.nn.triton.target.find_spec", lambda name: True)


def test_a_warning_and_the_plan_of_torch(without_gpu: None) -> None:
    with pytest.warns(UserWarning, match="cannot run") as caught:
        module = ta.compile("hard_fish", backend="triton")
    assert [str(one.message) for one in caught] == [
        f"hard_fish: backend 'triton' cannot run: {NO_GPU}. 'torch' is used instead."
    ]
    assert module.plan.backend == "torch"
    assert module.explain().splitlines()[1] == f"  not triton: {NO_GPU}"
    module(torch.zeros(1, 3, 512))


def test_strict(without_gpu: None) -> None:
    with pytest.raises(InputError) as caught:
        ta.compile("hard_fish", backend="triton", strict=True)
    assert str(caught.value) == f"hard_fish: strict, but backend 'triton' cannot run: {NO_GPU}."


def test_not_installed(without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensornet_attn.nn.triton.target.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="triton is not installed: 'pip install triton' on Linux"):
        ta.compile("hard_fish", backend="triton")


def test_bfloat16_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.warns(UserWarning, match="the interpreter of triton rounds bfloat16 wrongly"):
        ta.compile("hard_fish", backend="triton", dtype=torch.bfloat16)


def test_auto_without_a_gpu_is_torch(without_gpu: None) -> None:
    assert ta.compile("hard_fish").plan.backend == "torch"
