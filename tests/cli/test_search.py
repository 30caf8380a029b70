"""`search` on the command line."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from tensornet_attn.search import start, team

SPACE = """\
space: 1
name: tiny
base: mhsa
legs: {f: 16, h: [2, 4]}
bounds: {n: 16}
"""
FUNCTION = ("--task", "tests.search.functions:quality", "--trials", "1", "--finalists", "0", "--no-baseline")


@pytest.fixture
def space(tmp_path: Path) -> str:
    (tmp_path / "tiny.yaml").write_text(SPACE)
    return str(tmp_path / "tiny.yaml")


def test_search(run, space: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bounds = ("--bound", "macs=1e9,quality=0", "--objective", "quality", "--objective", "parameters")
    found = run("search", space, *FUNCTION, *bounds, "--out", str(out))
    assert found.code == 0
    first, line = found.out.splitlines()
    assert first == f"1 design on the front of 1 trial; results: '{out}'"
    assert line.endswith("  parameters 1,024  mhsa; f = 16; h = 4")
    again = run("search", "--out", str(out), "--json")
    assert (again.code, again.err) == (0, "")
    told = json.loads(again.out)
    assert (told["trials"], told["front"][0]["path"]) == (1, "mhsa; f = 16; h = 4")
    assert told["front"][0]["values"]["parameters"] == 1024
    other = run("search", space, *FUNCTION, "--out", str(out), "--seed", "1")
    assert other.code == 1
    assert other.err.startswith(f"error: '{out}' belongs to another study: ")


def test_a_space_on_standard_input(run, tmp_path: Path) -> None:
    outcome = run("search", "-", *FUNCTION, "--bound", "macs=1", "--out", str(tmp_path / "out"), stdin=SPACE.encode())
    assert outcome.code == 1
    assert outcome.err.startswith("error: all 160 drafts of the space 'tiny' were refused: 160 by 'macs at most 1'; ")
    assert outcome.out == ""
    assert not (tmp_path / "out").exists()


MISTAKES = [
    (("--bound", "macs"), 2, "'macs' is not NAME=VALUE, e.g. f=256."),
    (("--rates", "0.1;0.2"), 2, "'0.1;0.2' is not LR,..., e.g. 0.001,0.002."),
    (
        ("--task", "nowhere:f"),
        1,
        "the task 'nowhere:f': there is no module 'nowhere' in the working directory or on PYTHONPATH; ",
    ),
    (("--task", "mqar", "--run", "lr=1"), 1, "leave out 'lr' under 'run': it is set by 'rates'."),
    (
        ("--storage", "postgresql://me:secret@127.0.0.1:1/x"),
        1,
        "the storage 'postgresql://me:***@127.0.0.1:1/x' cannot",
    ),
]


@pytest.mark.parametrize(("given", "code", "words"), MISTAKES)
def test_mistakes(run, space: str, tmp_path: Path, given: tuple[str, ...], code: int, words: str) -> None:
    outcome = run("search", space, *FUNCTION, *given, "--out", str(tmp_path / "out"))
    assert (outcome.code, outcome.out) == (code, "")
    assert words in outcome.err
    assert "secret" not in outcome.err


def test_interrupted(run, space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(team.Team, "works", interrupted)
    outcome = run("search", space, *FUNCTION, "--out", str(tmp_path / "out"))
    assert (outcome.code, outcome.out) == (130, "")
    assert outcome.err.endswith("error: interrupted: 0 of 1 trials are finished; the same command resumes the study.\n")


def test_a_part_that_is_missing(run, space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = importlib.util.find_spec
    monkeypatch.setattr(start, "find_spec", lambda name: None if name == "optuna" else right(name))
    wanted = "error: searching needs optuna: pip install 'tensornet-attn[search]'.\n"
    assert run("search", space, *FUNCTION, "--out", str(tmp_path / "out")) == (3, "", wanted)
