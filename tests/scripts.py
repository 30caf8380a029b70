"""Scripts of docs/ as modules."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[1] / "docs"


def script(name: str) -> ModuleType:
    """A script by its path below docs/, without its suffix."""
    path = DOCS / name
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path.parent))  # as python does with the folder of a script
        return import_module(path.name)
