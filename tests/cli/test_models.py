"""Model files on the command line: check, list, show, cost and schema."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import tensornet_attn as ta
from tensornet_attn.spec import library

MODEL = """\
tensornet: 1
name: tiny
model:
  kind: language_model
  vocabulary: 9
  length: 8
  width: 16
  layers:
    - {mixer: {design: mhsa, legs: {h: 2}}, mlp: mlp, repeat: 2}
"""


def test_a_good_model(run, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL)
    assert run("check", str(path)) == (0, f"ok  {path}: tiny, language_model, 2 layers, 6,608 parameters\n", "")
    assert (
        run("check", "-", stdin=MODEL.encode()).out == "ok  <stdin>: tiny, language_model, 2 layers, 6,608 parameters\n"
    )
    (facts,) = json.loads(run("check", "--json", str(path)).out)
    wanted = {"file": str(path), "ok": True, "name": "tiny", "kind": "language_model", "layers": 2}
    assert facts == wanted | {"parameters": 6608, "problems": []}
    assert sum(value.numel() for value in ta.models.make(path).parameters()) == 6608


def test_a_bad_model(run, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL.replace("vocabulary: 9", "vocabulary: none"))
    outcome = run("check", str(path))
    assert (outcome.code, outcome.out) == (1, "")
    wanted = "wrong-type: expected a whole number from 1, got the text 'none'."
    assert outcome.err.splitlines()[0] == f"{path}:5:15: {wanted}"


def test_a_model_may_have_other_designs_and_sizes(run, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL)
    good = run("check", "--design", "epa", "--legs", "d=4", "--set", "k=1", str(path))
    assert good == (0, f"ok  {path}: epa_tiny, language_model, 2 layers, 8,272 parameters\n", "")
    bad = run("check", "--legs", "f=8", str(path))
    assert (bad.code, bad.out) == (1, "")
    assert bad.err == (
        "tiny: model.layers[0].mixer.legs.f: no-fit: leg 'f' of 'mhsa' has the model's width, 16.\n"
        "  hint: leave out 'f': the model sets its size.\n"
    )
    design = run("check", "--design", "epa", "mhsa")
    assert design.code == 2
    assert "Invalid value for '--design': 'mhsa' is a design; --design is for models." in design.err


def test_the_shipped_models_are_listed(run) -> None:
    listed = json.loads(run("list", "--models", "--json").out)
    specs = {name: ta.models.load(name) for name in ta.models.list_models()}
    assert listed == [{"name": name, "kind": spec.kind, "about": spec.about} for name, spec in specs.items()]
    wanted = "fast_transformer       language_model  The Fast Transformer of 47M parameters, EPA with sigma-MoE, for "
    assert run("list", "--models", "fast*").out.startswith(f"{wanted}WikiText-103.\nfast_transformer_259m")
    nothing = "error: no shipped model matches 'mhsa'; 'tensornet-attn list --models' lists all of them.\n"
    assert run("list", "--models", "mhsa") == (1, "", nothing)


def test_show_prints_a_model_as_it_is_or_with_other_designs(run, tmp_path: Path) -> None:
    text = library.path_of("wikitext_small", "model").read_text()
    assert run("show", "wikitext_small") == (0, text, "")
    path = tmp_path / "model.yaml"
    path.write_text(MODEL)
    assert run("show", str(path)).out == MODEL
    changed = ta.models.load(run("show", "wikitext_small", "--design", "fish", "--legs", "g=2").out)
    same = ta.models.load("wikitext_small", design="fish", legs={"g": 2})
    assert changed.to_yaml() == same.to_yaml()
    whole = run("show", "--resolved", "-", stdin=MODEL.encode()).out
    assert ta.models.load(whole).to_yaml(whole=True) == ta.models.load(MODEL).to_yaml(whole=True) == whole
    outcome = run("show", "--graph", str(path))
    assert outcome.code == 2
    assert f"'{path}' is a model; --text and --graph are for designs." in outcome.err


def test_cost_prices_a_model(run, tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL)
    spec = ta.models.load(MODEL)
    assert run("cost", str(path)) == (0, spec.cost().to_text() + "\n", "")
    priced = spec.cost(n=4, batch=3, m=4, dtype="bfloat16").as_dict()
    outcome = run(
        "cost", "-", "--n", "4", "--m", "4", "--batch", "3", "--dtype", "bfloat16", "--json", stdin=MODEL.encode()
    )
    assert json.loads(outcome.out) == priced
    outcome = run("cost", "wikitext_small", "--design", "mgk", "--legs", "h=4", "--json")
    assert json.loads(outcome.out) == ta.models.load("wikitext_small", design="mgk", legs={"h": 4}).cost().as_dict()
    for arguments, told in (
        (("--causal",), "'--causal': a model file defines which layers are causal."),
        (("--design", "mgk", "--over", "n=4"), "'--design': this option is for a single model."),
    ):
        outcome = run("cost", str(path), *arguments)
        assert outcome.code == 2
        assert told in outcome.err


def test_names_of_neither(run) -> None:
    told = "epa_47m: unknown-design: there is no shipped design or model 'epa_47m'.\n"
    told += "  hint: did you mean 'epa_47m_xl'? A path contains '/' or ends in '.yaml'.\n"
    assert run("check", "epa_47m") == (1, "", told)
    for command in ("show", "cost"):
        assert run(command, "epa_47m") == (1, "", f"error: the design is refused: 1 problem.\n{told}")
    told = run("draw", "epa_47m_xl")
    assert told.code == 1
    assert "unknown-key: this is a model, not a design." in told.err


def test_the_schema_of_models(run) -> None:
    assert json.loads(run("schema", "--model").out) == ta.models.json_schema()


WITHOUT_TORCH = """
import sys
import tensornet_attn as ta
spec = ta.models.load(sys.argv[1])
assert ta.models.check(sys.argv[1]) == [] and ta.models.load(spec.to_yaml()).cost(n=8).macs > 0
print("torch" in sys.modules)
"""


def test_reading_and_pricing_a_model_leave_torch_out(tmp_path: Path) -> None:
    path = tmp_path / "model.yaml"
    path.write_text(MODEL)
    command = [sys.executable, "-c", WITHOUT_TORCH, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("False\n", "")
