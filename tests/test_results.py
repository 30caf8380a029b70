"""The tables of docs/results.md and docs/search-results.md are those of the runs and studies recorded beside them."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tensornet_attn.search import load
from tensornet_attn.search.evolve import draft
from tensornet_attn.search.study_file import read
from tensornet_attn.tasks import task_named
from tests.scripts import printed

RESULTS = Path(__file__).resolve().parents[1] / "docs" / "results"


# Those of runs; what was timed on a machine is of other tests.
TRAINED = sorted(path.stem for path in RESULTS.glob("*.json") if "machine" not in json.loads(path.read_text()))


@pytest.mark.parametrize("name", TRAINED)
def test_tables(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("results/runs", name, "--table", "--out", str(tmp_path))
    scores, found = (printed(*words, *more, capsys=capsys) for more in ([], ["--analyses"]))
    page = RESULTS.with_suffix(".md").read_text()
    assert len(scores.splitlines()) > 3
    assert scores in page
    assert len(found.splitlines()) == 2 or found in page


def texts(*words: str, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = os.environ | ({} if path is None else {"PATH": str(path)})
    command = [sys.executable, str(RESULTS / "texts.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


def test_the_standard_library_is_a_text_of_whole_modules_the_same_each_time(tmp_path: Path) -> None:
    one, two = (texts("stdlib", "-o", str(tmp_path / name), "--megabytes", "0.2") for name in "ab")
    text = (tmp_path / "a").read_bytes()
    assert text == (tmp_path / "b").read_bytes()
    assert text.isascii()
    assert 150_000 < len(text) <= 200_000
    assert one.stderr.partition(": ")[2] == two.stderr.partition(": ")[2]
    assert f" modules of Python {platform.python_version()}; {len(text):,} characters, " in one.stderr
    assert hashlib.sha256(text).hexdigest() in one.stderr
    task = task_named("char_lm", path=str(tmp_path / "a"), length=64)
    assert task.vocabulary == len(set(text))
    root = Path(sysconfig.get_path("stdlib"))
    assert (root / "keyword.py").read_bytes() in _whole(tmp_path)


def _whole(tmp_path: Path) -> bytes:
    assert texts("stdlib", "-o", str(tmp_path / "c"), "--megabytes", "50").returncode == 0
    return (tmp_path / "c").read_bytes()


def test_the_bible_is_what_debians_program_prints(tmp_path: Path) -> None:
    missing = texts("bible", "-o", str(tmp_path / "a"), path=tmp_path)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert missing.stderr == (
        "error: there is no program 'bible': on Debian, apt-get install bible-kjv bible-kjv-text.\n"
    )
    program = tmp_path / "bible"
    program.write_text('#!/bin/sh\necho "Ge1:1 In the beginning $1 $2."\necho "Ge1:2 And the earth"\n')
    program.chmod(0o755)
    assert texts("bible", "-o", str(tmp_path / "a"), path=tmp_path).returncode == 0
    assert (tmp_path / "a").read_text() == "In the beginning -f gen1:1-rev22:21.\nAnd the earth\n"


def test_pairs_of_the_standard_library_are_read_as_glue_is(tmp_path: Path) -> None:
    words = [sys.executable, "-W", "ignore", str(RESULTS / "pairs.py"), "-o", str(tmp_path), "--most", "200"]
    told = subprocess.run(words, capture_output=True, text=True, check=True).stderr
    assert told == f"{tmp_path}: 200 pairs in train.tsv, 100 pairs in dev.tsv, of Python {platform.python_version()}\n"
    for split, count in (("train", 200), ("dev", 100)):
        header, *lines = (tmp_path / f"{split}.tsv").read_text().splitlines()
        rows = [line.split("\t") for line in lines]
        assert header.split("\t") == ["index", "question", "sentence", "label"]
        assert [row[0] for row in rows] == [str(i) for i in range(count)]
        assert 0.4 < sum(row[3] == "entailment" for row in rows) / count < 0.6


STUDIES = RESULTS / "studies"


@pytest.mark.parametrize("name", sorted(path.stem for path in STUDIES.glob("*.json")))
def test_tables_of_studies(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    told = printed("results/studies", name, "--table", capsys=capsys)
    assert len(told.splitlines()) >= 2 + 2 * 3  # two arms of three studies
    assert told in (RESULTS.parent / "search-results.md").read_text()


def test_the_spread_of_scores_that_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    told = printed("results/studies", "small_copying", "--spread", capsys=capsys)
    assert "".join(f"    {line}\n" for line in told.splitlines()) in (RESULTS.parent / "search-results.md").read_text()


AGAIN = sorted(path.stem for path in STUDIES.glob("*.yaml"))


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "resized")) for name in AGAIN])
def test_studies_can_be_run_again(name: str) -> None:
    study = read(STUDIES / f"{name}.yaml", {})
    assert study.finalists >= 2
    assert len(draft(study, load(study.space), 0, ()).proposal.path) > 1


def test_prices(capsys: pytest.CaptureFixture[str]) -> None:
    """Layers with one source are not timed; of the others, the ratio is printed."""
    words = ("mhsa", "mamba2", "--n", "8", "--rounds", "3", "--seconds", "0.1")
    mhsa, mamba2 = printed("results/prices", *words, capsys=capsys).splitlines()
    assert mhsa.endswith("  the same source")
    assert re.search(r"n +8  cpu / generic \d+\.\d\d in 3 rounds \(generic .* ms, cpu .* ms\)$", mamba2)
