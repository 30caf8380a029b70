"""The shipped files: designs, a folder a family, and models of designs; where they are, and which there are."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from tensornet_attn.errors import InputError, nearest

MODELS = "models"  # the folder of models; every other one is a family of designs


@cache
def folder() -> Path:
    """The folder of the shipped files: beside this package in a wheel, beside its parent in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_specs"
    return installed if installed.is_dir() else package.parent / "specs"


@cache
def _paths(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*/*.yaml"), key=lambda path: path.stem)}


def names(pattern: str = "*", what: str = "design") -> list[str]:
    """The names of the shipped designs that match a pattern such as `fish*`, in alphabetical order.

    `what`: design or model; no design has the name of a model.
    """
    shipped = [name for name, path in _paths(folder()).items() if (path.parent.name == MODELS) == (what == "model")]
    return [name for name in shipped if fnmatchcase(name, pattern)]


def path_of(name: str, what: str = "design") -> Path:
    """The file of a shipped design or model. Raises InputError."""
    if name not in (known := names(what=what)):
        raise InputError(f"there is no shipped {what} '{name}'; {nearest(name, known)}")
    return _paths(folder())[name]


def file_of(name: str) -> Path | None:
    """The file of a shipped design or model; None for a name that is neither's."""
    return _paths(folder()).get(name)


def family_of(name: str) -> str:
    """The folder a shipped design stands in: the paper's short name."""
    return path_of(name).parent.name
