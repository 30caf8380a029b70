"""The JSON that commands print has the keys and types that are pinned, on files that are committed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tensornet_attn.cli import main
from tests.pins.make_files import BENCH, FILES, unpack
from tests.pins.pinned import Pinned

# {run}, {run_lm} and {study} are the folders of `files/`, unpacked; {files} is `files/`.
COMMANDS = {
    "list": "list --json",
    "list models": "list --models --json",
    "check": "check mhsa {files}/space.yaml --json",
    "cost of a design": "cost epa --n 16 --json",
    "cost of a model": "cost {files}/model.yaml --json",
    "cost over sizes": "cost mhsa --over h=1,2 --against mqa --n 16 --json",
    "cost of a paper": "cost --table swin --json",
    "lattice": "lattice mhsa --json",
    "space": "space {files}/space.yaml --samples 2 --json",
    "train": "train --config {run}/run.yaml --out {run} --json",
    "evaluate": "evaluate {run} --samples 8 --json",
    "analyse": "analyse {run} --batch 2 --json",
    "compare": "compare {run} --json",
    "search": "search --out {study} --json",
    "doctor": "doctor --json",
}
SLOW = ("lattice", "search")  # a second or more
OF_THE_MACHINE = ("machine", "load", "versions", "devices", "optional parts")  # keys and types differ


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in COMMANDS])
def test_json(name: str, pinned: Pinned, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    places = {key: unpack(f"{key}.zip", tmp_path / key) for key in ("run", "study") if f"{{{key}}}" in COMMANDS[name]}
    main([word.format(files=FILES, **places) for word in COMMANDS[name].split()])
    pinned.check("outputs.txt", name, structure(json.loads(capsys.readouterr().out)))


def test_json_of_bench(pinned: Pinned, capsys: pytest.CaptureFixture[str]) -> None:
    """As `bench` prints it, and as it was written."""
    main(["bench", "mhsa", *BENCH, "--json"])
    pinned.check("outputs.txt", "bench", structure(json.loads(capsys.readouterr().out)))
    pinned.check("outputs.txt", "bench", structure(json.loads((FILES / "bench.json").read_text(encoding="utf-8"))))


def test_files_of_a_run_and_a_study(pinned: Pinned, tmp_path: Path) -> None:
    """What stands in the folders: the data, not the pictures."""
    found = []
    for name in ("run", "study"):
        folder = unpack(f"{name}.zip", tmp_path / name)
        for file in sorted(folder.rglob("*.json*")):
            if len(file.relative_to(folder).parts) == 1 or name == "run":
                lines = file.read_text(encoding="utf-8").splitlines()
                data = [json.loads(line) for line in lines] if file.suffix == ".jsonl" else json.loads("".join(lines))
                found += [f"{name}/{file.relative_to(folder)} {line}" for line in structure(data)]
    pinned.check("outputs.txt", "files", found)


def structure(value: Any) -> list[str]:
    """`results[].design: text`, a line a place: what may stand there; `?` where some of a list lack it."""
    found: dict[str, set[str]] = {}
    counts: dict[str, int] = {}
    _look(value, "", found, counts)
    lines = []
    for place, kinds in found.items():
        around = place.rpartition(".")[0]
        some = counts[place] < counts.get(around, 0) and not place.endswith("[]")
        lines.append(f"{place or '(whole)'}{'?' * some}: {' or '.join(sorted(kinds))}")
    return lines


def _look(value: Any, place: str, found: dict[str, set[str]], counts: dict[str, int]) -> None:
    kinds = {dict: "object", list: "list", str: "text", bool: "boolean", int: "number", float: "number"}
    own = place.partition(".")[0].partition("[")[0] in OF_THE_MACHINE
    found.setdefault(place, set()).add("of the machine" if own else kinds.get(type(value), "null"))
    counts[place] = counts.get(place, 0) + 1
    if isinstance(value, dict) and not own:
        for key, one in value.items():
            _look(one, f"{place}.{key}" if place else key, found, counts)
    elif isinstance(value, list) and not own:
        for one in value:
            _look(one, f"{place}[]", found, counts)
