"""Collects the problems of a document; each has a location, a caret and a hint."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from tensornet_attn import limits
from tensornet_attn.errors import Problem, nearest
from tensornet_attn.ir.tokens import Refusal, Span
from tensornet_attn.spec.places import Document, Path, SourceRange

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_MESSAGE = 400  # characters of a message or a hint; names in it may be long
_LINE = 1_000  # characters of a quoted source line; a line of 256 KiB may have a hundred problems
_COMPARED = 20_000  # names compared for "did you mean" in one document; this bounds the time


@dataclass
class Reporter:
    """The problems of one document."""

    document: Document
    reported: list[Problem] = field(default_factory=list)
    compared: int = 0
    dropped: set[str] = field(default_factory=set)  # names in the values of duplicate keys
    cut: list[Path] = field(default_factory=list)  # wrong keys of boxes, which are checked without them

    @property
    def failed(self) -> bool:
        return any(problem.severity == "error" for problem in self.reported)

    def syntax(self, problem: Refusal, path: Path, shift: int = 0) -> None:
        span = None if problem.span is None else (problem.span[0] + shift, problem.span[1] + shift)
        self.error(problem.code, problem.message, path, span=span, hint=problem.hint)

    def error(
        self,
        code: str,
        message: str,
        path: Path,
        *,
        hint: str,
        span: Span | None = None,
        key: bool = False,
        severity: str = "error",
        place: SourceRange | None = None,
    ) -> None:
        """Adds a problem at the key of a path, at its value, or at a span of its text, unless the path is cut."""
        if path in self.cut:
            return
        exact = place is not None or path in self.document.keys or path in self.document.values
        place = place or self.document.place(path, key)
        scalar = None if key else self.document.text(path)
        file, line, column = self.document.name, 0, 0
        source, caret, width = _caret(scalar, span)
        if place is not None:
            row, caret, width = place.at(span if exact else None)
            source = place.file.lines[row] if row < len(place.file.lines) else ""
            file, line, column = place.file.name, row + 1, caret + 1
        start = max(0, caret - _LINE // 2) if len(source) > _LINE else 0
        source, caret = source[start : start + _LINE], caret - start
        message, hint = printable(message, _MESSAGE), printable(hint, _MESSAGE)
        location = (line or None, column or None, source, caret, width, severity)
        dotted = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
        self.reported.append(Problem(code, message, hint, file, printable(dotted, 200), *location))

    def unknown_key(self, path: Path, candidates: Iterable[str]) -> str:
        """Reports an unknown key; returns the hint, which suggests the closest known key."""
        hint = self.nearest(str(path[-1]), candidates)
        self.error("unknown-key", f"there is no key '{printable(str(path[-1]))}' here.", path, key=True, hint=hint)
        return hint

    def warning(self, code: str, message: str, path: Path, **where: Any) -> None:
        self.error(code, message, path, severity="warning", **where)

    @property
    def tired(self) -> bool:
        return self.compared > _COMPARED

    def nearest(self, name: str, candidates: Iterable[str]) -> str:
        """A hint that suggests the closest known name, until the limit of comparisons is reached."""
        if self.tired:
            return "compare it with the declared names."
        candidates = [
            candidate for candidate in candidates if len(candidate) <= limits.NAME_LENGTH and candidate != name
        ]
        self.compared += len(candidates)
        return nearest(name, candidates)

    def problems(self) -> list[Problem]:
        """All distinct problems by file and line, at most `limits.PROBLEMS`."""
        unique: dict[tuple[object, ...], Problem] = {}
        twice = any(problem.code == "duplicate-key" for problem in self.reported)
        for problem in self._with_causes():
            if twice and self._follows(problem):
                continue
            unique.setdefault((problem.place, problem.field, problem.code, problem.message), problem)
        ordered = sorted(unique.values(), key=lambda problem: (problem.file, problem.line or 0, problem.column or 0))
        if len(ordered) <= limits.PROBLEMS:
            return ordered
        omitted = ordered[limits.PROBLEMS]
        message = f"{len(ordered) - limits.PROBLEMS} more problems."
        tail = Problem("too-many", message, "fix the first ones.", omitted.file, "", omitted.line, omitted.column)
        return [*ordered[: limits.PROBLEMS], tail]

    def _follows(self, problem: Problem) -> bool:
        """Whether a problem may disappear when a duplicate key is renamed: its value uses or defines the name."""
        if problem.code == "unused":
            return problem.field.rpartition(".")[2] in self.dropped
        return problem.code in ("unknown-name", "unknown-leg") and meant(problem.hint) is None

    def _with_causes(self) -> list[Problem]:
        """The problems. For those in a parent's file, the hint names the related entries of the child.

        If the child's own file has errors, entries of the parent that are unused in consequence are not reported.
        """
        place = self.document.place(("name",), key=False)
        own_file = place.file.name if place is not None else self.document.name
        if all(problem.file == own_file for problem in self.reported):
            return self.reported
        own_errors = any(problem.file == own_file and problem.severity == "error" for problem in self.reported)
        own_paths: list[Path] = [
            path for path, key_place in self.document.keys.items() if len(path) == 2 and key_place.file.name == own_file
        ]
        own_paths += [] if place is not None else _changed(self.document, own_file)
        problems = []
        for problem in self.reported:
            inherited = problem.file not in (own_file, self.document.name)
            if inherited and problem.code == "unused":
                if own_errors:
                    continue
                section, _, name = problem.field.partition(".")
                problem = replace(problem, hint=f"use it, or remove it in {own_file}: '{section}: {{{name}: null}}'.")
            elif inherited:
                related = [path for path in own_paths if path[1] in words(problem.source)]
                changes: dict[str, list[str]] = {}
                for path in related:
                    verb = "removes" if self.document.value(path) is None else "declares"
                    changes.setdefault(verb, []).append(f"'{path[1]}'")
                listed = (f"{verb} {', '.join(dict.fromkeys(names))}" for verb, names in changes.items())
                hint = f"{problem.hint} {own_file} {' and '.join(listed)}."
                problem = replace(problem, hint=hint) if changes else problem
            problems.append(problem)
        return problems


def _changed(document: Document, own_file: str) -> list[Path]:
    """The paths that a design built in Python defines itself: those without a location in a file."""
    sections = [(key, value) for key, value in document.data.items() if isinstance(value, dict)]
    paths: list[Path] = [(key, name) for key, value in sections for name in value]
    return [path for path in paths if path not in document.keys]


def meant(hint: str) -> str | None:
    """The name that a hint suggests, None if it suggests none."""
    match = re.match(r"did you mean '(\w+)'", hint)
    return match and match.group(1)


def words(value: Any) -> set[str]:
    """All names that a broken part contains."""
    if isinstance(value, dict):
        return set().union(*map(words, value.values()))
    if isinstance(value, (list, tuple)):
        return set().union(*map(words, value))
    return set(_WORD.findall(value)) if isinstance(value, str) else set()


def printable(text: str, length: int = 40) -> str:
    """A text for messages: control characters and lone surrogates become '?', a long text is cut."""
    text = text if len(text) <= length else text[: length - 3] + "..."
    return text if text.isprintable() else "".join(character if character.isprintable() else "?" for character in text)


def written(value: Any) -> str:
    """A value in a message: as YAML writes it, or its kind."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"the text '{printable(value)}'"
    if isinstance(value, int) and value.bit_length() > 512:
        return "a number of very many digits"
    if isinstance(value, (int, float)):
        return printable(str(value))
    return {"dict": "a mapping", "list": "a list", "tuple": "a list"}.get(type(value).__name__, type(value).__name__)


def _caret(text: str | None, span: Span | None) -> tuple[str, int, int]:
    """(line, caret, width) for a text that has no location in a file."""
    if text is None or span is None:
        return "", 0, 1
    start = text.rfind("\n", 0, span[0]) + 1
    line = text[start:].partition("\n")[0]
    return line, span[0] - start, span[1] - span[0]
