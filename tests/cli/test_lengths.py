"""Lengths such as 4k, wherever commands take one; completion of commands and designs; what `explain` says as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer

import tensornet_attn as ta
from tensornet_attn.cli.options import length
from tests.cli.conftest import Run


def test_a_length_counts_in_powers_of_1024() -> None:
    assert [length(text) for text in ("7", "4k", "1M", " 16k ")] == [7, 4096, 1024**2, 16384]
    for text in ("", "k", "4K", "4.5k", "-1", "4 k", "1e3", "\N{ARABIC-INDIC DIGIT FOUR}"):
        with pytest.raises(typer.BadParameter):
            length(text)


COMMANDS = [
    ("cost mhsa --n {}", "4096"),
    ("cost mhsa --n 1 --m {}", "4096"),
    ("cost mhsa --over n=1024,{}", "4096"),
    ("explain mhsa --workload decoding --m {}", "4096"),
    ("compile mhsa --n {}", "4096"),
    ("draw mhsa --format dot --cost --n {}", "4096"),
]


@pytest.mark.parametrize(("command", "same"), COMMANDS)
def test_commands_take_them(run: Run, command: str, same: str) -> None:
    short, long = (run(*command.format(text).split()) for text in ("4k", same))
    assert short.code == 0
    assert short == long


def test_what_is_no_length_is_refused_by_name(run: Run) -> None:
    found = run("cost", "mhsa", "--n", "4q")
    assert found.code == 2
    assert "Invalid value for '--n': '4q' is not a length, e.g. 4096, or 4k for 4 x 1024." in found.err
    assert "Invalid value for '--n': '0' is not a length" in run("bench", "mhsa", "--n", "0").err
    assert "Invalid value for '--stride'" in run("evaluate", "run", "--stride", "0").err


def test_explain_as_json(run: Run) -> None:
    plan = json.loads(run("explain", "thsa", "--json").out)
    assert (plan["design"], plan["backend"], plan["lengths"]) == ("thsa", "torch", {"n": 1024, "m": 1024})
    region = next(one for one in plan["regions"] if "A" in one["steps"])
    assert region["chosen"].startswith("blockwise")
    assert region["refused"][0]["against"][:1] == ["the scores are a product of 3 tensors, not two"]
    rewrites = json.loads(run("explain", "thsa", "--rewrites", "--json").out)
    text = ta.rewrites("thsa")
    for one in rewrites:
        assert f"  {one['step']}: {one['rule']}: {one['algebra']}\n" in text
        assert all(f"    + {line}" in text for line in one["added"])
        assert all(f"    - {line}" in text for line in one["removed"])
    cache = json.loads(run("explain", "mla", "--causal", "--decoding", "--json").out)
    assert cache["computed"] == ["C", "y"]
    assert [(one["name"], one["legs"], one["numbers"]) for one in cache["kept"]] == [("C", ["m", "c"], 256)]


def complete(run: Run, monkeypatch: pytest.MonkeyPatch, words: str) -> list[str]:
    monkeypatch.setenv("_TENSORNET_ATTN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(len(words.split(" ")) - 1))
    found = run()
    assert found.code == 0
    return found.out.split()


def test_shells_complete_commands_options_and_designs(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert complete(run, monkeypatch, "tensornet-attn exp") == ["explain"]
    assert complete(run, monkeypatch, "tensornet-attn draw --th") == ["--theme"]
    assert complete(run, monkeypatch, "tensornet-attn draw mhsa_") == ta.list_designs("mhsa_*")


def test_completion_is_installed_for_a_shell(run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: "bash")
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: "bash", raising=False)
    found = run("--show-completion")
    assert "_TENSORNET_ATTN_COMPLETE=complete_bash" in found.out
    assert run("--install-completion").code == 0
    assert list(tmp_path.rglob("*.sh"))
