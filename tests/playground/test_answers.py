"""What the playground's page gets for its requests: the same findings as those of the commands, as JSON."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import tensornet_attn as ta
from tensornet_attn.spec import library
from tests.playground.conftest import SOURCES, Ask

MHSA = library.path_of("mhsa").read_text(encoding="utf-8")


def test_a_good_design_has_its_picture_and_sliders(ask: Ask) -> None:
    found = ask("check", text=MHSA)
    assert found["problems"] == []
    assert found["name"] == "mhsa"
    assert found["dot"].startswith("graph mhsa {")
    assert "Steps:" in found["description"]
    sliders = [(one["name"], one["leg"], one.get("size")) for one in found["legs"]]
    assert sliders == [("n", "n", None), ("m", "m", None), ("f", "f", 512), ("h", "h", 8)]  # d is arithmetic


def test_problems_have_their_place_and_the_commands_text(ask: Ask) -> None:
    found = ask("check", text=MHSA.replace("K[m h d] -> h n m", "K[m d h] -> h n m"))
    (problem,) = [one for one in found["problems"] if one["severity"] == "error"]
    line = next(number for number, line in enumerate(MHSA.splitlines(), 1) if "K[m h d] -> h n m" in line)
    assert (problem["code"], problem["line"]) == ("size", line)
    assert problem["text"].startswith(f"design.yaml:{line}:{problem['column']}: size: leg 'd' (64) does not fit")
    assert "^" in problem["text"]
    assert "dot" not in found
    for want in ("cost", "plan", "rewrites"):
        assert ask(want, text="legs: {}")["problems"]


def test_claims_about_other_designs_are_checked_apart(ask: Ask) -> None:
    text = "tensornet: 1\nname: mine\nextends: mhsa\ncontains:\n  hard_fish: {}\n"
    assert ask("check", text=text)["problems"] == []
    found = ask("contains", text=text)
    assert [one["field"].partition(".")[0] for one in found["problems"]] == ["contains"]
    assert ask("contains", text=text) == found
    assert ask("contains", text=MHSA)["problems"] == []


def test_text_that_names_a_design_is_text(ask: Ask) -> None:
    assert ask("check", text="mhsa")["problems"]


def as_json(data: object) -> object:
    return json.loads(json.dumps(data))


def test_costs_follow_the_sliders(ask: Ask) -> None:
    assert ask("cost", text=MHSA, n=64) == as_json(ta.cost("mhsa", n=64).as_dict())
    wide = ask("cost", text=MHSA, n=64, legs={"f": 1024})
    assert wide == as_json(ta.cost(ta.load("mhsa", legs={"f": 1024}), n=64).as_dict())
    assert ask("cost", text=MHSA, legs={"f": 7})["problems"][0]["severity"] == "error"
    assert "'n' is 0" in ask("cost", text=MHSA, n=0)["error"]


def test_plans_rewrites_and_sources(ask: Ask) -> None:
    plan = ask("plan", text=MHSA, workload="decoding")
    assert plan["text"] == ta.explain("mhsa", workload="decoding")
    assert plan["plan"]["workload"] == "decoding"
    rewrites = ask("rewrites", text=library.path_of("skip_left").read_text(encoding="utf-8"))["rewrites"]
    assert rewrites[0]["rule"] == "weights first"
    assert rewrites[0]["added"]
    for backend in ("torch", "triton"):
        assert ask("source", text=MHSA, backend=backend)["source"].count("class MHSA")
    assert "has no source; use 'torch' or 'triton'" in ask("source", text=MHSA, backend="inductor")["error"]


@pytest.mark.parametrize("overlay", ["plan", "cost"])
def test_overlays_and_themes(ask: Ask, overlay: str) -> None:
    plain, dark = ask("check", text=MHSA), ask("check", text=MHSA, theme="dark", overlay=overlay)
    assert dark["dot"] != plain["dot"]
    assert "#15181d" in dark["dot"]


def test_torch_and_numpy_stay_out() -> None:
    """Pyodide has neither here."""
    script = (
        "import sys, json, answers\n"
        "for part in range(len(answers.LATER)): answers.answer(json.dumps({'want': 'warm', 'part': part}))\n"
        "text = open(sys.argv[1]).read()\n"
        "for want in ('check', 'cost', 'plan', 'rewrites', 'source'):\n"
        "    found = json.loads(answers.answer(json.dumps({'want': want, 'text': text, 'backend': 'triton'})))\n"
        "    assert not found.get('problems') and 'error' not in found, found\n"
        "print(sorted({'torch', 'numpy', 'triton', 'rich', 'jinja2'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", script, str(library.path_of("thsa"))]
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
