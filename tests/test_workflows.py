"""What .github/workflows runs: targets of the Makefile, with parts that are together everything."""

from __future__ import annotations

import re
import subprocess
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted(ROOT.glob(".github/workflows/*.yml"))
JOBS = [(path, name) for path in WORKFLOWS for name in yaml.safe_load(path.read_text())["jobs"]]


def commands(job: dict[str, Any]) -> set[str]:
    """The lines that a job runs, with every value of its matrix."""
    matrix = job.get("strategy", {}).get("matrix", {})
    values = [dict(zip(matrix, row, strict=True)) for row in product(*matrix.values())]
    lines = [step["run"] for step in job["steps"] if "run" in step]
    return {
        re.sub(r"\$\{\{ matrix\.(\w+) \}\}", lambda m, row=row: row[m[1]], line) for line in lines for row in values
    }


@pytest.mark.parametrize(("path", "name"), JOBS, ids=lambda value: getattr(value, "stem", value))
def test_a_job_runs_targets_on_all_parts(path: Path, name: str) -> None:
    run = commands(yaml.safe_load(path.read_text())["jobs"][name])
    made = [line for line in run if line.startswith("make ")]
    assert made
    for line in made:
        told = subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
    shards = {line.partition("SHARD=")[2] for line in made if "SHARD=" in line}
    assert shards == {f"{place}/{len(shards)}" for place in range(1, len(shards) + 1)}


def test_the_badge_is_that_of_a_workflow() -> None:
    (name,) = re.findall(r"actions/workflows/([\w.]+)/badge\.svg", (ROOT / "README.md").read_text())
    assert ROOT / ".github/workflows" / name in WORKFLOWS
