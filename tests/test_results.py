"""The tables of docs/results.md are those of the runs recorded beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.json")))
def test_tables(name: str, tmp_path: Path) -> None:
    words = [sys.executable, str(RESULTS / "runs.py"), name, "--table", "--out", str(tmp_path)]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert len(told.splitlines()) > 3
    assert told in RESULTS.with_suffix(".md").read_text()
