"""The layers of a trained run, on samples of its task and on repeated random tokens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.train import trained
from tensornet_attn.train.trained import open_run
from tests.refusals import refusal
from tests.train import runs


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    ta.train(runs.everything(steps=6), out=folder)
    return folder


def test_all_layers_of_a_language_model(out: Path) -> None:
    sections = ta.run_sections(out, samples=5, seed=3)
    assert [section.title for section in sections] == [
        "layers.0.mixer: transformer_xl",
        "layers.0.mlp: sigma_moe_regularised",
        "layers.1.mixer: mgk_em",
        "layers.2.mixer: fish",
    ]
    trained = open_run(out)
    batch = trained.task.samples("validation", 0, 5)
    repeated = ta.repeated_tokens(trained.task.vocabulary, 4, 5, seed=3)
    wanted = ta.model_sections(trained.model, batch.tokens, batch.key_mask, repeated=repeated)
    for section, other in zip(sections, wanted, strict=True):
        assert torch.equal(section.inputs[0], other.inputs[0])
        assert torch.equal(section.repeated.inputs[0], other.repeated.inputs[0])
        assert section.repeated.inputs[0].shape[:2] == (5, 8)


def test_samples_in_parts_are_those_of_one_call(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ta.run_sections(out, samples=5)
    monkeypatch.setattr(trained, "PART", 2)
    for section, other in zip(ta.run_sections(out, samples=5), wanted, strict=True):
        assert (section.title, section.see.keys()) == (other.title, other.see.keys())
        for call, one in ((section, other), (section.repeated, other.repeated)):
            torch.testing.assert_close((call.inputs, call.see), (one.inputs, one.see))


def test_samples_of_a_language_model_cut(out: Path) -> None:
    trained = open_run(out)
    tokens = trained.task.samples("validation", 0, 3).tokens
    wanted = ta.model_sections(trained.model, tokens[:, :5], repeated=ta.repeated_tokens(trained.task.vocabulary, 2, 3))
    for section, other in zip(ta.run_sections(out, samples=3, length=5), wanted, strict=True):
        torch.testing.assert_close(section.inputs, other.inputs)
        torch.testing.assert_close(section.repeated.inputs, other.repeated.inputs)
        assert section.repeated.inputs[0].shape[:2] == (3, 4)
    assert refusal(ta.run_sections, out, length=9) == "length 9 exceeds the 8 tokens of a sample of 'char_lm'."


def test_a_checkpoint_and_a_split_may_be_named(out: Path) -> None:
    last, before = ta.run_sections(out), ta.run_sections(out, checkpoint="3")
    assert not torch.equal(last[1].inputs[0], before[1].inputs[0])
    test = ta.run_sections(out, split="test")
    assert not torch.equal(last[0].inputs[0], test[0].inputs[0])
    assert len(ta.run_sections(out, split="train", samples=3)[0].inputs[0]) == 3
    assert refusal(ta.run_sections, out, split="tests") == "there is no split 'tests': did you mean 'test'?"


def test_no_more_samples_than_the_split_has(tmp_path: Path) -> None:
    options = {"length": 16, "pairs": 2, "vocabulary": 16, "validation": 6}
    ta.train(runs.small(options=options, steps=1, eval_samples=1), out=tmp_path)
    (section,) = ta.run_sections(tmp_path, samples=50)
    assert section.inputs[0].shape == (6, 16, 8)
    assert section.repeated.inputs[0].shape == (6, 16, 8)


def test_a_classifier_has_no_induction_scores(tmp_path: Path) -> None:
    ta.train(runs.small(task="listops_mini", options={}, steps=1, eval_samples=1), out=tmp_path)
    (section,) = ta.run_sections(tmp_path, samples=4)
    batch = open_run(tmp_path).task.samples("validation", 0, 4)
    assert section.repeated is None
    assert torch.equal(section.see["key_mask"], batch.key_mask)
    assert ta.report_data([section])["means"]["largest_induction"] is None
    assert refusal(ta.run_sections, tmp_path, length=4) == (
        "only samples of language models can be cut, not those of 'listops_mini': leave out the length."
    )


def test_encoder_and_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = {"mixer": {"design": "mhsa", "legs": {"h": 2}}, "cross": {"design": "cross", "legs": {"h": 2}}}
    task = ta.tasks.task_named("reverse")
    model = {"kind": "seq2seq", "vocabulary": task.vocabulary, "length": task.length, "width": 8}
    model |= {"encoder": [{"mixer": layer["mixer"]}], "decoder": [layer]}
    described = {"tensornet": 1, "name": "both", "model": model}
    changes = {"task": "reverse", "options": {}} | dict.fromkeys(("design", "legs", "mlp", "width", "depth"))
    ta.train(runs.small(**changes, model=described, steps=1, eval_samples=1), out=tmp_path)
    sections = ta.run_sections(tmp_path, samples=2)
    titles = ["encoder.0.mixer: mhsa", "decoder.0.mixer: mhsa", "decoder.0.cross: cross"]
    assert [section.title for section in sections] == titles
    assert all(section.repeated is None for section in sections)
    monkeypatch.setattr(trained, "PART", 1)
    for section, other in zip(ta.run_sections(tmp_path, samples=2), sections, strict=True):
        torch.testing.assert_close((section.inputs, section.see), (other.inputs, other.see))
