"""bench from the command line: results, table, picture, and every wrong input."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

from tensornet_attn.bench.baselines.multi_head import MultiHead
from tests.bench.schema import SCHEMA

SMALL = ("--legs", "f=8,h=2", "--repeats", "3", "--seconds", "0")
TINY = ("mhsa", "--n", "4", "--against", "eager", *SMALL)


def test_results_table_and_picture(run, tmp_path: Path) -> None:
    target, picture = tmp_path / "results.json", tmp_path / "results.svg"
    options = ("--n", "6,9", "--against", "reference,eager,sdpa,softmax", "--batch", "2", "--no-causal", *SMALL)
    outcome = run("bench", "mhsa", "talking_heads", *options, "-o", str(target), "--plot", str(picture))
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(target.read_text())
    jsonschema.validate(found, SCHEMA)
    assert found["finished"] is True
    assert len(found["load"]) == 2
    assert found["command"] == (
        "tensornet-attn bench mhsa talking_heads --n 6,9 --against reference,eager,sdpa,softmax "
        f"-o {target} --plot {picture} --batch 2 --legs f=8,h=2 --no-causal --repeats 3 --seconds 0.0"
    )
    assert [(r["design"], r["n"], r["pass"]) for r in found["results"]] == [
        (design, n, kind)
        for design in ("mhsa", "talking_heads")
        for n in (6, 9)
        for kind in ("forward", "forward+backward")
    ]
    lines = outcome.out.splitlines()
    assert lines[0] == "mhsa, n 6, m 6, f 8, h 2, d 4, batch 2, float32, cpu: forward"
    assert lines[1].split() == ["median", "quartiles", "floor", "of", "floor", "ratio", "quartiles", "peak", "error"]
    assert [line.split()[0] for line in lines[2:7]] == ["torch", "reference", "eager", "sdpa", "softmax"]
    assert outcome.out.count("skipped: 'talking_heads' mixes scores before its softmax") == 4
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results.json", "results.svg"]


def test_json_on_standard_output_is_what_the_file_holds(run, tmp_path: Path) -> None:
    target = tmp_path / "results.json"
    outcome = run("bench", *TINY, "--json", "-o", str(target))
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(outcome.out)
    jsonschema.validate(found, SCHEMA)
    assert found == json.loads(target.read_text())


@pytest.mark.slow
def test_patterns_causal_and_one_length_as_bars(run, tmp_path: Path) -> None:
    picture = tmp_path / "bars.svg"
    options = ("--n", "4", "--against", "softmax", "--legs", "f=8", "--repeats", "3", "--seconds", "0")
    outcome = run("bench", "fmm*_causal", *options, "--plot", str(picture), "--json")
    results = json.loads(outcome.out)["results"]
    assert {(r["design"], r["causal"]) for r in results} == {(f"fmm{i}_causal", True) for i in (1, 2, 3)}
    assert results[0]["settings"] == {"k": 5}
    assert picture.stat().st_size > 0


def test_designs_of_a_pattern_that_sizes_do_not_fit_are_skipped(run) -> None:
    options = ("--n", "4", "--against", "eager", "--repeats", "3", "--seconds", "0", "--json")
    outcome = run("bench", "mhsa", "moonsh*", "--legs", "f=32,h=2,d=10", *options)
    assert outcome.code == 0
    assert {r["design"] for r in json.loads(outcome.out)["results"]} == {"mhsa"}
    assert outcome.err.startswith("moonshine is skipped: ")
    for alone in ("moonshine", "moonsh*"):
        outcome = run("bench", alone, "--legs", "f=32,h=2,d=10", *options)
        assert (outcome.code, outcome.out) == (1, "")
        assert "entries rotate in pairs" in outcome.err


def test_a_wrong_contestant_ends_with_an_error(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MultiHead, "forward", lambda self, x: x)
    target = tmp_path / "results.json"
    outcome = run("bench", *TINY, "-o", str(target))
    assert outcome.code == 1
    first, second, third = outcome.err.splitlines()
    assert first == "error: not timed, because results differ from the reference or the layer raised an error:"
    assert second.startswith("'eager' of 'mhsa', n 4, forward: the relative error of its output is ")
    assert third.startswith("'eager' of 'mhsa', n 4, forward+backward: the relative error of its ")
    assert "eager  wrong: the relative error of its output" in outcome.out
    assert json.loads(target.read_text())["results"][0]["contestants"][1]["status"] == "wrong"


def test_results_outlive_an_interruption(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensornet_attn.bench.bench import Bench

    prepared = Bench.prepared

    def interrupted(self: Bench, case, kind):
        if case.n == 5:
            raise KeyboardInterrupt
        return prepared(self, case, kind)

    monkeypatch.setattr(Bench, "prepared", interrupted)
    target = tmp_path / "results.json"
    outcome = run("bench", "mhsa", "--n", "4,5", "--against", "eager", *SMALL, "-o", str(target))
    assert (outcome.code, outcome.err) == (130, "error: interrupted.\n")
    found = json.loads(target.read_text())
    jsonschema.validate(found, SCHEMA)
    assert (found["finished"], len(found["results"]), len(found["load"])) == (False, 2, 1)


WRONG = [
    (("mhsa", "--against", "eagr"), 1, "error: there is no contestant 'eagr': did you mean 'eager'?\n"),
    (("mhsa", "--backend", "reference"), 1, "error: there is no backend to measure 'reference': "),
    (("mhsaa",), 1, "there is no shipped design 'mhsaa'"),
    (("xy*",), 1, "error: no shipped design matches 'xy*'; 'tensornet-attn list' lists all of them.\n"),
    (("mhsa", "--n", "5", "--dtype", "float8"), 1, "error: there is no dtype 'float8' in the cost model: "),
    (("mhsa", "--device", "tpu"), 1, "error: there is no device 'tpu' here: cpu"),
    (("mhsa", "--device", "cuda:99"), 1, "error: there is no device 'cuda:99' here: cpu"),
    (("mhsa", "--legs", "f=7"), 1, "error: the design is refused: "),
    (("mhsa", "--n", "512,many"), 2, "'many' is not a length, e.g. 4096, or 4k for 4 x 1024."),
    (("mhsa", "--n", "0"), 2, "'0' is not a length, e.g. 4096, or 4k for 4 x 1024."),
    (("mhsa", "--n", "1.5"), 2, "'1.5' is not a length, e.g. 4096, or 4k for 4 x 1024."),
    (("mhsa", "--n", ","), 2, "give a length, e.g. --n 512,2048."),
    (("mhsa", "--batch", "0"), 2, "Invalid value for '--batch'"),
    (("mhsa", "--plot", "a.txt"), 2, "'a.txt' does not end in .svg, .png or .pdf."),
    ((), 2, "name a design to measure, or give --targets."),
    (("moa", "--targets"), 1, "error: there is no target for 'moa': known here: epa, fmm2, hard_fish, "),
    (("--targets", "--n", "5", "--set", "k=2"), 2, "--targets does not use --set; leave out one of them."),
    (("--targets", "--dtype", "bfloat16"), 2, "--targets has its own sizes on a CPU; leave out --dtype."),
    (("--rehearse", "--n", "8", "--against", "sdpa"), 2, "--rehearse does not use --against; leave out one of them."),
    (("--rehearse", "--n", "8,16"), 2, "targets take a single length, which replaces their own."),
    (("--rehearse", "--n", "1"), 1, "error: 'n' is 0; give an integer from 1 to "),
    (("moa", "--rehearse", "--n", "8"), 1, "error: there is no target for 'moa': known here: band, epa, fmm2, "),
    (("--device", "cuda:99"), 1, "error: there is no device 'cuda:99' here: cpu"),
    (("mhsa", "--targets", "--device", "cuda:99"), 1, "error: there is no device 'cuda:99' here: cpu"),
    (("mhsa", "--tune"), 2, "--tune needs a GPU; add --device cuda."),
    (("mhsa", "--graphs"), 2, "--graphs needs a GPU; add --device cuda."),
    (("mhsa", "--n", "4", "--costs", "h300"), 1, "error: there is no device 'h300' in the cost table: "),
]


@pytest.mark.parametrize(("arguments", "code", "message"), WRONG)
def test_wrong_input(run, arguments: tuple[str, ...], code: int, message: str) -> None:
    outcome = run("bench", *arguments)
    assert (outcome.code, outcome.out) == (code, "")
    assert " ".join(message.split()) in " ".join(outcome.err.split())


def test_a_length_beyond_the_maximum(run, tmp_path: Path) -> None:
    path = tmp_path / "short.yaml"
    path.write_text("tensornet: 1\nname: short\nextends: mhsa\nlegs: {n: query 16, m: key 16}\n")
    outcome = run("bench", str(path), "--n", "8,17", *SMALL)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err == "error: 'n' is 17, but the query leg 'n' has a maximum of 16; use n=16 or less.\n"


@pytest.mark.parametrize("option", ["-o", "--plot"])
def test_a_place_that_cannot_be_written_is_told_before_measuring(run, tmp_path: Path, option: str) -> None:
    path = tmp_path / "none" / "results.svg"
    wanted = f"error: '{path.parent}': the folder to write in does not exist.\n"
    assert run("bench", "mhsa", "--n", "1000000", option, str(path)) == (1, "", wanted)
    folder = tmp_path / "a.svg"
    folder.mkdir()
    wanted = f"error: '{folder}': is a folder, not a file.\n"
    assert run("bench", "mhsa", "--n", "1000000", option, str(folder)) == (1, "", wanted)


def test_matplotlib_is_an_optional_part(run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensornet_attn.analyse import plots

    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    wanted = "error: plots need matplotlib; run pip install 'tensornet-attn[plot]'.\n"
    assert run("bench", "mhsa", "--plot", "a.svg") == (3, "", wanted)


def test_nothing_measured_is_nothing_to_plot(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensornet_attn.bench.bench import Bench, Prepared, blank

    monkeypatch.setattr(Bench, "prepared", lambda self, case, kind: Prepared(case, blank(case, kind, "torch")))
    outcome = run("bench", *TINY, "--plot", str(tmp_path / "a.svg"))
    assert (outcome.code, outcome.err) == (1, "error: there is nothing to plot: no contestant was measured.\n")
