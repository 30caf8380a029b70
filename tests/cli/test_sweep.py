"""`cost` over sizes, against another design, as a plot; the figures of docs/costs.md."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from docs.generate.costs import FIGURES

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("cost", "hard_fish", "--against", "mhsa", "--legs", "g=2", "--over", "n=32,64", "--measure", "macs")


def test_ratios_as_text_and_json(run) -> None:
    text = run(*SMALL)
    assert (text.code, text.err) == (0, "")
    assert text.out.startswith("hard_fish against mhsa: g = 2; batch 1, float32, as planned\n\nmacs: ")
    found = json.loads(run(*SMALL, "--json").out)
    assert [p["sizes"] for p in found["points"]] == [{"n": 32}, {"n": 64}]
    shown = text.out.splitlines()[-1].split()[1:]
    assert shown == [f"{p['ratios']['macs']:.3f}" for p in found["points"]]


def test_against_alone_is_one_length(run) -> None:
    found = json.loads(run("cost", "mqa", "--against", "mhsa", "--n", "64", "--json").out)
    assert found["axes"] == {"n": [64]}
    assert [*found["measures"]] == ["macs", "parameters", "saved", "peak"]


def test_several_designs_are_beside_each_other(run) -> None:
    out = run("cost", "mhsa", "mqa", "--measure", "parameters").out
    assert [line.split()[0] for line in out.splitlines()[-2:]] == ["mhsa", "mqa"]


def test_a_design_from_standard_input(run) -> None:
    text = (ROOT / "specs/baselines/mhsa.yaml").read_bytes()
    out = run(*("cost", "-", "--against", "mhsa", "--over", "n=32", "--measure", "macs"), stdin=text)
    assert (out.code, out.out.splitlines()[-1].split()) == (0, ["mhsa", "1.000"])


def test_a_plot_is_written_beside_the_text_or_alone_to_stdout(run, tmp_path: Path) -> None:
    path = tmp_path / "ratios.svg"
    beside = run(*SMALL, "--plot", str(path))
    assert beside.out == run(*SMALL).out
    assert path.read_text() == run(*SMALL, "--plot", "-").out
    assert path.read_text().startswith("<svg ")


WRONG = [
    (["--over", "n"], "'n' is not LEG=SIZE,..., e.g. n=128,256,4k."),
    (["--over", "n=a"], "'n=a' is not LEG=SIZE,..., e.g. n=128,256,4k."),
    (["--over", "n=1,2", "--over", "n=3"], "'n' is given twice; give all its sizes at once."),
    (["--over", "n=2,1"], "the sizes of 'n' must ascend."),
    (["--over", "n=1,2", "--plot", "a.png"], "'a.png' does not end in .svg; - is stdout."),
    (["--against", "mqa", "--plot", "a.svg"], "a plot needs sizes to vary; give them with --over."),
]


@pytest.mark.parametrize(("words", "message"), WRONG)
def test_a_wrong_command_line(run, words: list[str], message: str) -> None:
    outcome = run("cost", "mhsa", *words)
    assert (outcome.code, outcome.out) == (2, "")
    assert message in " ".join(outcome.err.split())


def test_what_no_design_has_is_named(run) -> None:
    outcome = run("cost", "mhsa", "--over", "ff=64")
    assert outcome == (1, "", "error: no design here has a leg 'ff': did you mean 'f'?\n")


DRAWN = re.findall(
    r"^\$ tensornet-attn (cost (?:.*\\\n)*.*--plot (\S+)\.svg.*)$", (ROOT / "docs/costs.md").read_text(), re.M
)


def test_the_page_shows_the_command_of_each_figure() -> None:
    assert [name for _, name in DRAWN] == [*FIGURES]


@pytest.mark.parametrize(("command", "name"), DRAWN, ids=lambda text: text[-14:])
def test_the_command_on_the_page_draws_the_committed_figure(
    run, tmp_path: Path, monkeypatch, command: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    words = shlex.split(command.replace("\\\n", " ").partition("|")[0])
    assert run(*words).code == 0
    assert (tmp_path / f"{name}.svg").read_bytes() == (ROOT / f"docs/pictures/{name}.svg").read_bytes()
