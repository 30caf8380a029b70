"""Files of earlier days load, and give what they gave: checkpoints, runs, a study, a model, a converted attention."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.pins.make_files import FILES, FILES_MADE, unpack
from tests.pins.values import FROM

EXPECTED = json.loads((FILES / "values.json").read_text(encoding="utf-8"))
TRAINED = {"run", "run_lm"}  # in float32, whose last digits differ from machine to machine


@pytest.mark.parametrize("name", FROM)
def test_a_file_loads_as_it_did(name: str, tmp_path: Path) -> None:
    found = json.loads(json.dumps(FROM[name](tmp_path)))
    wrong = list(differences(found, EXPECTED[name], 1e-4 if name in TRAINED else 1e-9))
    assert wrong == []


def differences(found: Any, expected: Any, tolerance: float, place: str = "") -> list[str]:
    """Where two values of JSON differ; numbers that are no whole ones by more than the tolerance, relative."""
    if isinstance(found, dict) and isinstance(expected, dict):
        keys = sorted({*found, *expected})
        missing = [f"{place}.{key}: {found.get(key)} and {expected.get(key)}" for key in {*found} ^ {*expected}]
        both = [key for key in keys if key in found and key in expected]
        return missing + [
            one for key in both for one in differences(found[key], expected[key], tolerance, f"{place}.{key}")
        ]
    if isinstance(found, list) and isinstance(expected, list) and len(found) == len(expected):
        pairs = enumerate(zip(found, expected, strict=True))
        return [one for i, (a, b) in pairs for one in differences(a, b, tolerance, f"{place}[{i}]")]
    if isinstance(found, float) or isinstance(expected, float):
        equal = found == pytest.approx(expected, rel=tolerance, abs=tolerance * 1e-3)
    else:
        equal = found == expected
    return [] if equal else [f"{place}: {found} and {expected}"]


def test_every_file_is_made_and_small() -> None:
    found = {path.name: path.stat().st_size for path in FILES.iterdir()}
    assert {*found} == {*FILES_MADE, "values.json"}
    assert sum(found.values()) < 400_000


def test_the_study_is_a_database_of_optuna_with_its_trials(tmp_path: Path) -> None:
    """What other programs, such as optuna-dashboard, look at: trials and their objectives."""
    with sqlite3.connect(unpack("study.zip", tmp_path) / "study.db") as database:
        states = database.execute("SELECT state, COUNT(*) FROM trials GROUP BY state").fetchall()
    database.close()
    assert states == [("COMPLETE", 14)]
