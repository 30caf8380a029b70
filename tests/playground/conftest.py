"""The Python half of the playground's page, and the page itself, built once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.scripts import script

SOURCES = Path(__file__).parents[2] / "docs" / "playground"
Ask = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def ask() -> Ask:
    """`ask("check", text=...)`: what the page's worker gets for a request."""
    answers = script("playground/answers")

    def call(want: str, **request: Any) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(answers.answer(json.dumps({"want": want, **request})))
        return found

    return call


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built page."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder = tmp_path_factory.mktemp("page") / "playground"
    done = subprocess.run(
        [sys.executable, str(SOURCES / "build.py"), str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return folder
