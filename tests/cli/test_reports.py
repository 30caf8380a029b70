"""list, show, cost, explain and doctor."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import date
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn.bench import calibrate
from tensornet_attn.cli.output import print_table
from tensornet_attn.cost.rates import machine, read, shipped
from tensornet_attn.spec import library


def test_list_names_every_design_with_what_it_is(run) -> None:
    listed = json.loads(run("list", "--json").out)
    assert [entry["name"] for entry in listed] == ta.list_designs()
    assert listed == [
        {"name": name, "family": library.family_of(name), "about": ta.load(name).about} for name in ta.list_designs()
    ]


def test_list_is_plain_where_it_is_read_by_a_program(run) -> None:
    assert run("list", "mh*a") == (0, "mhsa  baselines  Multi-head self-attention.\n", "")
    assert run("list", "nothing*") == (
        1,
        "",
        "error: no shipped design matches 'nothing*'; 'tensornet-attn list' lists all of them.\n",
    )


def test_a_table_on_a_terminal_has_a_header(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("TERM", "dumb")  # no colours
    print_table(("design", "about"), [("mhsa", "[bold] is no markup")])
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == [
        "design  about",
        "mhsa    [bold] is no markup",
    ]


def test_show_prints_the_file_as_it_is(run, tmp_path: Path) -> None:
    assert run("show", "thsa") == (0, library.path_of("thsa").read_text(), "")
    mine = tmp_path / "mine.yaml"
    mine.write_text("tensornet: 1\nname: mine   # a comment\nextends: mhsa\n")
    assert run("show", str(mine)).out == mine.read_text()


def test_show_resolved_reads_back_to_the_same_design(run) -> None:
    text = run("show", "alibi", "--resolved").out
    assert "extends" not in text
    assert ta.load(text).as_dict() == ta.load("alibi").as_dict()
    small = ta.load(run("show", "mhsa", "--legs", "f=64").out)
    assert small.legs["f"] == 64


def test_show_refuses_what_is_no_design(run, tmp_path: Path) -> None:
    unknown = run("show", "mhsaa")
    assert (unknown.code, unknown.out) == (1, "")
    assert "did you mean 'mhsa'?" in unknown.err
    (tmp_path / "notes.yaml").write_text("milk, eggs")
    assert run("show", str(tmp_path / "notes.yaml")).code == 1
    assert run("show", "mhsa", "--text", "--graph").code == 2


def test_show_has_two_more_forms(run) -> None:
    assert "softmax" in run("show", "mhsa", "--text").out
    assert run("show", "mhsa", "--graph").out.strip()


def test_cost(run) -> None:
    table = run("cost", "mhsa", "--n", "64")
    assert (table.code, table.err) == (0, "")
    report = json.loads(run("cost", "mhsa", "--n", "64", "--m", "32", "--batch", "2", "--json").out)
    assert report == json.loads(json.dumps(ta.compiler.cost(ta.load("mhsa"), n=64, m=32, batch=2).as_dict()))
    assert run("cost", "mhsa", "--n", "-1").code == 2
    wrong = run("cost", "mhsa", "--dtype", "float23")
    assert (wrong.code, wrong.out) == (1, "")
    assert wrong.err.startswith("error: ")


def test_explain(run) -> None:
    outcome = run("explain", "mhsa", "--legs", "f=16,h=2")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.strip()
    assert run("explain", "mhsa", "--backend", "magic").code == 1


def test_explain_and_rewrites_are_the_texts_of_python(run) -> None:
    assert run("explain", "mgk", "--causal", "--n", "64").out == f"{ta.explain('mgk', causal=True, n=64)}\n"
    assert run("explain", "skip_left", "--rewrites").out == f"{ta.rewrites('skip_left')}\n"
    assert ta.rewrites("mlp") == "mlp: no rewrite applies."
    assert ta.hash_of("mhsa") == ta.load("mhsa").hash != ta.hash_of("mhsa", causal=True)


def test_bucket_is_the_old_name_of_workload(run) -> None:
    wanted = run("explain", "mhsa", "--workload", "decoding").out
    assert run("explain", "mhsa", "--bucket", "decoding") == (
        0,
        wanted,
        "warning: --bucket is now called --workload.\n",
    )


def test_explain_for_a_workload_and_under_a_limit(run) -> None:
    head = "mhsa: backend torch, for decoding on h200, product orders optimised for n 1, m 4096\n"
    assert run("explain", "mhsa", "--workload", "decoding", "--device", "h200").out.startswith(head)
    told = run("explain", "mhsa", "--n", "8192", "--batch", "2", "--memory", "2GiB")
    assert "\n  not dense, " in told.out
    assert "above the limit of 2,147,483,648 bytes (training, n = 8,192, m = 8,192, batch 2, float32)" in told.out
    assert run("explain", "mhsa", "--linear-memory", "--strict").code == 0


REFUSED = {
    ("--backend", "inductor", "--strict"): "error: talking_heads: strict, but region 'y.p1' runs on 'torch' instead",
    (
        "--backend",
        "reference",
        "--linear-memory",
    ): "error: talking_heads: linear_memory, but region 'A' creates a tensor",
    ("--memory", "1MB"): "error: talking_heads: no plan fits within 1,000,000 bytes (training, n = 1,024, ",
}


@pytest.mark.parametrize("options", REFUSED)
def test_explain_refuses(run, options: tuple[str, ...]) -> None:
    outcome = run("explain", "talking_heads", *options)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(REFUSED[options])


def test_doctor_measures_this_machine(run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert run("explain", "mhsa", "--device", "this").code == 1
    rates = json.loads(run("doctor", "--json").out)["rates"]
    assert rates["this"] == (
        "this machine has not been measured; run 'tensornet-attn doctor --calibrate', which takes about 20 seconds."
    )
    assert rates["cpu"].endswith(" ago, by 'tensornet-attn doctor --calibrate'")
    shipped_for = f"those of 'cpu', the shipped table of 1 thread of AMD EPYC, torch {shipped().machine.torch}, "
    assert rates["prices"] == f"{shipped_for}{shipped().measured}"
    table = replace(shipped(), machine=machine(1), measured=date.today().isoformat())
    monkeypatch.setattr(calibrate, "calibrate", lambda: table)
    measured = run("doctor", "--calibrate", "--json")
    assert (measured.code, measured.err) == (0, "")
    rates = json.loads(measured.out)["rates"]
    assert f"measured on {table.measured}, 0 days ago, by" in rates["this"]
    assert rates["prices"].endswith(f"; with '--device this' those of this machine, {table.measured}")
    assert rates["file"] == str(tmp_path / "tensornet-attn" / "rates.json")
    assert run("explain", "mhsa", "--device", "this").out.startswith("mhsa: backend torch, for training on this, ")
    assert run("doctor", "--calibrate", "-o", str(tmp_path / "other.json")).code == 0
    assert read(tmp_path / "other.json") == table
    assert run("doctor", "-o", "x.json").code == 2
    first, *others = table.efficiency
    monkeypatch.setattr(
        calibrate,
        "calibrate",
        lambda: replace(table, efficiency=(replace(first, forward=calibrate.FACTORS[1]), *others)),
    )
    assert run("doctor", "--calibrate").err == (
        f"warning: the efficiency of '{first.kind}' is at its bound; measure again on an idle machine.\n"
    )


def test_doctor(run) -> None:
    text = run("doctor")
    assert (text.code, text.err) == (0, "")
    report = json.loads(run("doctor", "--json").out)
    assert list(report) == ["versions", "devices", "rates", "optional parts"]
    assert report["versions"]["tensornet-attn"] == ta.__version__
    assert "threads" in report["devices"]["cpu"]
    assert set(report["optional parts"]) == {
        "C++ kernels",
        "triton",
        "svg and png",
        "dot",
        "pygraphviz",
        "matplotlib",
        "transformers",
        "training",
        "sacrebleu",
    }


def test_doctor_says_how_to_get_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensornet_attn.cli import doctor

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    monkeypatch.setattr("shutil.which", lambda name: None)
    report = doctor.examine()
    assert report["versions"]["pydantic"] == "missing: reinstall tensornet-attn"
    assert report["optional parts"]["svg and png"].startswith("no renderer: install Graphviz, or 'pip install")
