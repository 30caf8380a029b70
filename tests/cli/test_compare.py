"""`compare` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

from tests.compare.folders import several


def test_a_table_json_and_a_page(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    paths = list(map(str, several(tmp_path, "a", [0.5, 0.7])))
    page = tmp_path / "report.html"
    told = run("compare", *paths, "-o", str(page))
    assert (told.code, told.err) == (0, "")
    assert told.out.startswith("mqar\n")
    assert page.read_text().startswith("<!DOCTYPE html>")
    data = json.loads(run("compare", *paths, "--json", "--by", "eval_loss").out)
    assert data["tasks"][0]["sorted_by"] == "eval_loss"
    assert run("compare", *paths, "-o", "-").out.startswith("<!DOCTYPE html>")


def test_usage(run) -> None:  # type: ignore[no-untyped-def]
    assert run("compare").code == 2
