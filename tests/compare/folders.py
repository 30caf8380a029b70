"""Run folders for tests, as the trainer leaves them, without training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

import tensornet_attn as ta

COSTS = {
    "macs_per_token": 81920.0,
    "parameters": 70016,
    "peak_memory_bytes": 400_000_000,
    "tokens_per_second": 13_400.0,
}


def model(design: Any = "mhsa", **config: Any) -> dict[str, Any]:
    """A model of one design, as a run file holds it."""
    layers = config.pop("layers", [{"mixer": {"design": design, "legs": {"h": 2}}}])
    config = {"kind": "language_model", "vocabulary": 16, "length": 8, "width": 8, "layers": layers} | config
    spec = ta.models.load({"tensornet": 1, "name": design if isinstance(design, str) else "own", "model": config})
    return YAML(typ="safe").load(spec.to_yaml(whole=True))


def folder(
    path: Path,
    score: float | None = 0.5,
    seed: int = 0,
    loss: float = 1.0,
    judged: dict[str, float] | None = None,
    **run: Any,
) -> Path:
    """A run that ended with an accuracy, and with `judged` beside it; with None it has not finished."""
    path.mkdir(parents=True)
    config = {"run": 1, "task": "mqar", "model": model(), "steps": 4, "seed": seed} | run
    (path / "run.yaml").write_text(json.dumps(config))  # JSON is YAML
    lines: list[dict[str, Any]] = [{"step": step, "loss": 3 / step + 0.01 * seed} for step in (1, 2, 3)]
    if score is not None:
        ended = {"eval_loss": loss, "eval_accuracy": score} | (judged or {})
        lines += [{"step": 4, "loss": 0.75}, {"step": 4, **ended}]
        summary = {"eval": ended, "command": f"tensornet-attn train --seed {seed}", **COSTS}
        (path / "summary.json").write_text(json.dumps(summary))
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def several(root: Path, name: str, scores: list[float], **run: Any) -> list[Path]:
    """Runs of seeds 0, 1, 2, ..."""
    return [folder(root / f"{name}{seed}", score, seed, **run) for seed, score in enumerate(scores)]
