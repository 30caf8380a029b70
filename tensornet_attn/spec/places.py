"""Documents with the location of every key, every value and every character of a scalar."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tensornet_attn import limits
from tensornet_attn.ir.tokens import Span

Path = tuple[str | int, ...]
_ESCAPES = {"x": 4, "u": 6, "U": 10}  # lengths of escapes in double quotes; other escapes have 2 characters


@dataclass(frozen=True)
class File:
    """A source text and its name in messages."""

    name: str
    text: str
    lines: tuple[str, ...]


@dataclass(frozen=True)
class SourceRange:
    """A range of characters in a file; for a scalar, `value` is its text after YAML's quoting and folding."""

    file: File
    start: int
    end: int
    line: int  # from 0
    column: int  # from 0
    value: str | None = None

    def at(self, span: Span | None) -> tuple[int, int, int]:
        """(line, column, width), counted from 0, of a span of the scalar's text; of the whole range without a span."""
        if span is None or self.value is None:
            return self.line, self.column, self._width(self.line, self.column, self.end - self.start)
        offsets = self._offsets(span[1])
        start = offsets[min(span[0], len(offsets) - 1)]
        line = self.line + self.file.text.count("\n", self.start, start)
        column = start - (self.file.text.rfind("\n", 0, start) + 1)
        return line, column, self._width(line, column, offsets[min(span[1], len(offsets) - 1)] - start)

    def _width(self, line: int, column: int, wanted: int) -> int:
        """The width, at least one character and never past the end of the line."""
        length = len(self.file.lines[line]) if line < len(self.file.lines) else 0
        return max(1, min(wanted, length - column))

    def _offsets(self, upto: int) -> list[int]:
        """The offset in the file of each character of the value; quotes, escapes and folds are skipped."""
        text, position, offsets = self.file.text, self.start, []
        quote = text[position : position + 1]
        if quote not in ("'", '"', "|", ">") or self.value is None or self.value.startswith(quote):
            quote = ""
        if quote:
            position = text.find("\n", position) + 1 if quote in "|>" else position + 1
        for character in (self.value or "")[: upto + 1]:
            while position < self.end and text[position] != character and _skipped(text, position, quote):
                position += 1
            offsets.append(min(position, self.end))
            position += _length(text, position, quote)
        return [*offsets, min(position, self.end)]


def _skipped(text: str, position: int, quote: str) -> bool:
    """Whether a character of the file is not part of the value: indentation, a fold, a backslash at a line's end."""
    return text[position].isspace() or (quote == '"' and text[position : position + 2] == "\\\n")


def _length(text: str, position: int, quote: str) -> int:
    """The number of characters in the file for one character of the value."""
    if quote == '"' and text[position : position + 1] == "\\":
        return _ESCAPES.get(text[position + 1 : position + 2], 2)
    return 2 if quote == "'" and text[position : position + 2] == "''" else 1


class Room(NamedTuple):
    """The remaining size limits of a file. A file and the designs it extends share the limits of one file."""

    bytes: int = limits.FILE_BYTES
    nodes: int = limits.YAML_NODES  # keys and values


ALONE = Room()


@dataclass
class Document:
    """Plain data with locations. A design built in Python has no locations; its problems name fields."""

    data: dict[str, Any]
    name: str  # the file's name in messages
    keys: dict[Path, SourceRange] = field(default_factory=dict)
    values: dict[Path, SourceRange] = field(default_factory=dict)
    path: str | None = None  # the file's absolute path; `extends` is relative to it

    def beside(self, room: Room) -> Room:
        """The limits that remain after this document."""
        place = self.place((), key=False)
        length = len(place.file.text) if place else 0
        return Room(max(0, room.bytes - length), max(0, room.nodes - len(self.keys) - len(self.values)))

    def copy(self, data: dict[str, Any]) -> Document:
        """A document with the same locations and other data."""
        return Document(data, self.name, dict(self.keys), dict(self.values), self.path)

    def replace(self, other: Document, paths: Iterable[Path]) -> None:
        """Replaces the locations of these paths, and of all paths below them, by those of another document."""
        replaced = set(paths)
        depths = {len(path) for path in replaced}

        def belongs(path: Path) -> bool:
            return any(path[:depth] in replaced for depth in depths)

        self.keys = {path: place for path, place in self.keys.items() if not belongs(path)}
        self.values = {path: place for path, place in self.values.items() if not belongs(path)}
        self.keys |= {path: place for path, place in other.keys.items() if belongs(path)}
        self.values |= {path: place for path, place in other.values.items() if belongs(path)}

    def rename(self, old: str, new: str) -> None:
        self.data = {new if key == old else key: value for key, value in self.data.items()}
        self.keys = {_renamed(path, old, new): place for path, place in self.keys.items()}
        self.values = {_renamed(path, old, new): place for path, place in self.values.items()}

    def place(self, path: Path, key: bool) -> SourceRange | None:
        """The location of a path, or of its nearest parent if it has none, as a missing key."""
        preferred, fallback = (self.keys, self.values) if key else (self.values, self.keys)
        while True:
            place = preferred.get(path) or fallback.get(path)
            if place is not None or not path:
                return place
            path, preferred, fallback = path[:-1], self.keys, self.values

    def text(self, path: Path) -> str | None:
        """The text at a path, None if the value is not a text."""
        value = self.value(path)
        return value if isinstance(value, str) else None

    def value(self, path: Path) -> Any:
        """The value at a path, None if there is none."""
        value: Any = self.data
        for key in path:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, (list, tuple)) and isinstance(key, int) and key < len(value):
                value = value[key]
            else:
                return None
        return value


def _renamed(path: Path, old: str, new: str) -> Path:
    return (new, *path[1:]) if path[:1] == (old,) else path
