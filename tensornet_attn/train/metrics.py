"""`metrics.jsonl`: a line an optimiser step and a line a validation, cut back to the checkpoint a run goes on from."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tensornet_attn.files import write_whole

Line = dict[str, Any]
FILE = "metrics.jsonl"


def read(path: Path) -> list[Line]:
    """The whole lines of a file, in order; a torn one ends it."""
    return list(_lines(path.read_bytes())) if path.exists() else []


def cut(path: Path, step: int) -> list[Line]:
    """Takes out what is torn and what comes after a step; what is left."""
    left = [line for line in read(path) if line["step"] <= step]
    if path.exists():
        write_whole(path, b"".join(map(_written, left)))
    return left


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Adds one line, in one write. Raises OSError."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    try:
        data = _written(line)
        while data:  # a full disk takes a part, and says so when asked to take the rest
            data = data[os.write(handle, data) :]
    finally:
        os.close(handle)


def force(path: Path) -> None:
    """Forces the lines to disk: a checkpoint must not outlive the lines before it."""
    if path.exists():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def median_speed(lines: list[Line]) -> float:
    """The median of tokens a second over all optimiser steps."""
    found = sorted(line["tokens_per_second"] for line in lines if "tokens_per_second" in line)
    return found[len(found) // 2] if found else math.nan


def _lines(data: bytes) -> Iterator[Line]:
    for text in data.splitlines(keepends=True):
        try:
            line = json.loads(text) if text.endswith(b"\n") else None
        except ValueError:
            return
        if not isinstance(line, dict) or not isinstance(line.get("step"), int):
            return
        yield line


def _written(line: Mapping[str, Any]) -> bytes:
    return json.dumps(line, allow_nan=False).encode() + b"\n"
