"""Modules as a user writes them, in a working directory that is not on the path."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

PARITY = '''
import numpy as np
from pydantic import Field

from tensornet_attn.tasks.alphabet import Alphabet
from tensornet_attn.tasks.recipe import Generated, Recipe, Source, drawn


class Options(Generated):
    """How many bits are added up."""

    length: int = Field(8, ge=1, description="bits of a sample")


def _make(options, draws):
    bits = draws.below(0, options.length, 2)
    return {"tokens": bits, "targets": bits.sum(1) % 2}, np.arange(len(bits))


def _open(options, cache):
    make = drawn(lambda draws: _make(options, draws))
    return Source("classification", Alphabet(("0", "1")), options.length, options.sizes, make, classes=("even", "odd"))


parity = Recipe("parity", 1, "Whether a sample has an odd number of ones.", Options, _open)
'''


def write(monkeypatch: pytest.MonkeyPatch, folder: Path, name: str, text: str = PARITY) -> None:
    """Writes a module, forgets an imported one of its name, and makes the folder the working directory.

    Afterwards, the path and the imported modules are as before.
    """
    (folder / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path not in ("", str(folder))])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setitem(sys.modules, name, None)  # type: ignore[arg-type]
    del sys.modules[name]
    importlib.invalidate_caches()
