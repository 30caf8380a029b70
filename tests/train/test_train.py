"""A run from beginning to end: what is in its folder, and what is refused before the first step."""

from __future__ import annotations

import errno
import itertools
import json
import math
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

import tensornet_attn as ta
from tensornet_attn.files import MARK
from tensornet_attn.train import start
from tensornet_attn.train.config import Run
from tensornet_attn.train.folder import checkpoints, config_hash
from tensornet_attn.train.trained import open_run
from tests.refusals import refusal
from tests.train import runs

KEYS = ("task", "model", "designs", "seed", "steps", "parameters", "macs_per_token", "peak_memory_bytes")
KEYS += ("tokens_per_second", "seconds", "eval", "command", "versions")


def refused(tmp_path: Path, run: dict[str, Any]) -> str:
    return refusal(ta.train, run, out=tmp_path / "out")


def test_the_folder_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    summary = ta.train(runs.small(), out=out, command="train")
    assert summary == json.loads((out / "summary.json").read_text())
    assert set(KEYS) <= set(summary)
    assert (summary["task"], summary["model"], summary["designs"], summary["steps"]) == ("mqar", "mhsa", ["mhsa"], 10)
    model = ta.models.load((out / "run.yaml").read_text().partition("\nmodel:\n")[2].partition("\nsteps:")[0] + "\n")
    assert summary["parameters"] == model.cost().parameters
    assert summary["macs_per_token"] == model.cost(n=16).macs / 16
    lines = runs.curve(out)
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 11))
    assert [line["step"] for line in lines if "eval_loss" in line] == [5, 10]
    assert summary["eval"] == {name: value for name, value in lines[-1].items() if name.startswith("eval_")}
    assert [saved.step for saved in checkpoints(out / "checkpoints")] == [4, 8, 10]
    assert (out / "curves.svg").read_text().startswith("<?xml")
    told = capsys.readouterr().err.splitlines()
    assert told[0].startswith("step 5/10  loss 2.")
    assert ta.train(runs.small(), out=out) == summary
    assert capsys.readouterr().err == f"'{out}' is finished: 10 steps.\n"


def test_the_seed_fixes_everything(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        ta.train(runs.small(seed=seed, dropout=0.2), out=tmp_path / name)
    curves = [runs.curve(tmp_path / name) for name in "abc"]
    assert curves[0] == curves[1]
    assert curves[0] != curves[2]


def test_label_smoothing_is_in_the_loss_of_training_and_not_in_that_of_validation(tmp_path: Path) -> None:
    """One step that moves nothing: both losses are those of the first weights."""
    still = runs.small(steps=1, lr=1e-12, weight_decay=0.0, eval_samples=8)
    ta.train(still | {"label_smoothing": 0.3}, out=tmp_path / "smooth")
    ta.train(still, out=tmp_path / "plain")
    smooth, plain = (runs.curve(tmp_path / name) for name in ("smooth", "plain"))
    trained = open_run(tmp_path / "smooth")
    batch = trained.task.samples("train", 0, 8)
    logits, targets = trained.model(batch.tokens).detach(), batch.targets.flatten()
    wanted = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets, label_smoothing=0.3)
    assert smooth[0]["loss"] == pytest.approx(wanted.item(), rel=1e-5)
    assert smooth[0]["loss"] != pytest.approx(plain[0]["loss"], rel=1e-3)
    assert smooth[1]["eval_loss"] == pytest.approx(plain[1]["eval_loss"], rel=1e-6)
    assert refusal(ta.train, still, out=tmp_path / "out", label_smoothing=1.0) == (
        "option 'label_smoothing': input should be less than 1, got 1.0; it is the share of a target's probability "
        "spread over all answers."
    )


def test_a_checkpoint_of_a_version_without_label_smoothing_is_one_of_the_same_run() -> None:
    """The hash of this run when there was no such option: without smoothing it is the same."""
    before = "8f17a73e2ab57887408fa43ea5f74fee9137b09b65177dc3a3a7c31c9c43ba88"
    assert config_hash(Run(**runs.small())) == before
    assert config_hash(Run(**runs.small(label_smoothing=0.1))) != before


def test_activations_computed_again_change_nothing(tmp_path: Path) -> None:
    for again in (False, True):
        ta.train(runs.everything(steps=6, checkpoint_activations=again), out=tmp_path / str(again))
    assert runs.curve(tmp_path / "False") == runs.curve(tmp_path / "True")


@pytest.mark.parametrize("precision", ["bf16", "bf16-true"])
def test_precisions(tmp_path: Path, precision: str) -> None:
    ta.train(runs.small(), out=tmp_path / "32")
    ta.train(runs.small(precision=precision), out=tmp_path / precision)
    one, other = (runs.curve(tmp_path / name)[-1]["eval_loss"] for name in ("32", precision))
    assert one != other
    assert one == pytest.approx(other, rel=0.02)


@pytest.mark.parametrize("task", ["listops_mini", "reverse"])
def test_other_kinds_of_tasks(tmp_path: Path, task: str) -> None:
    layer = {"mixer": {"design": "mhsa", "legs": {"h": 2}}}
    sizes = {"vocabulary": 12, "length": 8, "width": 8}
    pair = {
        "kind": "seq2seq",
        **sizes,
        "encoder": [layer],
        "decoder": [layer | {"cross": {"design": "cross", "legs": {"h": 2}}}],
    }
    model = {"tensornet": 1, "name": "pair", "model": pair}
    changes = {"model": model} | dict.fromkeys(("design", "legs", "mlp", "width", "depth")) if task == "reverse" else {}
    options = {"length": 8} if task == "reverse" else {}
    summary = ta.train(runs.small(task=task, options=options, steps=2, **changes), out=tmp_path / "out")
    assert math.isfinite(summary["eval"]["eval_loss"])
    assert ("eval_accuracy/MAX" in summary["eval"]) == (task == "listops_mini")


def test_event_files_go_on_after_the_checkpoint(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = runs.small(schedule="constant", tensorboard=True)
    ta.train(run | {"steps": 6}, out=tmp_path / "out")
    ta.train(run | {"steps": 9}, out=tmp_path / "out")
    events = EventAccumulator(str(tmp_path / "out" / "tensorboard")).Reload()
    assert [event.step for event in events.Scalars("loss")] == list(range(1, 10))
    assert [event.step for event in events.Scalars("eval/loss")] == [5, 6, 9]


MISFITS = [
    (
        runs.small(task="reverse", options={}),
        "task 'reverse' needs an encoder and a decoder: give a model file of kind 'seq2seq'.",
    ),
    (
        runs.everything(task="listops_mini", options={}),
        "task 'listops_mini' needs a sequence_classifier; 'everything' is a language_model.",
    ),
    (
        runs.everything(options={"length": 9, "streams": 4}),
        "task 'char_lm' has samples of 9 tokens; 'everything' has a length of 8. Set 'length: 9' in the run.",
    ),
    (
        runs.everything(task="mqar", options={"length": 8, "pairs": 2, "vocabulary": 64}),
        "task 'mqar' has a vocabulary of 64; 'everything' has one of 28. Set 'vocabulary: 64' in the run.",
    ),
    (
        runs.everything(task="mqar", options={"length": 8, "pairs": 2, "vocabulary": 16}),
        "task 'mqar' has 16 tokens; the output of 'everything' has 28. Set 'vocabulary: 16' in the run.",
    ),
    (
        runs.everything(options={"length": 8}),
        "'everything' has a memory, so each batch must continue the last one: set the option 'streams: 4', the batch "
        "size, of a task that has this option.",
    ),
    (
        runs.everything(accumulate=3),
        "'everything' has a memory, and its batch of 4 is not a multiple of 1 processes x 3 parts: change 'batch'.",
    ),
    (
        runs.small(task="char_lm", options={"path": "no.txt"}),
        "'no.txt' cannot be read: No such file or directory. Task 'char_lm': path is any file of UTF-8 text; without "
        "path, the task generates a text.",
    ),
    (runs.small(accelerator="cuda"), "accelerator 'cuda': torch finds no GPU; choose auto or cpu."),
    (runs.small(task_version=7), "the run needs version 7 of task 'mqar'; this package has version 1."),
]


@pytest.mark.parametrize(("run", "message"), MISFITS)
def test_what_does_not_fit(tmp_path: Path, run: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refused(tmp_path, run) == message
    assert not (tmp_path / "out" / "metrics.jsonl").exists()


def test_a_folder_with_another_run(tmp_path: Path) -> None:
    out = tmp_path / "out"
    ta.train(runs.small(steps=2), out=out)
    hint = "choose another --out."
    assert refused(tmp_path, runs.small(steps=2, lr=0.1)) == (
        f"'{out}' has another run: 'lr' is 0.002 there and 0.1 here; {hint}"
    )
    assert refused(tmp_path, runs.small(steps=2, design="mqa")) == (
        f"'{out}' has another run: 'model.name' is mhsa there and mqa here; {hint}"
    )
    assert refused(tmp_path, runs.small(steps=4)) == (
        f"'{out}' has another run: 'steps' is 2 there and 4 here; only a run with 'schedule: constant' can be "
        f"extended; {hint}"
    )
    assert ta.train(runs.small(steps=2, keep=1, save_every=1), out=out)["steps"] == 2


def test_a_constant_schedule_can_be_lengthened(tmp_path: Path) -> None:
    run = runs.small(schedule="constant")
    ta.train(run | {"steps": 5}, out=tmp_path / "both")
    ta.train(run, out=tmp_path / "both")
    ta.train(run, out=tmp_path / "one")
    assert runs.curve(tmp_path / "both") == runs.curve(tmp_path / "one")


def test_a_checkpoint_of_another_run(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    ta.train(runs.small(steps=4), out=one)
    ta.train(runs.small(steps=4, seed=1), out=other)
    (one / "summary.json").unlink()
    for saved in checkpoints(one / "checkpoints"):
        os.rename(saved.path, one / saved.path.name)
    path = one / "checkpoints" / "step-00000004"
    os.rename(other / "checkpoints" / "step-00000004", path)
    wanted = f"'{path}' is a checkpoint of another run: its configuration differs from run.yaml."
    assert refusal(ta.train, runs.small(steps=4), out=one) == wanted


def test_files_of_others_stay(tmp_path: Path) -> None:
    """A folder of others is refused before anything is written; in that of a run, only files of a killed run go."""
    for name in (".gitlab-ci.yml", ".env.local", "run.yaml", "lock"):
        out = tmp_path / name.strip(".")
        out.mkdir()
        (out / name).write_text("mine")
        assert refusal(ta.train, runs.small(), out=out) == (
            f"'{out}' has files of others, such as '{name}': choose an empty folder, or another --out."
        )
        assert [path.read_text() for path in out.iterdir()] == ["mine"]
    out = tmp_path / "out"
    ta.train(runs.small(steps=2), out=out)
    (out / "summary.json").unlink()
    for name in (".env.local", ".run.yaml.x8_wq1zr", f".run.yaml.x8_wq1zr{MARK}"):
        (out / name).write_text("mine")
    ta.train(runs.small(steps=2), out=out)
    assert sorted(path.name for path in out.iterdir() if path.name.startswith(".")) == [
        ".env.local", ".run.yaml.x8_wq1zr",
    ]  # fmt: skip


def test_two_processes_in_one_folder(tmp_path: Path) -> None:
    from tensornet_attn.train.folder import locked

    with locked(tmp_path / "out", True):
        message = f"another process uses '{tmp_path / 'out'}': wait until it ends, or choose another --out."
        assert refused(tmp_path, runs.small()) == message


def before_step(number: int, change: Callable[[torch.nn.Parameter], object]) -> RemovableHandle:
    """Changes the projection of the values in the first layer when the model is called in training that often."""
    calls = itertools.count(1)

    def look(module: torch.nn.Module, _: object) -> None:
        if isinstance(module, ta.models.LanguageModel) and module.training and next(calls) == number:
            change(module.layers[0].mixer.design.Wv)

    return register_module_forward_pre_hook(look)


def test_a_loss_that_is_not_finite(tmp_path: Path) -> None:
    last = tmp_path / "out" / "checkpoints" / "step-00000004"
    with before_step(7, lambda weight: weight.data.fill_(math.nan)):
        message = refused(tmp_path, runs.small())
    assert message == (
        "step 7: the loss is nan; the first output that is not finite is in 'layers.0.mixer.design'; the last "
        f"checkpoint is '{last}'."
    )


def test_a_gradient_that_is_not_finite(tmp_path: Path) -> None:
    with before_step(1, lambda weight: weight.register_hook(lambda gradient: gradient.fill_(math.inf))):
        message = refused(tmp_path, runs.small())
    assert message == (
        "step 1: the norm of the gradient is inf; all outputs are finite, but the gradient of "
        "'layers.0.mixer.design.Wv' is not; there is no checkpoint yet."
    )


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = os.fsync
    left = iter(range(9))

    def full(handle: int) -> None:
        if next(left, None) is None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        right(handle)

    monkeypatch.setattr(os, "fsync", full)
    last = tmp_path / "out" / "checkpoints" / "step-00000004"
    message = f"'{tmp_path / 'out'}': No space left on device; the last checkpoint is '{last}'."
    assert refused(tmp_path, runs.small(keep=1)) == message
    monkeypatch.undo()
    ta.train(runs.small(keep=1), out=tmp_path / "out")
    ta.train(runs.small(), out=tmp_path / "whole")
    assert runs.curve(tmp_path / "out") == runs.curve(tmp_path / "whole")


def test_control_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = start.optimise

    def interrupted(session: Any, wishes: tuple[bool, ...]) -> Any:
        if session.step == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return right(session, wishes)

    monkeypatch.setattr(start, "optimise", interrupted)
    with pytest.raises(KeyboardInterrupt) as error:
        ta.train(runs.small(), out=tmp_path / "out")
    last = checkpoints(tmp_path / "out" / "checkpoints")[-1]
    assert last.step in (6, 7)
    assert str(error.value) == f"interrupted; the last checkpoint is '{last.path}'; the same command resumes the run."
    monkeypatch.undo()
    ta.train(runs.small(), out=tmp_path / "out")
    ta.train(runs.small(), out=tmp_path / "whole")
    assert runs.curve(tmp_path / "out") == runs.curve(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a compiler on the CPU")
def test_a_compiled_model_has_the_same_losses(tmp_path: Path) -> None:
    for compiled in (False, True):
        ta.train(runs.small(steps=3, compile=compiled), out=tmp_path / str(compiled))
    one, other = (
        [line["loss"] for line in runs.curve(tmp_path / name) if "loss" in line] for name in ("False", "True")
    )
    assert one == pytest.approx(other, rel=1e-5)


@pytest.mark.slow
def test_mqar_is_learnt(tmp_path: Path) -> None:
    """Attention recalls: .99 at length 64 and 8 pairs, where guessing is 1 / 8."""
    run = {"task": "mqar", "design": "mhsa", "legs": {"h": 1}, "mlp": "none", "steps": 750, "lr": 4e-3, "threads": 1}
    summary = ta.train(run, out=tmp_path / "out", accelerator="cpu", tensorboard=False)
    assert summary["eval"]["eval_accuracy"] > 0.97


SMALL = {"depth": 1, "width": 8, "length": 12, "vocabulary": 28, "legs": {"d": 4}, "mlp_legs": {"l": 8}}
STEPS = {"steps": 2, "batch": 4, "eval_samples": 4, "tensorboard": False, "threads": 1}


def test_a_shipped_model_with_other_sizes(tmp_path: Path) -> None:
    text = {"task": "char_lm", "options": {"length": 12, "streams": 4}}
    out = tmp_path / "fast"
    changes = SMALL | {"memory": 12, "mlp_settings": {"k": 2}}
    summary = ta.train(text, model="fast_transformer", **changes, **STEPS, out=out)
    assert (summary["model"], summary["designs"]) == ("fast_transformer", ["epa_xl", "sigma_moe"])
    spec = ta.models.load("fast_transformer", **changes)
    assert spec.stacks["layers"][0]["mlp"].design.settings["k"] == 2
    assert open_run(out).spec.to_yaml(whole=True) == spec.to_yaml(whole=True)
    assert summary["parameters"] == spec.cost().parameters
    again = ta.train(text, model="fast_transformer", **changes, **STEPS, out=out)
    assert again == summary


def test_a_shipped_model_with_another_design(tmp_path: Path) -> None:
    text, out = {"task": "char_lm", "options": {"length": 12}}, tmp_path / "mgk"
    own = {key: value for key, value in SMALL.items() if key != "mlp_legs"} | {"legs": {"d": 4, "h": 1}}
    summary = ta.train(text, model="wikitext_small", design="mgk", mlp="none", **own, **STEPS, out=out)
    spec = ta.models.load("wikitext_small", design="mgk", mlp=None, **own)
    assert (summary["model"], summary["parameters"]) == ("mgk_wikitext_small", spec.cost().parameters)


def test_a_classifier_of_other_classes(tmp_path: Path) -> None:
    run = {"task": "listops_mini", "model": "lra_listops", "depth": 1, "legs": {"d": 4}, "width": 8}
    summary = ta.train(run, **STEPS, out=tmp_path / "out")
    assert (summary["model"], summary["designs"]) == ("lra_listops", ["mhsa", "mlp_dropout"])
    told = refused(tmp_path, run | {"classes": 3})
    assert told == (
        "task 'listops_mini' has 10 classes; the output of 'lra_listops' has 3. Set 'classes: 10' in the run."
    )
    assert refused(tmp_path, run | {"tied": True}) == (
        "a sequence_classifier has no 'tied' to override: known here: classes, depth, design, dropout, "
        "embedding_scale, features, init, legs, length, mlp, mlp_legs, mlp_settings, ...."
    )


def test_settings_of_the_mlp_of_a_design(tmp_path: Path) -> None:
    experts = {"mlp": "sigma_moe", "mlp_legs": {"e": 3, "l": 2}, "mlp_settings": {"k": 1}}
    ta.train(runs.small(steps=1, **experts), out=tmp_path / "out")
    design = open_run(tmp_path / "out").spec.stacks["layers"][0]["mlp"].design
    assert (design.legs["e"], design.settings) == (3, {"k": 1})
