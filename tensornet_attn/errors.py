"""Every error a user can meet; each says what is wrong, where, and what would be right."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches


class TensornetError(Exception):
    """Base of every error this package raises for something the user can mend (exit status 1)."""


class InputError(TensornetError, ValueError):
    """An argument of a Python call is wrong: the message names it, and what would be right."""


class MissingPartError(TensornetError, ImportError):
    """An optional part is not installed (exit status 3): the message says how to install it."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong with a design: a code, a sentence, a place and a hint.

    `line` and `column` count from 1 and are None for a design built in Python, where `field` names the place.
    `source` is the line of text the caret stands under, `width` the length of the token.
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
        """`file:line:column`, or `design: field` for a design that has no file."""
        if self.line is None:
            return f"{self.file}: {self.field}" if self.field else self.file
        return f"{self.file}:{self.line}:{self.column}"

    def as_dict(self) -> dict[str, object]:
        return asdict(self)

    def __str__(self) -> str:
        word = "" if self.severity == "error" else f"{self.severity}: "
        lines = [f"{self.place}: {self.code}: {word}{self.message}"]
        if self.source:
            text, caret = _window(self.source, self.caret)
            lines += [f"    {text}", f"    {' ' * caret}{'^' * max(1, min(self.width, len(text) - caret))}"]
        if self.hint:
            lines.append(f"  hint: {self.hint}")
        return "\n".join(lines)


class DesignError(TensornetError, ValueError):
    """A design is refused, or `what` else a file says; `problems` lists everything wrong with it."""

    def __init__(self, problems: Iterable[Problem], what: str = "design"):
        self.problems, self.what = tuple(problems), what
        super().__init__("\n".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.problems, self.what)


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known name, else the known names: `did you mean 'Wq'?`."""
    known = sorted({str(k) for k in known})
    close = get_close_matches(name[:100], known, n=1, cutoff=0.6)
    if close:
        return f"did you mean '{close[0]}'?"
    if not known:
        return "none is declared."
    shown = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
    return f"known here: {shown}."


def _window(text: str, caret: int, width: int = 100) -> tuple[str, int]:
    """The part of a long line around the caret, with control characters made visible."""
    clean = "".join(c if c.isprintable() else " " for c in text)
    if len(clean) <= width:
        return clean, min(caret, len(clean))
    start = max(0, min(caret - width // 2, len(clean) - width))
    return clean[start : start + width], caret - start
