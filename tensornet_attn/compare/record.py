"""A run folder as it was read: what was asked for, what was measured, and the summary of a run that has finished."""

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
NEEDED = ("eval", "macs_per_token", "parameters", "peak_memory_bytes", "tokens_per_second")  # of a summary


@dataclass(frozen=True, eq=False)
class Record:
    """One run.

    `lines`: optimiser steps (`step`, `loss`) and validations (`step`, `eval_...`). `summary`: None before the run has
    finished.
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
        """All that was asked for but the seed, and but where and how it is computed."""
        asked = self.run.model_dump(exclude={"seed", "model", "design", *SIZES, *MACHINE})
        config = self.spec.config.model_dump(exclude=set(STACKS))
        blocks = [
            (stack, role, part.design.to_yaml(), part.causal)
            for stack, blocks in self.spec.stacks.items()
            for block in blocks
            for role, part in block.items()
        ]
        return asked | {"model": config, "blocks": blocks}

    @cached_property
    def designs(self) -> dict[str, Design]:
        """The designs of the model by name, in the order of its layers; the first of each name."""
        found: dict[str, Design] = {}
        for block in chain.from_iterable(self.spec.stacks.values()):
            for part in block.values():
                found.setdefault(part.design.name, part.design)
        return found

    def curve(self, key: str) -> dict[int, float]:
        """The values of a metric by step; what was not finite is left out."""
        pairs = ((line["step"], line.get(key)) for line in self.lines)
        return {step: float(value) for step, value in pairs if value is not None and math.isfinite(value)}

    @property
    def scores(self) -> dict[str, float | None]:
        """The last validation: `eval_loss` in nats, perplexity or bits, `eval_accuracy`, and that of groups."""
        return dict(self.summary["eval"]) if self.summary else {}


def record(path: str | Path) -> Record:
    """The run in a folder. Raises InputError where it is none, or cannot be read; DesignError for its configuration."""
    folder = Path(path)
    if not folder.is_dir():
        raise InputError(f"'{path}' is no folder; give folders that 'tensornet-attn train --out' has written.")
    if not (folder / CONFIG).is_file():
        raise InputError(
            f"'{path}' is no run, it has no {CONFIG}; give folders that 'tensornet-attn train' has written."
        )
    run = read(folder / CONFIG, {})
    if run.model is None:
        raise InputError(f"'{folder / CONFIG}' has no model, so that this is no run that was started.")
    return Record(str(path), run, load(run.model), tuple(_lines(folder / METRICS)), _summary(folder / SUMMARY))


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """The whole lines of a file; the last one may be torn, since a run may be killed at any moment."""
    texts = _text(path).split("\n") if path.exists() else [""]
    for number, text in enumerate(texts[:-1], 1):
        line = _json(text)
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            if number < len(texts) - 1:
                raise InputError(f"'{path}', line {number}: a JSON object with a 'step' is wanted here.")
            return
        yield line


def _summary(path: Path) -> Mapping[str, Any] | None:
    """The summary of a finished run. Raises InputError for one that is damaged."""
    if not path.exists():
        return None
    found = _json(_text(path))
    missing = [key for key in NEEDED if key not in found] if isinstance(found, dict) else list(NEEDED)
    if missing or not isinstance(found["eval"], dict):
        raise InputError(f"'{path}' is no summary of a run: it says nothing of '{(missing or ['eval'])[0]}'.")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"'{path}' is not UTF-8 text.") from None


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None
