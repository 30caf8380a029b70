"""The speed that is aimed at, as data, and its whole path from the command line to the tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from tensornet_attn import compiler
from tensornet_attn.bench import targets
from tensornet_attn.bench.bench import Options
from tensornet_attn.bench.run import Setting, cases_of, options_of
from tensornet_attn.bench.targets import BATCH, GPU_TARGETS, PEERS, TARGETS, BenchmarkTarget, Growth, RateShare, Ratio
from tensornet_attn.cost.sizes import parameters
from tensornet_attn.graph import build
from tests.bench.schema import SCHEMA

QUICK = ("--repeats", "3", "--seconds", "0")
CRITERIA = {
    ("mhsa", "sdpa", 1024): 0.97,
    ("hard_fish", "eager", 1024): 2.8,
    ("mgk", "eager", 1024): 4.0,
    ("thsa", "eager", 1024): 4.0,
    ("talking_heads", "eager", 1024): 2.0,
    ("fmm2", "softmax", 4096): 4.0,
    ("mlk", "eager", 1024): 1.0,
    ("linear", "eager", 1024): 1.0,
    ("epa", "eager", 1024): 1.5,
}
GPU_CRITERIA = {
    "mhsa f 512 h 8": (4096, Ratio(0.98, ("sdpa",))),
    "hard_fish f 512 h 8 g 2": (4096, Ratio(1.3, PEERS), Ratio(1.0, ("softmax",))),
    "gfish f 512 h 8 g 4": (4096, Ratio(3.0, PEERS)),
    "mgk f 512 h 8 r 2": (4096, Ratio(1.25, PEERS)),
    "thsa f 512 r 256 s 256": (2048, Ratio(2.0, PEERS), RateShare(0.4)),
    "talking_heads f 512 g 8 h 8 e 8": (4096, Ratio(1.5, PEERS)),
    "band f 512 h 8 k 257": (32768, Ratio(1.0, ("flex",))),
    "linear f 512 h 8": (65536, Ratio(20.0, ("softmax",)), Growth(2.2)),
    "fmm2 f 512 h 8 k 5": (65536, Ratio(20.0, ("softmax",)), Growth(2.2)),
    "fmm_fast_weight1 f 512 h 8 k 5": (4096, Ratio(0.8, ("fla",))),
    "epa f 512 h 2 e 5 d 80 k 2": (4096, Ratio(1.6, ("dense",))),
}


def test_the_targets() -> None:
    assert {
        (t.design, *criterion.against, t.n): criterion.least for t in TARGETS for criterion in t.criteria
    } == CRITERIA  # type: ignore[union-attr]
    assert BATCH == 4
    labels = {t.design: t.label for t in TARGETS}
    assert labels["hard_fish"] == "hard_fish f 256 h 8 g 2"
    assert labels["epa"] == "epa f 256 h 2 e 5 k 2"
    assert labels["thsa"] == "thsa f 256 r 64 s 64"


def test_the_targets_of_a_gpu() -> None:
    assert {t.label: (t.n, *t.criteria) for t in GPU_TARGETS} == GPU_CRITERIA
    assert "eager" in PEERS
    assert all(
        len(criterion.against) > 1 or criterion.against != ("eager",)
        for t in GPU_TARGETS
        for criterion in t.criteria
        if isinstance(criterion, Ratio)
    )


DOCS = Path(__file__).parents[2] / "docs"


def shown() -> list[list[str]]:
    """The cells of the table of GPU targets."""
    page = (DOCS / "performance.md").read_text(encoding="utf-8").partition("## On a GPU")[2]
    rows = (line for line in page.splitlines() if line.startswith("| ") and " f 512" in line)
    return [[cell.strip(" *") for cell in line.split("|")[1:-1]] for line in rows]


def test_the_page_has_them_all() -> None:
    wanted = [[t.label, f"{t.n:,}", *words(criterion)] for t in GPU_TARGETS for criterion in t.criteria]
    assert [row[:4] for row in shown()] == wanted


def test_ratios_of_the_page_are_those_of_the_recorded_runs() -> None:
    runs = json.loads((DOCS / "results/gpu.json").read_text(encoding="utf-8"))
    criteria = [(t, criterion) for t in GPU_TARGETS for criterion in t.criteria]
    for (target, criterion), row in zip(criteria, shown(), strict=True):
        if isinstance(criterion, Ratio):
            assert row[4:6] == [ratio_of(runs[run], target, criterion) for run in ("first", "now")], row[0]


def ratio_of(results: list[dict[str, Any]], target: BenchmarkTarget, criterion: Ratio) -> str:
    """The ratio to the fastest, as the page has it; nothing if the design was not measured at its length."""
    for result in results:
        if (result["design"], result["n"], result["pass"]) == (target.design, target.n, "forward+backward"):
            found = {name: one["ms"][0] for name, one in result["contestants"].items() if "ms" in one}
            return f"{min(found[name] for name in criterion.against if name in found) / found['auto']:.2f}"
    return ""


def words(criterion: Ratio | RateShare | Growth) -> tuple[str, str]:
    if isinstance(criterion, Growth):
        return "its time at half of n", f"at most {criterion.most:.2f}"
    if isinstance(criterion, RateShare):
        return "the matmul rate, forward", f"{criterion.least:.0%}"
    against = "the best of all" if len(criterion.against) > 1 else f"`{criterion.against[0]}`"
    return against, f"{criterion.least:.2f}"


@pytest.mark.parametrize("target", [*TARGETS, *GPU_TARGETS], ids=lambda target: f"{target.label} n {target.n}")
def test_each_can_be_asked_for(target: BenchmarkTarget) -> None:
    case, *half = cases_of(target, Setting())
    assert (case.n, [one.n for one in half]) == (target.n, [target.n // 2] * target.grows)
    own = options_of(target, Options(), Setting(backends=("triton", "torch")))
    assert own.backends == ("triton", "torch")
    assert {*own.against} == {*target.against} - {"torch"}


def test_a_peer_of_ours_is_measured_though_it_was_not_asked_for() -> None:
    target = BenchmarkTarget("mhsa", (Ratio(1.0, ("torch", "eager")),))
    own = options_of(target, Options(), Setting(backends=("triton",)))
    assert (own.backends, list(own.against)) == (("triton", "torch"), ["eager"])


def test_experts_have_no_more_parameters_than_the_dense_layer_they_are_matched_with() -> None:
    (epa,) = (target for target in GPU_TARGETS if target.design == "epa")
    design = compiler.load("epa", legs=epa.legs, settings=epa.settings)
    mhsa = compiler.load("mhsa", legs={"f": 512, "h": 8, "d": 64})
    assert compiler.match_parameters(design, mhsa, "d", 16) == epa.legs["d"]
    assert 0.9 < parameters(build(design)) / parameters(build(mhsa)) <= 1


def test_the_table_of_targets(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = (
        BenchmarkTarget("mhsa", (Ratio(1e-9, ("sdpa",)),), {"f": 8, "h": 2}, n=4),
        BenchmarkTarget("thsa", (Ratio(1e9, ("eager",)),), {"f": 8, "r": 4, "s": 4}, n=4),
        BenchmarkTarget("thsa", (Ratio(1.0, ("sdpa",)),), {"f": 8, "r": 4, "s": 4}, n=4),
    )
    monkeypatch.setattr(targets, "TARGETS", few)
    target = tmp_path / "targets.json"
    outcome = run("bench", "--targets", "--device", "cpu", *QUICK, "-o", str(target))
    assert (outcome.code, outcome.err) == (0, "")
    head, *rows = outcome.out.splitlines()
    assert head.split() == ["design", "n", "against", "target", "reached", "quartiles"]
    assert rows[0].startswith("mhsa f 8 h 2      4  sdpa     0.00")
    assert rows[0].endswith("reached")
    assert rows[1].endswith("missed")
    assert "sdpa skipped: 'thsa' mixes scores before its softmax" in rows[2]
    found = json.loads(target.read_text())
    jsonschema.validate(found, SCHEMA)
    assert {r["pass"] for r in found["results"]} == {"forward+backward"}
    assert {r["batch"] for r in found["results"]} == {4}
    assert [criterion["met"] for criterion in found["aims"]] == [True, False, None]
    assert len(found["rates"]) == 2
    outcome = run("bench", "mhsa", "--targets", *QUICK)
    assert [line.split()[0] for line in outcome.out.splitlines()] == ["design", "mhsa"]


def test_a_rehearsal_has_everything_that_a_run_on_a_gpu_has(run, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)  # nothing is compiled: that takes minutes
    path, picture = tmp_path / "results.json", tmp_path / "results.svg"
    names = ("thsa", "linear", "fmm_fast_weight1", "epa")
    options = ("--n", "16", "--batch", "2", *QUICK, "-o", str(path), "--plot", str(picture))
    outcome = run("bench", *names, "--rehearse", *options)
    assert (outcome.code, outcome.err) == (0, "")
    found = json.loads(path.read_text())
    jsonschema.validate(found, SCHEMA)
    assert [(r["design"], r["n"], r["pass"]) for r in found["results"]] == [
        ("thsa", 16, "forward"),
        ("thsa", 16, "forward+backward"),
        ("linear", 16, "forward+backward"),
        ("linear", 8, "forward+backward"),
        ("fmm_fast_weight1", 16, "forward+backward"),
        ("epa", 16, "forward+backward"),
    ]
    assert {(r["ours"], r["dtype"], r["batch"]) for r in found["results"]} == {("torch", "float32", 2)}
    assert len(found["rates"]) == 2
    assert found["options"]["costs"] == "measured"
    figures = {(criterion["target"].split()[0], criterion["kind"]): criterion for criterion in found["aims"]}
    assert list(figures) == [
        *(("thsa", "ratio"), ("thsa", "share"), ("linear", "ratio"), ("linear", "growth")),
        *(("fmm_fast_weight1", "ratio"), ("epa", "ratio")),
    ]
    missing = [key for key, criterion in figures.items() if criterion["reached"] is None]
    assert missing == [("fmm_fast_weight1", "ratio")]
    assert figures["thsa", "ratio"]["over"] == "best: eager"
    for result in found["results"]:
        ours = next(entry for entry in result["contestants"] if entry["name"] == "torch")
        assert result["model"]["share"] == pytest.approx(result["model"]["floor"] / ours["seconds"]["median"])
    criteria, model, notes, reasons, rates, units = outcome.out.split("\n\n")
    assert criteria.splitlines()[0].split()[-4:] == ["peak,", "ours", "peak,", "other"]
    assert criteria.splitlines()[-2].endswith("fla skipped")
    assert len(model.splitlines()) == 7
    assert "epa n 16: mhsa of f 512, h 8, d 64: 1,048,576 parameters, here 993,280 (dense)" in notes.splitlines()
    assert "fmm_fast_weight1: fla skipped: " in reasons
    assert "thsa, linear, fmm_fast_weight1, epa: triton skipped: there is no GPU, " in reasons
    assert rates.startswith("measured rates: ")
    assert units.startswith("ours: torch. ")
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_results_stand_in_the_file_before_the_run_is_over(run, tmp_path: Path, monkeypatch) -> None:
    from tensornet_attn.bench.bench import Bench

    monkeypatch.setattr(shutil, "which", lambda name: None)
    prepared = Bench.prepared

    def interrupted(self: Bench, case, kind):
        if case.n == 4:
            raise KeyboardInterrupt
        return prepared(self, case, kind)

    monkeypatch.setattr(Bench, "prepared", interrupted)
    path = tmp_path / "results.json"
    outcome = run("bench", "linear", "--rehearse", "--n", "8", "--batch", "1", *QUICK, "-o", str(path))
    assert (outcome.code, outcome.err) == (130, "error: interrupted.\n")
    found = json.loads(path.read_text())
    jsonschema.validate(found, SCHEMA)
    assert (found["finished"], len(found["rates"])) == (False, 1)
    assert [(criterion["kind"], criterion["reason"]) for criterion in found["aims"]] == [
        ("ratio", ""),
        ("growth", "not measured yet."),
    ]
