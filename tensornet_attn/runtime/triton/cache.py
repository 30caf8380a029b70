"""Tuned configurations on disk: one JSON file, keyed by kernel sources, device, and versions of torch and triton."""

from __future__ import annotations

import json
import os
import warnings
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from tensornet_attn.errors import InputError
from tensornet_attn.files import user_folder, write_whole

Choices = dict[str, dict[str, int]]  # kernel and sizes -> launch configuration
_Config = Annotated[dict[str, Annotated[int, Field(strict=True, gt=0, le=65536)]], Field(min_length=1)]
_TABLE = TypeAdapter(dict[str, dict[str, _Config]])


def cache_file() -> Path:
    """`kernels.json` in `files.user_folder`. Raises InputError if there is none."""
    return user_folder() / "kernels.json"


def cache_key(source: str) -> str:
    """The key of tuned configurations: sources of the kernels and of the runtime, device, torch and triton versions."""
    from importlib import metadata

    import torch

    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    sources = "".join([source, *_library()])
    parts = [sha256(sources.encode()).hexdigest()[:16], device, torch.__version__, metadata.version("triton")]
    return "; ".join(parts)


@cache
def _library() -> tuple[str, ...]:
    """The sources of the runtime's kernels, and of the code that launches them."""
    folder = Path(__file__).parent
    return tuple(
        path.read_text(encoding="utf-8") for path in [folder / "configure.py", *sorted(folder.glob("kernels/*.py"))]
    )


def recall(key: str) -> Choices:
    """The configurations saved under a key, or none. Moves a damaged file aside with a warning."""
    try:
        return _read(cache_file()).get(key, {})
    except InputError:  # no home, so nothing was saved
        return {}


def keep(key: str, choices: Choices) -> Path:
    """Adds configurations to those saved under a key, by an atomic write, and returns the path of the file."""
    path = cache_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = _read(path)
    saved[key] = saved.get(key, {}) | choices
    write_whole(path, (json.dumps(saved, indent=1, sort_keys=True) + "\n").encode())
    return path


def _read(path: Path) -> dict[str, Choices]:
    """The contents of a file. Returns nothing if it is missing, or if it is damaged, after moving it aside."""
    try:
        return _TABLE.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError):
        pass
    aside = path.with_suffix(".damaged")
    os.replace(path, aside)
    warnings.warn(f"{path} is damaged and has been moved to {aside.name}: tune the kernels again.", stacklevel=4)
    return {}
