"""analyse: a report from a design or a checkpoint, and every wrong input."""

from __future__ import annotations

import json

import pytest
import torch

import tensornet_attn as ta

SMALL = ("--legs", "f=16,h=2", "--length", "12", "--batch", "3")


@pytest.fixture
def text(tmp_path) -> str:
    path = tmp_path / "novel <1>.txt"
    path.write_text("It is a truth universally acknowledged, that a naïve reader must be in want of a text.\n" * 3)
    return str(path)


def test_a_report_on_a_shipped_design(run, text: str, tmp_path) -> None:
    target = tmp_path / "report.html"
    assert run("analyse", "mhsa", "--text", text, "-o", str(target), *SMALL) == (0, "", "")
    page = target.read_text(encoding="utf-8")
    assert "<h1>Report on mhsa with input novel &lt;1&gt;.txt</h1>" in page
    assert "Inputs: 3 windows of 12 bytes of novel &lt;1&gt;.txt." in page
    assert "Weights: initialised with seed 0, not trained." in page
    assert "a random, untrained embedding from N(0, 1) with seed 0." in page
    assert "2.00 of 2" in page
    assert "not causal" in page
    again = run("analyse", "mhsa", "--text", text, *SMALL)
    assert (again.code, again.out, again.err) == (0, page, "")
    assert run("analyse", "mhsa", "--text", text, "--seed", "1", *SMALL).out != page
    assert "; causal." in run("analyse", "mhsa", "--text", text, "--causal", *SMALL).out


def test_a_report_on_a_file_with_settings_and_experts(run, text: str, tmp_path) -> None:
    (tmp_path / "own.yaml").write_text("tensornet: 1\nname: own\nextends: epa\n")
    options = ("--legs", "f=16,h=2", "--set", "k=3", "--length", "8", "--band", "3")
    page = run("analyse", str(tmp_path / "own.yaml"), "--text", text, *options).out
    assert "3 are chosen each time (60% each if uniform)" in page
    assert "rank without 3 diagonals" in page


def test_a_report_on_a_checkpoint(run, text: str, tmp_path) -> None:
    layer, path = ta.compile(ta.load("hard_fish", legs={"f": 16, "h": 4, "g": 2})), str(tmp_path / "layer.pt")
    ta.save(layer, path)
    page = run("analyse", path, "--text", text, "--length", "12").out
    assert "Weights: from the checkpoint layer.pt." in page
    assert f"{ta.effective_heads(layer):.2f} of 4" in page
    assert "untrained embedding" in page
    ta.save(layer, path, {"embedding": torch.randn(256, 16)})
    page = run("analyse", path, "--text", text, "--length", "12", "--causal").out
    assert "Each byte is embedded by the embedding in the checkpoint." in page
    assert "; causal." in page
    refused = run("analyse", path, "--text", text, "--legs", "f=8")
    assert (refused.code, refused.out) == (2, "")
    assert "a checkpoint has its own sizes and settings." in refused.err


@pytest.mark.parametrize("name", ["cross", "transformer_xl"])
def test_designs_with_two_inputs(run, text: str, name: str) -> None:
    outcome = run("analyse", name, "--text", text, *SMALL)
    assert (outcome.code, outcome.err) == (0, "")


def test_the_figures_as_data(run, text: str, tmp_path) -> None:
    outcome = run("analyse", "mhsa", "--text", text, "--json", *SMALL)
    assert (outcome.code, outcome.err) == (0, "")
    data = json.loads(outcome.out)
    torch.manual_seed(0)
    layer = ta.compile(ta.load("mhsa", legs={"f": 16, "h": 2}))
    maps = ta.attention_maps(layer, *ta.text_inputs(layer, text, 12, 3))["A"]
    repeated = ta.attention_maps(layer, *ta.repeated_inputs(layer, 12, 3))["A"]
    (box,) = data["sections"][0]["boxes"]
    assert data["title"] == "Report on mhsa with input novel <1>.txt"
    assert data["notes"][1] == "Inputs: 3 windows of 12 bytes of novel <1>.txt."
    assert box["distances"]["variance"] == pytest.approx(ta.head_distances(maps).variance)
    assert box["principal_components"]["maps"] == ta.principal_components(maps)
    assert box["induction"] == pytest.approx(ta.induction_scores(repeated).tolist())
    target = tmp_path / "figures.json"
    assert run("analyse", "mhsa", "--text", text, "--json", "-o", str(target), *SMALL) == (0, "", "")
    assert target.read_text(encoding="utf-8") == outcome.out


RUN = ("--task", "char_lm", "--options", "length=8", "--design", "mhsa", "--legs", "h=2", "--width", "8")
RUN += ("--mlp", "none", "--steps", "4", "--batch", "4", "--betas", "0.9,0.95", "--accelerator", "cpu")
RUN += ("--eval-samples", "8", "--no-tensorboard", "--save-every", "2")


def test_a_report_on_a_trained_run(run, text: str, tmp_path) -> None:
    out = str(tmp_path / "out")
    assert run("train", *RUN, "--out", out).code == 0
    data = json.loads(run("analyse", out, "--json", "--batch", "5").out)
    assert data["title"] == "Report on mhsa, trained on char_lm"
    assert data["notes"] == [
        "Weights: from step 4 of the run out.",
        "Inputs: the first 5 samples of the validation split of char_lm, 8 tokens each.",
    ]
    assert [part["title"] for part in data["sections"]] == ["layers.0.mixer: mhsa", "layers.1.mixer: mhsa"]
    wanted = ta.report_data(ta.run_sections(out, samples=5))
    assert data["sections"] == wanted["sections"]
    assert data["means"] == wanted["means"]
    assert data["sections"][1]["boxes"][0]["sequences"] == 5
    page = run("analyse", out, "--split", "test", "--checkpoint", "2")
    assert (page.code, page.err) == (0, "")
    assert "Weights: from step 2 of the run out." in page.out
    assert "Induction scores on 8 sequences of 4 random tokens, each repeated once" in page.out
    assert "mean of 2 boxes" in page.out
    cut = json.loads(run("analyse", out, "--json", "--batch", "3", "--length", "6").out)
    assert cut["notes"][1] == "Inputs: the first 3 samples of the validation split of char_lm, 6 tokens each."
    assert cut["sections"] == ta.report_data(ta.run_sections(out, samples=3, length=6))["sections"]
    refused = run("analyse", out, "--text", text)
    assert (refused.code, refused.out) == (2, "")
    assert "a run defines its own task and sizes." in refused.err
    assert (
        run("analyse", out, "--split", "all").err
        == "error: there is no split 'all': known here: test, train, validation.\n"
    )


def test_options_of_a_run_and_a_folder_that_is_none(run, text: str, tmp_path) -> None:
    refused = run("analyse", "mhsa", "--text", text, "--split", "test")
    assert (refused.code, refused.out) == (2, "")
    assert "this is for a run folder, which 'train' writes." in refused.err
    assert run("analyse", str(tmp_path)) == (
        1,
        "",
        f"error: '{tmp_path}' is not the folder of a run: it has no 'run.yaml'.\n",
    )
    missing = run("analyse", "mhsa")
    assert missing.code == 2
    assert "a design or checkpoint needs a text; name a file." in missing.err


def test_a_checkpoint_of_a_model(run, text: str, tmp_path) -> None:
    model = ta.models.LanguageModel(vocabulary=9, length=8, width=16, layers=["mhsa"])
    path = str(tmp_path / "model.pt")
    ta.save(model, path)
    wanted = (
        f"error: '{path}' is a checkpoint of the model 'language_model'; analyse takes a checkpoint of one "
        "design, or a run folder. In Python, use ta.report(ta.model_sections(model, tokens)) for any model.\n"
    )
    assert run("analyse", path, "--text", text) == (1, "", wanted)


def test_usage_and_a_place_that_cannot_be_written(run, text: str, tmp_path) -> None:
    wanted = f"error: '{text}' is neither a checkpoint from ta.save nor a design file, which ends in .yaml.\n"
    assert run("analyse", text, "--text", text) == (1, "", wanted)
    assert run("analyse", "mhsa").code == 2
    assert run("analyse", "mhsa", "--text", text, "--length", "0").code == 2
    target = tmp_path / "none" / "report.html"
    wanted = f"error: '{target.parent}': the folder to write in does not exist.\n"
    assert run("analyse", "mhsa", "--text", text, "-o", str(target), *SMALL) == (1, "", wanted)


def test_matplotlib_is_an_optional_part(run, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensornet_attn.analyse import plots

    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    wanted = "error: plots need matplotlib; run pip install 'tensornet-attn[plot]'.\n"
    assert run("analyse", "mhsa", "--text", text) == (3, "", wanted)
    assert run("analyse", "mhsa", "--text", text, "--json", *SMALL).code == 0
