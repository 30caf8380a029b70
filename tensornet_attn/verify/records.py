"""What is known of compiled libraries: a record beside each says whether it agreed with the reference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tensornet_attn.version import __version__

CHECK = 1  # raised when the comparison with the reference finds more: libraries are then compared again


def record_of(path: Path) -> dict[str, Any]:
    """What the record of a comparison is about: the library, by its content, and the version that compared it."""
    return {"library": path.stem.rpartition("-")[2], "version": __version__, "check": CHECK}


def verdict_of(path: Path | None) -> str | None:
    """Why a library must not be used, by its record; empty if it agreed with the reference, None if none is known."""
    try:
        record = json.loads(path.with_suffix(".json").read_text(encoding="utf-8")) if path is not None else {}
        reason = record.pop("reason")
    except (OSError, ValueError, KeyError, AttributeError):
        return None
    return reason if isinstance(reason, str) and path is not None and record == record_of(path) else None
