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


def printed(name: str, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a script prints on standard output for these arguments, run in this process."""
    capsys.readouterr()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", [name, *words])
        assert not script(name).main()
    return capsys.readouterr().out
