"""Tuning a compiled design on a GPU that is played, with kernels in the interpreter."""

from __future__ import annotations

import itertools
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.errors import InputError
from tensornet_attn.nn import tune
from tensornet_attn.runtime.triton import configure
from tests.refusals import refusal
from tests.triton.agreement import near
from tests.triton.played import play

NO_GPU = "tune: there is no GPU to time kernels on; leave it out to use the cost model."
NO_KERNELS = "linear: the plan runs on 'torch'; only 'triton' can be tuned."


@pytest.fixture
def _played(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call takes longer than the one before: the first candidate is the fastest."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    play(monkeypatch, itertools.accumulate(itertools.count()).__next__)


@pytest.mark.usefixtures("_played")
def test_what_is_tuned_is_used_now_and_later() -> None:
    design = ta.load("linear", legs={"f": 16, "h": 2})
    kinds = {"dtype": torch.float64, "n": 64}
    module = ta.compile(design, "triton", causal=True, **kinds)
    tune.tune_design(module)
    chosen = {key: candidates[0] for key, candidates in configure.ASKED.items()}
    assert chosen == configure.CHOICES
    assert [key.split()[0] for key in configure.CHOICES] == ["linear"]
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    wanted = ta.reference(design, causal=True, dtype=torch.float64)
    wanted.load_state_dict(module.state_dict())
    near(module(x), wanted(x))
    configure.CHOICES.clear()
    ta.compile(design, "triton", causal=True, **kinds)
    assert chosen == configure.CHOICES
    configure.CHOICES.clear()


@pytest.mark.usefixtures("_played")
def test_without_a_folder_nothing_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensornet_attn.runtime.triton.cache.user_folder", Mock(side_effect=InputError("no folder")))
    timed: list[object] = []
    assert refusal(tune.tuned, lambda: timed.append(0), "text") == "no folder"
    assert not timed


def test_without_a_gpu_nothing_is_timed() -> None:
    assert refusal(ta.compile, "linear", "triton", tune=True) == NO_GPU


def test_without_kernels_there_is_nothing_to_time() -> None:
    assert refusal(ta.compile, "linear", "torch", tune=True) == NO_KERNELS
