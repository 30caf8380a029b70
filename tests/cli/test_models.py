"""Model files on the command line: check, schema, and a checkpoint that analyse refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import tensornet_attn as ta

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
    wanted = "wrong-type: a whole number from 1 is wanted here, the text 'none' given."
    assert outcome.err.splitlines()[0] == f"{path}:5:15: {wanted}"
    assert run("check", "--legs", "f=8", str(path)).code == 2


def test_the_schema_of_models(run) -> None:
    assert json.loads(run("schema", "--model").out) == ta.models.json_schema()


def test_analyse_takes_one_design(run, tmp_path: Path) -> None:
    path, text = tmp_path / "model.pt", tmp_path / "a.txt"
    text.write_text("words " * 50)
    ta.save(ta.models.make(MODEL), path)
    wanted = f"error: '{path}' holds the model 'tiny'; analyse takes a checkpoint of one design.\n"
    assert run("analyse", str(path), "--text", str(text), "-o", str(tmp_path / "r.html")) == (1, "", wanted)


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
