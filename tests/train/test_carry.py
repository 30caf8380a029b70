"""Runs whose memory is the decoding cache: what is judged is one long text, and a checkpoint goes on as the run did."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import tensornet_attn as ta
from tensornet_attn.train.trained import open_run
from tests.refusals import refusal
from tests.train import runs


def stack(**changes: object) -> dict[str, object]:
    options = {"length": 8, "streams": 4}
    stack = {"design": "linear", "depth": 2, "positions": "none", "memory": 4, "memory_kind": "cache", "batch": 4}
    return runs.small(task="char_lm", options=options, steps=3, eval_every=3, **stack) | changes


@pytest.mark.parametrize("design", ["linear", "fast_weight1"])
def test_a_split_is_judged_as_one_long_text_a_stream(tmp_path: Path, design: str) -> None:
    ta.train(stack(design=design), out=tmp_path)
    trained = open_run(tmp_path)
    batches = [trained.task.samples("test", start, 4) for start in range(0, 24, 4)]
    tokens, targets = (torch.cat([getattr(one, name) for one in batches], 1) for name in ("tokens", "targets"))
    with torch.no_grad():
        whole = F.cross_entropy(trained.model(tokens).flatten(0, 1), targets.flatten())
        apart = F.cross_entropy(trained.model(tokens.view(-1, 8)).flatten(0, 1), targets.flatten())
    loss = trained.judge("test", samples=24).means()["loss"]
    assert loss == pytest.approx(float(whole), rel=1e-6)
    assert abs(loss - float(apart)) > 1e-5


def test_a_run_goes_on_with_its_cache(tmp_path: Path) -> None:
    """Two runs of other lengths, and one that was extended: the same curve, bit by bit."""
    run = runs.carrying(schedule="constant")
    ta.train(run | {"steps": 10}, out=tmp_path / "whole")
    ta.train(run | {"steps": 6}, out=tmp_path / "cut")
    ta.train(run | {"steps": 10}, out=tmp_path / "cut")
    losses = [[line["loss"] for line in runs.curve(tmp_path / name) if "loss" in line] for name in ("whole", "cut")]
    assert losses[0] == losses[1]
    assert runs.weights(tmp_path / "whole", 10) == runs.weights(tmp_path / "cut", 10)


@pytest.mark.parametrize("option", ["compile", "checkpoint_activations"])
def test_what_calls_a_cache_twice_is_refused(tmp_path: Path, option: str) -> None:
    assert refusal(ta.train, stack() | {option: True}, out=tmp_path) == (
        f"'linear' has 'memory_kind: cache', which excludes '{option}': leave it out."
    )
