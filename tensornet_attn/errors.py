"""The errors of the package. Each message says what is wrong, where, and how to fix it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches


class TensornetError(Exception):
    """Base class of the errors that a user can fix. The command line exits with status 1."""


class InputError(TensornetError, ValueError):
    """An argument of a Python call is invalid. The message names the argument and what it accepts."""


class MissingPartError(TensornetError, ImportError):
    """An optional dependency is not installed. The message gives the command that installs it; the exit status is 3."""


@dataclass(frozen=True)
class Problem:
    """A problem of a design: a code, a message, a location and a hint.

    `line` and `column` count from 1. For a design built in Python they are None, and `field` gives the location.
    `source` is the line of text shown above the caret; `width` is the length of the marked text.
    """

    code: str
    message: str
    hint: str
    file: str
    field: str
    line: int | None = None
    column: int | None = None
    source: str = ""
    caret: int = 0
    width: int = 1
    severity: str = "error"

    @property
    def place(self) -> str:
        """The location: `file:line:column`, or `design: field` if the design has no file."""
        if self.line is None:
            return f"{self.file}: {self.field}" if self.field else self.file
        return f"{self.file}:{self.line}:{self.column}"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        word = "" if self.severity == "error" else f"{self.severity}: "
        lines = [f"{self.place}: {self.code}: {word}{self.message}"]
        if self.source:
            window, caret = _window(self.source, self.caret)
            lines += [f"    {window}", f"    {' ' * caret}{'^' * max(1, min(self.width, len(window) - caret))}"]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class DesignError(TensornetError, ValueError):
    """A design is invalid, or another kind of file, named by `what`. `problems` lists all its problems."""

    def __init__(self, problems: Iterable[Problem], what: str = "design"):
        self.problems, self.what = tuple(problems), what
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problems, self.what)


def nearest(name: str, names: Iterable[str]) -> str:
    """A hint with the closest known name, `did you mean 'Wq'?`; with a list of the known names if none is close."""
    names = sorted({str(candidate) for candidate in names})
    close = get_close_matches(name[:100], names, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    if not names:
        return "none is declared."
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    return f"known here: {shown}."


def _window(line: str, caret: int, width: int = 100) -> tuple[str, int]:
    """The part of a long line around the caret, and the caret's offset in it. Control characters become spaces."""
    clean = "".join(c if c.isprintable() else " " for c in line)
    if len(clean) <= width:
        return clean, min(caret, len(clean))
    start = max(0, min(caret - width // 2, len(clean) - width))
    return clean[start : start + width], caret - start


def need_triton() -> None:
    """Raises MissingPartError if triton is not installed."""
    from importlib.util import find_spec

    if find_spec("triton") is None:
        raise MissingPartError("kernels need triton, which is not installed: run 'pip install triton' on Linux.")
