"""What the files of `files/` give when they are loaded by the public face: figures to compare with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tensornet_attn as ta
from tests.pins.make_files import FILES, RUN, RUN_LM, SMALL, trained, unpack, wave


def layer(folder: Path) -> dict[str, Any]:
    found = ta.restore(FILES / "layer.pt").eval()
    with torch.no_grad():
        out = found(wave(2, 6, 8))
    return {
        "design": found.design.name,
        "legs": dict(found.design.legs),
        "causal": found.plan.graph.causal,
        "output": out[0, -1].tolist(),
        "embedding": ta.read_checkpoint(FILES / "layer.pt").extra["embedding"][0].tolist(),
    }


def model(folder: Path) -> dict[str, Any]:
    found = ta.restore(FILES / "model.pt").eval()
    source = torch.arange(12).reshape(2, 6) % 7
    with torch.no_grad():
        return {"kind": found.kind, "output": found(source, source)[0, -1].tolist()}


def model_yaml(folder: Path) -> dict[str, Any]:
    found = ta.models.load(str(FILES / "model.yaml"))
    cost = found.cost(n=8)
    return {"kind": found.kind, "macs": cost.macs, "parameters": cost.parameters}


def converted(folder: Path) -> dict[str, Any]:
    found, x = ta.restore(FILES / "converted.pt").eval(), wave(2, 6, 8)
    with torch.no_grad():
        gap = (found(x) - trained()(x, x, x)[0]).abs().max()
        return {"agrees": bool(gap < 1e-9), "output": found(x)[0, -1].tolist()}


def run(folder: Path) -> dict[str, Any]:
    """A run that is done is left alone; with more steps it goes on from its checkpoint."""
    path = unpack("run.zip", folder / "run")
    done = ta.train(out=path, **(SMALL | RUN))
    more = ta.train(out=path, **(SMALL | RUN | {"steps": 6}))
    return {"done": figures(done), "more": figures(more)}


def run_lm(folder: Path) -> dict[str, Any]:
    path = unpack("run_lm.zip", folder / "run_lm")
    return {"more": figures(ta.train(out=path, **(SMALL | RUN_LM | {"steps": 6})))}


def figures(summary: dict[str, Any]) -> dict[str, Any]:
    """The figures of a summary that no machine decides."""
    return {key: summary[key] for key in ("steps", "parameters", "eval")}


def study(folder: Path) -> dict[str, Any]:
    """A study that is done: nothing is trained again."""
    path = unpack("study.zip", folder / "study")
    before = trained_runs(path)
    found = ta.search(out=path)
    assert trained_runs(path) == before
    found_as_data = found.as_dict()
    found_as_data.pop("out")
    return {"values": [dict(trial.values or {}) for trial in found.trials if trial.slot >= 0], **found_as_data}


def trained_runs(path: Path) -> list[tuple[str, bytes]]:
    return sorted((str(file), file.read_bytes()) for file in (path / "trials").rglob("*.jsonl"))


FROM: dict[str, Callable[[Path], dict[str, Any]]] = {
    "layer": layer,
    "model": model,
    "model_yaml": model_yaml,
    "converted": converted,
    "run": run,
    "run_lm": run_lm,
    "study": study,
}


def values(folder: Path) -> dict[str, dict[str, Any]]:
    return {name: made(folder) for name, made in FROM.items()}
