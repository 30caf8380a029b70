"""The tables of docs/results.md and docs/search.md are those of the runs and studies recorded beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tensornet_attn.search import load
from tensornet_attn.study.evolve import draft
from tensornet_attn.study.read import read

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.json")))
def test_tables(name: str, tmp_path: Path) -> None:
    words = [sys.executable, str(RESULTS / "runs.py"), name, "--table", "--out", str(tmp_path)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert len(told.splitlines()) > 3
    assert told in RESULTS.with_suffix(".md").read_text()


STUDIES = RESULTS / "studies"


@pytest.mark.parametrize("name", sorted(path.stem for path in STUDIES.glob("*.json")))
def test_tables_of_studies(name: str) -> None:
    words = [sys.executable, str(RESULTS / "studies.py"), name, "--table"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert len(told.splitlines()) >= 2 + 2 * 3  # two arms of three studies
    assert told in (RESULTS.parent / "search.md").read_text()


def test_the_spread_of_scores_that_the_page_shows() -> None:
    words = [sys.executable, str(RESULTS / "studies.py"), "small_copying", "--spread"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "".join(f"    {line}\n" for line in told.splitlines()) in (RESULTS.parent / "search.md").read_text()


AGAIN = sorted(path.stem for path in STUDIES.glob("*.yaml"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "resized")) for name in AGAIN])
def test_studies_can_be_run_again(name: str) -> None:
    study = read(STUDIES / f"{name}.yaml", {})
    assert study.finalists >= 2
    assert len(draft(study, load(study.space), 0, ()).proposal.path) > 1
