"""The shipped files: designs, with a folder for each family, and models."""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from shlex import quote

from tensornet_attn.errors import InputError, nearest

MODELS = "models"  # the folder of models; every other folder is a family of designs


@cache
def folder() -> Path:
    """The folder of the shipped files: inside the package in a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_specs"
    return installed if installed.is_dir() else package.parent / "specs"


@cache
def _paths(folder: Path) -> dict[str, Path]:
    return {path.stem: path for path in sorted(folder.glob("*/*.yaml"), key=lambda path: path.stem)}


def names(pattern: str = "*", what: str = "design") -> list[str]:
    """The names of the shipped designs, or models, that match a pattern such as `fish*`, in alphabetical order.

    `what` is `design` or `model`. No design has the name of a model.
    """
    shipped = [name for name, path in _paths(folder()).items() if (path.parent.name == MODELS) == (what == "model")]
    return [name for name in shipped if fnmatchcase(name, pattern)]


def path_of(name: str, what: str = "design") -> Path:
    """The file of a shipped design or model. Raises InputError if there is none of this name."""
    if name not in (shipped := names(what=what)):
        raise InputError(f"there is no shipped {what} '{name}'; {nearest(name, shipped)}")
    return _paths(folder())[name]


def file_of(name: str) -> Path | None:
    """The file of a shipped design or model. Returns None if there is none of this name."""
    return _paths(folder()).get(name)


def family_of(name: str) -> str:
    """The folder of a shipped design: the short name of the paper."""
    return path_of(name).parent.name


def name_in_command(name: str, path: Path | str | None) -> str:
    """How a command names a design: a shipped name, otherwise the path of its file, or its name if it has none."""
    if path is None or Path(path).is_relative_to(folder()):
        return name
    resolved = Path(path).resolve()
    return quote(str(resolved.relative_to(Path.cwd()) if resolved.is_relative_to(Path.cwd()) else resolved))


def origin(name: str, path: Path | str | None) -> str:
    """The path of a shipped design in the repository, or the name of another design."""
    shipped = path is not None and Path(path).parent.parent == folder()
    return f"specs/{Path(path).parent.name}/{Path(path).name}" if shipped and path else f"the design '{name}'"
