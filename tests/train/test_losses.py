"""Auxiliary losses in a run: added to the task's with their weights, logged, left out of validation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tests.refusals import refusal
from tests.train import runs

NAMES = [f"loss/layers.0.mixer.{name}" for name in ("importance", "balance", "router_z")]


def routed(**changes: Any) -> dict[str, Any]:
    """One layer of moa with its losses."""
    return runs.small(
        design="moa_regularised", legs={"e": 4}, settings={"k": 2} | changes.pop("settings", {}), **changes
    )


def column(out: Path, name: str) -> list[float]:
    return [line[name] for line in runs.curve(out) if name in line]


def test_each_loss_is_logged_at_each_step_and_none_of_a_validation(tmp_path: Path) -> None:
    summary = ta.train(routed(tensorboard=True), out=tmp_path / "out")
    lines = runs.curve(tmp_path / "out")
    steps = [line for line in lines if "loss" in line]
    assert [list(line) for line in steps] == [["step", "loss", "lr", "grad_norm", *NAMES]] * 10
    assert not any(name.startswith("loss/") for line in lines if "eval_loss" in line for name in line)
    assert sorted(summary["eval"]) == ["eval_accuracy", "eval_loss"]
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars(NAMES[1])] == list(range(1, 11))
    assert {*NAMES, "loss", "eval/loss"} <= {*events.Tags()["scalars"]}


def test_weights_of_zero_leave_the_run_as_it_is_without_losses(tmp_path: Path) -> None:
    ta.train(routed(settings={"balance_weight": 0, "z_weight": 0}), out=tmp_path / "zero")
    ta.train(runs.small(design="moa", legs={"e": 4}, settings={"k": 2}), out=tmp_path / "none")
    for name in ("loss", "eval_loss"):
        assert column(tmp_path / "zero", name) == pytest.approx(column(tmp_path / "none", name), rel=1e-5)
    assert "loss/layers.0.mixer.balance" not in runs.curve(tmp_path / "none")[0]


def test_a_weight_trains_its_loss_down(tmp_path: Path) -> None:
    found = {}
    for weight in (0, 3):
        out = tmp_path / str(weight)
        ta.train(routed(settings={"balance_weight": 0, "z_weight": weight}, steps=30, lr=0.02), out=out)
        found[weight] = column(out, "loss/layers.0.mixer.router_z")
    assert found[0][0] == found[3][0]
    assert found[3][-1] < 0.5 * found[0][-1]


def test_a_step_minimises_the_task_and_the_weighted_losses(tmp_path: Path) -> None:
    """The norm of the first gradient is that of the sum, computed by hand."""
    run = routed(settings={"importance_weight": 0.5, "balance_weight": 0.25, "z_weight": 0.125}, steps=1, eval_every=1)
    ta.train(run, out=tmp_path / "out")
    first = runs.curve(tmp_path / "out")[0]
    from tensornet_attn.tasks import task_named
    from tensornet_attn.train.session import seed_part

    task = task_named(run["task"], seed=0, **run["options"])
    spec = ta.models.load(json.loads(json.dumps(_model(tmp_path / "out"))))
    seed_part(0, 0, 0)
    model = ta.models.make(spec)
    batch = task.samples("train", 0, run["batch"])
    logits, losses = model(batch.tokens, batch.key_mask, losses=True)
    loss, count = task.loss(logits, batch)
    whole = loss / count + sum(spec.loss_weights[name] * value for name, value in losses.items())
    norm = torch.stack([g.norm() for g in torch.autograd.grad(whole, model.parameters())]).norm()
    assert first["loss"] == pytest.approx((loss / count).item(), rel=1e-6)
    assert first["grad_norm"] == pytest.approx(norm.item(), rel=1e-5)
    assert [first[name] for name in NAMES] == pytest.approx([value.item() for value in losses.values()], rel=1e-6)


def _model(out: Path) -> dict[str, Any]:
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load((out / "run.yaml").read_text())["model"]


def test_parts_of_a_batch_have_the_losses_of_the_whole(tmp_path: Path) -> None:
    for parts in (1, 3):
        ta.train(routed(accumulate=parts), out=tmp_path / str(parts))
    for name in ("loss", *NAMES):
        assert column(tmp_path / "1", name) == pytest.approx(column(tmp_path / "3", name), rel=1e-5)


def test_a_loss_that_is_not_finite_is_named(tmp_path: Path) -> None:
    size = {"map": "log", "of": {"mean": "m", "of": "less[m]"}}
    diagram = {"squares": "y[n f] y[n f] -> n", "less": "-1 * squares[n] -> n", "size": size}
    layers = [{"mixer": {"design": "mhsa", "legs": {"h": 2}}, "mlp": {"design": runs.CALM | {"diagram": diagram}}}]
    model = {"kind": "language_model", "vocabulary": 16, "length": 16, "width": 8, "layers": layers}
    without = dict.fromkeys(("design", "legs", "mlp", "width", "depth"))
    assert refusal(
        ta.train, runs.small(model={"tensornet": 1, "name": "bad", "model": model}, **without), out=tmp_path / "out"
    ) == (
        "step 1: the loss 'layers.0.mlp.size' is nan; the first output that is not finite is in "
        "'layers.0.mlp.design'; there is no checkpoint yet."
    )
