"""`train`, `evaluate` and `sample` on the command line."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest

from tensornet_attn.train import session, start, translate
from tests.tasks.parallel import corpus

TINY = ("--task", "char_lm", "--options", "length=8", "--design", "mhsa", "--legs", "h=2", "--width", "8")
TINY += ("--mlp", "none", "--steps", "4", "--batch", "4", "--betas", "0.9,0.95", "--accelerator", "cpu")
TINY += ("--eval-samples", "8", "--no-tensorboard")


def test_train_evaluate_and_sample(run, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    trained = run("train", *TINY, "--out", out)
    assert trained.code == 0
    assert trained.out.startswith("mhsa on char_lm: 4 steps in 0 s  eval_loss 3.")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    again = run("train", *TINY, "--out", out, "--json")
    assert (again.code, json.loads(again.out), again.err) == (0, summary, f"'{out}' is finished: 4 steps.\n")
    judged = json.loads(run("evaluate", out, "--samples", "8", "--json").out)
    assert judged["loss"] == pytest.approx(summary["eval"]["eval_loss"])
    assert (judged["split"], judged["step"]) == ("validation", 4)
    told = run("evaluate", out, "--samples", "8", "--split", "test")
    assert told.out.startswith("mhsa on char_lm, test, step 4: loss 3.")
    (first,) = [line for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines() if "eval_loss" in line]
    bits = json.loads(first)["eval_bits_per_character"]
    assert bits == summary["eval"]["eval_bits_per_character"] == pytest.approx(judged["loss"] / math.log(2))
    assert f"eval_bits_per_character {bits:.4g}" in trained.err
    assert "bits per character" in (tmp_path / "out" / "curves.svg").read_text()
    printed = tmp_path / "printed.csv"
    printed.write_text("runs,design,sizes,validation,test\n*,mhsa,,1.5,1.6\n")
    told = run("evaluate", out, "--samples", "8", "--split", "test", "--printed", str(printed))
    assert told.out.endswith("  printed 1.6\n")
    slid = run("evaluate", out, "--samples", "3", "--sliding-window", "--context", "6", "--stride", "2", "--json")
    told = json.loads(slid.out)
    assert (told["context"], told["stride"], told["scored"]) == (6, 2, 10)
    told = run("evaluate", out, "--samples", "3", "--sliding-window")
    assert told.out.startswith("mhsa on char_lm, validation, step 4, windows of 8 with stride 1: loss 3.")
    refused = run("evaluate", out, "--bleu-tokenizer", "none")
    assert (refused.code, refused.out) == (2, "")
    assert "--bleu-tokenizer is for --bleu; add that, or leave it out." in refused.err
    assert run("sample", out, "--prompt", "a ", "--tokens", "5").out.startswith("a ")


def test_a_run_file(run, tmp_path: Path) -> None:
    path, out = tmp_path / "run.yaml", tmp_path / "out"
    path.write_text("run: 1\ntask: char_lm\ndesign: mhsa\nlr: high\n")
    outcome = run("train", "--config", str(path), "--out", str(out))
    assert (outcome.code, outcome.out) == (1, "")
    assert f"{path}:4:5: wrong-value: input should be a valid number, got the text 'high'." in outcome.err
    assert run("train", "--config", str(path), "--lr", "0.001", *TINY, "--out", str(out)).code == 0


def test_mistakes(run, tmp_path: Path) -> None:
    out = str(tmp_path)
    assert run("train", "--task", "mqar", "--out", out) == (1, "", "error: a run needs a 'model' or a 'design'.\n")
    for task, option in (("mqar", "--pooling=cls"), ("listops_mini", "--tied"), ("listops_mini", "--memory=4")):
        other = run("train", "--task", task, "--design", "mhsa", option, "--out", out)
        assert f"unknown-key: there is no key '{option[2:].partition('=')[0]}' here." in other.err
    assert run("train", *TINY, "--betas", "0.9", "--out", out).code == 2
    assert run("train", *TINY, "--out", str(tmp_path / "run.yaml" / "x")).code == 0


def test_interrupted(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(start, "optimise", interrupted)
    outcome = run("train", *TINY, "--out", str(tmp_path / "out"))
    assert outcome == (130, "", "error: interrupted; there is no checkpoint yet; the same command resumes the run.\n")


def test_a_translation_has_a_bleu(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ",".join(
        f"{name}={value}" for name, value in {"path": corpus(tmp_path), "source": "nl", "length": 12}.items()
    )
    model = tmp_path / "pair.yaml"
    model.write_text(
        "tensornet: 1\nname: pair\nmodel: {kind: seq2seq, vocabulary: 31, length: 12, width: 8, encoder: [mhsa], "
        "decoder: [{mixer: mhsa, cross: cross}]}\n"
    )
    out = str(tmp_path / "out")
    given = ("--steps", "1", "--eval-samples", "4", "--no-tensorboard", "--accelerator", "cpu")
    trained = run("train", "--task", "translation", "--options", options, "--model", str(model), *given, "--out", out)
    assert trained.code == 0
    assert "eval_perplexity 3" in trained.out
    judged = json.loads(run("evaluate", out, "--split", "test", "--samples", "5", "--json").out)
    assert list(judged) == [
        "run", "split", "step", "loss", "perplexity", "accuracy", "bleu", "scored", "sentences", "bleu_signature",
    ]  # fmt: skip
    assert (judged["sentences"], judged["bleu_signature"].split("|")[3]) == (5, "tok:13a")
    assert "  bleu 0.0" in run("evaluate", out, "--samples", "3").out
    assert "bleu" not in run("evaluate", out, "--samples", "3", "--no-bleu").out
    monkeypatch.setattr(translate, "find_spec", lambda _name: None)
    wanted = "error: BLEU needs sacrebleu: pip install 'tensornet-attn[bleu]'; '--no-bleu' evaluates without it.\n"
    assert run("evaluate", out) == (3, "", wanted)
    assert run("evaluate", out, "--samples", "3", "--no-bleu").code == 0


def test_parts_that_are_missing(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = importlib.util.find_spec
    monkeypatch.setattr(session, "find_spec", lambda name: None if name == "lightning_fabric" else right(name))
    wanted = "error: training needs lightning-fabric: pip install 'tensornet-attn[train]'.\n"
    assert run("train", *TINY, "--out", str(tmp_path / "out")) == (3, "", wanted)
