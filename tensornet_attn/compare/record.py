"""Reads the folder of a run: configuration, metrics, and the summary if the run is finished."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from tensornet_attn.errors import InputError
from tensornet_attn.models.config import STACKS
from tensornet_attn.models.read import ModelSpec, load
from tensornet_attn.spec import Design
from tensornet_attn.train.config import MACHINE, SIZES, Run, read

CONFIG, METRICS, SUMMARY = "run.yaml", "metrics.jsonl", "summary.json"
NEEDED = ("eval", "macs_per_token", "parameters", "peak_memory_bytes", "tokens_per_second")  # keys of a summary


@dataclass(frozen=True, eq=False)
class Record:
    """A run.

    `lines`: optimiser steps (`step`, `loss`) and validations (`step`, `eval_...`). `summary`: None if not finished.
    """

    path: str
    run: Run
    spec: ModelSpec
    lines: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any] | None

    @property
    def seed(self) -> int:
        return self.run.seed

    @property
    def last_step(self) -> int:
        return max((line["step"] for line in self.lines), default=0)

    @cached_property
    def recipe(self) -> dict[str, Any]:
        """The configuration without the seed and the keys of the machine."""
        options = self.run.model_dump(exclude={"seed", "model", "design", *SIZES, *MACHINE})
        config = self.spec.config.model_dump(exclude=set(STACKS))
        blocks = [
            (stack, role, layer.design.to_yaml(), layer.causal)
            for stack, blocks in self.spec.stacks.items()
            for block in blocks
            for role, layer in block.items()
        ]
        return options | {"model": config, "blocks": blocks}

    @cached_property
    def designs(self) -> dict[str, Design]:
        return designs_by_name(self.spec)

    def curve(self, key: str) -> dict[int, float]:
        """The finite values of a metric by step."""
        pairs = ((line["step"], line.get(key)) for line in self.lines)
        return {step: float(metric) for step, metric in pairs if metric is not None and math.isfinite(metric)}

    @property
    def scores(self) -> dict[str, float]:
        """The last validation's finite values: `eval_loss` in nats, perplexity or bits, accuracies, also of groups."""
        values = self.summary["eval"] if self.summary else {}
        return {key: float(score) for key, score in values.items() if score is not None}


def designs_by_name(spec: ModelSpec) -> dict[str, Design]:
    """The designs of a model by name, in the order of layers; the first design of each name."""
    designs: dict[str, Design] = {}
    for block in chain.from_iterable(spec.stacks.values()):
        for layer in block.values():
            designs.setdefault(layer.design.name, layer.design)
    return designs


def record(path: str | Path) -> Record:
    """Reads the run in a folder.

    Raises InputError if the folder has no run or cannot be read, and DesignError for problems of its configuration.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"'{path}' is not a folder; give folders that 'tensornet-attn train --out' has written.")
    if not (folder / CONFIG).is_file():
        raise InputError(f"'{path}' has no {CONFIG}; give folders that 'tensornet-attn train --out' has written.")
    run = read(folder / CONFIG, {})
    if run.model is None:
        raise InputError(f"'{folder / CONFIG}' has no model; give a folder that 'tensornet-attn train' has written.")
    return Record(str(path), run, load(run.model), tuple(_lines(folder / METRICS)), _summary(folder / SUMMARY))


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """The lines of a file; the last line may be incomplete, because runs can be killed at any time."""
    raw_lines = _text(path).split("\n") if path.exists() else [""]
    for number, raw_line in enumerate(raw_lines[:-1], 1):
        line = _json(raw_line)
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            if number < len(raw_lines) - 1:
                raise InputError(f"'{path}', line {number}: not a JSON object with a 'step'; remove the line.")
            return
        yield line


def _summary(path: Path) -> Mapping[str, Any] | None:
    """The summary of a run; None if it is not finished. Raises InputError for a damaged summary."""
    if not path.exists():
        return None
    summary: Mapping[str, Any] = _json(_text(path))
    missing = [key for key in NEEDED if key not in summary] if isinstance(summary, dict) else list(NEEDED)
    if missing or not isinstance(summary["eval"], dict):
        raise InputError(f"'{path}' is damaged: it has no '{(missing or ['eval'])[0]}'; remove it and finish the run.")
    return summary


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"'{path}' is not UTF-8 text; restore the file.") from None


def _json(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        return None
