"""`cost --table`."""

from __future__ import annotations

import json

import pytest

from tensornet_attn.cost.paper import TABLES


@pytest.mark.parametrize("name", ["fish", "swin"])
def test_a_table_in_text_and_json(run, name: str) -> None:
    text = run("cost", "--table", name)
    assert (text.code, text.err) == (0, "")
    assert text.out.startswith(f"{name}: ")
    found = json.loads(run("cost", "--table", name, "--json").out)
    assert found["table"] == name
    for entry in found["numbers"]:
        if entry["state"] not in ("measured", "drawn"):
            assert f"{entry['paper']:,}" in text.out


def test_all_tables_at_once(run) -> None:
    text = run("cost", "--table", "all").out
    assert [line.partition(":")[0] for line in text.splitlines() if line.partition(":")[0] in TABLES] == [*TABLES]
    tables = json.loads(run("cost", "--table", "all", "--json").out)
    assert [found["table"] for found in tables] == [*TABLES]
    for entry in (entry for found in tables for entry in found["numbers"]):
        if entry["state"] not in ("measured", "drawn"):
            assert entry["paper"] == entry["ours"] + sum(a["value"] for a in entry["adjustments"])
            assert entry["difference"] == entry["paper"] - entry["ours"]


def test_an_unknown_table_gets_the_nearest(run) -> None:
    assert run("cost", "--table", "tuformers") == (
        1,
        "",
        "error: there is no cost table 'tuformers': did you mean 'tuformer'?\n",
    )


def test_a_design_or_a_table_is_needed(run) -> None:
    outcome = run("cost")
    assert (outcome.code, outcome.out) == (2, "")
    assert "name a design, or a table with --table." in outcome.err
