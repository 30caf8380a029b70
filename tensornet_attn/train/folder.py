"""Checkpoints as folders that appear whole or not at all: written aside, forced to disk, renamed, the last few kept."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

STATE = "state.json"
_NAME = re.compile(r"step-(\d{8,})\Z")
_ASIDE = "."  # how the name of a folder begins that is being written or removed


@dataclass(frozen=True)
class Saved:
    """A whole checkpoint: its folder, the step after which it was written, and what `state.json` says."""

    path: Path
    step: int
    state: Mapping[str, Any]


def checkpoints(folder: Path) -> list[Saved]:
    """The whole checkpoints in a folder, by step."""
    found = (_opened(path) for path in folder.iterdir()) if folder.is_dir() else ()
    return sorted((saved for saved in found if saved is not None), key=lambda saved: saved.step)


def write(folder: Path, step: int, state: Mapping[str, Any], files: Mapping[str, bytes], keep: int) -> Path:
    """Writes the checkpoint of a step and removes all but the last `keep`. OSError leaves the others intact."""
    name = f"step-{step:08d}"
    aside, path = folder / f"{_ASIDE}{name}", folder / name
    state = {**state, "step": step, "files": {file: len(data) for file, data in files.items()}}
    try:
        folder.mkdir(exist_ok=True)
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        for file, data in [*files.items(), (STATE, json.dumps(state, indent=1).encode())]:
            _put(aside / file, data)
        _force(aside)
        os.rename(aside, path)
        _force(folder)
    except OSError:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    for saved in checkpoints(folder)[:-keep]:
        _remove(saved.path)
    return path


def clean(folder: Path) -> None:
    """Removes what a killed process left behind: folders half written, half removed, or torn."""
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        if path.name.startswith(_ASIDE):
            shutil.rmtree(path, ignore_errors=True)
        elif _NAME.match(path.name) and _opened(path) is None:
            _remove(path)


def _opened(path: Path) -> Saved | None:
    """The checkpoint of a folder; None for one that is none, or torn."""
    match = _NAME.match(path.name)
    if not match:
        return None
    try:
        state = json.loads((path / STATE).read_bytes())
        whole = all((path / file).stat().st_size == size for file, size in state["files"].items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return Saved(path, int(match[1]), state) if whole and state.get("step") == int(match[1]) else None


def _remove(path: Path) -> None:
    """Out of sight in one move, then gone: a kill in between leaves no folder that looks whole."""
    aside = path.with_name(f"{_ASIDE}gone-{path.name}")
    shutil.rmtree(aside, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rename(path, aside)
        shutil.rmtree(aside, ignore_errors=True)


def _put(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _force(folder: Path) -> None:
    """Forces the names in a folder to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
