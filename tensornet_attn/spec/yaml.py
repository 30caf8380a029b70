"""YAML text to plain data with places: no tags, no aliases, no duplicate keys, bounded in depth and number of nodes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping
from io import StringIO
from itertools import accumulate
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, MappingStartEvent, NodeEvent, ScalarEvent

from tensornet_attn import limits
from tensornet_attn.spec.places import Document, File, Path, Place
from tensornet_attn.spec.report import Reporter, printable

_INTEGER = re.compile(r"[-+]?[0-9]{1,40}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_WORDS: dict[str, bool | None] = {"null": None, "Null": None, "NULL": None, "~": None, "": None}
_WORDS |= {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
QUOTE = "inside {...} and [...] quote text with commas or brackets"


class Unreadable(Exception):
    """The text cannot be read any further; what was found so far is in the reporter."""


def parse(text: str, name: str, nodes: int = limits.YAML_NODES) -> tuple[Document, Reporter]:
    """The document and what is wrong with its YAML; empty where nothing could be read. `nodes`: at most so many."""
    file = File(name, text, tuple(text.split("\n")))
    document = Document({}, name, values={(): Place(file, 0, 1, 0, 0)})
    reporter = Reporter(document)
    try:
        data = _Parser(file, document, reporter, nodes).document()
    except Unreadable:
        return document, reporter
    if data is None or data == {}:
        reporter.error("empty", "there is no design in this text.", (), hint="start with 'tensornet: 1'.")
    elif not isinstance(data, dict):
        message = "a design is a mapping of keys to values."
        reporter.error("not-a-mapping", message, (), hint="start with 'tensornet: 1'.")
    else:
        document.data = data
    return document, reporter


class _Parser:
    """Builds data from ruamel's events, one at a time, so that no bound is passed before it is noticed."""

    def __init__(self, file: File, document: Document, reporter: Reporter, most: int):
        self.file, self.out, self.reporter = file, document, reporter
        self.nodes, self.most = 0, most
        self.starts = [0, *accumulate(len(line) + 1 for line in file.lines)]
        self.events = YAML(typ="safe", pure=True).parse(file.text)

    def document(self) -> Any:
        for _ in range(2):  # the starts of the stream and of the document
            self._next()
        if type(self.event).__name__ == "StreamEndEvent":
            return None
        self._next()
        data = self._node((), 0)
        self._next()
        self._next()
        if type(self.event).__name__ != "StreamEndEvent":
            self._stop("documents", "a file holds one design; a second document starts here.", "remove the '---'.")
        return data

    def _next(self) -> Any:
        try:
            self.event = next(self.events)
        except StopIteration:
            raise Unreadable from None
        except MarkedYAMLError as error:
            starts = _sentence(error).startswith(("while scanning a quoted", "while scanning a simple key"))
            mark = error.context_mark if starts else error.problem_mark or error.context_mark
            place = self._at(mark.index, mark.index + 1) if mark else None
            self._stop("yaml", f"this is not valid YAML: {_sentence(error)}.", _yaml_hint(error), place)
        except (YAMLError, ValueError, OverflowError) as error:
            start = getattr(error, "position", 0)
            message = f"this is not valid YAML: {_first_line(str(error).partition(': ')[0])}."
            self._stop("yaml", message, "is it a text file?", self._at(start, start + 1))
        except RecursionError:
            hint = f"at most {limits.YAML_DEPTH} levels."
            self._stop("too-deep", "this is nested too deeply.", hint, self._at(0, 1))
        return self.event

    def _stop(self, code: str, message: str, hint: str, place: Place | None = None) -> NoReturn:
        self.reporter.error(code, message, (), hint=hint, place=place or self._place())
        raise Unreadable

    def _place(self, value: str | None = None) -> Place:
        return self._at(self.event.start_mark.index, self.event.end_mark.index, value)

    def _at(self, start: int, end: int, value: str | None = None) -> Place:
        line = bisect_right(self.starts, start) - 1
        return Place(self.file, start, end, line, start - self.starts[line], value)

    def _count(self) -> None:
        self.nodes += 1
        if self.nodes > self.most:
            message = f"this file holds more than {limits.YAML_NODES} keys and values, with what it extends."
            self._stop("too-large", message, "a design needs far fewer.")

    def _node(self, path: Path, depth: int) -> Any:
        event = self.event
        self._count()
        if depth > limits.YAML_DEPTH:
            self._stop("too-deep", "this is nested too deeply.", f"at most {limits.YAML_DEPTH} levels.")
        self._refuse_extras()
        if isinstance(event, ScalarEvent):
            return self._scalar(path)
        self.out.values[path] = self._place()
        return self._mapping(path, depth) if isinstance(event, MappingStartEvent) else self._sequence(path, depth)

    def _refuse_extras(self) -> None:
        """Aliases, anchors and tags: a design is data."""
        if isinstance(self.event, AliasEvent):
            self._stop("alias", "aliases are refused.", "write the value out.")
        if isinstance(self.event, NodeEvent) and self.event.anchor is not None:
            self._stop("alias", "anchors are refused.", "write the value out where it is used.")
        if getattr(self.event, "tag", None) is not None:
            self._stop("tag", "tags are refused: a design is data.", "remove the tag.")

    def _skipped(self, depth: int) -> Any:
        """A node that is read and forgotten, its places too."""
        out, self.out = self.out, Document({}, "")
        value = self._node((), depth)
        self.out = out
        return value

    def _scalar(self, path: Path) -> Any:
        text, plain = self.event.value, self.event.style in (None, "")
        if text or not plain:  # nothing at all stands nowhere: its key is the place
            self.out.values[path] = self._place(text)
        if not text.isprintable() and any("\ud800" <= character <= "\udfff" for character in text):
            message = "this text holds half of a surrogate pair, which is no character."
            self._stop("yaml", message, "write the character itself.")
        return resolve(text) if plain else text

    def _key(self) -> str:
        event = self.event
        self._refuse_extras()
        if not isinstance(event, ScalarEvent):
            self._stop("key", "a key must be plain text.", "e.g. 'Q: x[n f] W[f d] -> n d'.")
        if event.value == "<<" and event.style in (None, ""):
            self._stop("alias", "merge keys are refused.", "write the values out.")
        self._count()
        return str(event.value)

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        data: dict[str, Any] = {}
        flow, broken = self.event.flow_style, 0
        while type(self._next()).__name__ != "MappingEndEvent":
            key, place = self._key(), self._place(self.event.value)
            self._next()
            if broken:  # a later piece of a text that a comma has split
                broken += _open(key)
                self._skipped(depth + 1)
            elif key in data:
                message = f"'{key}' stands twice, first on line {self.out.keys[(*path, key)].line + 1}."
                hint = "remove or rename one of them."
                self.reporter.error("duplicate-key", message, (*path, key), key=True, hint=hint, place=place)
                self._skipped(depth + 1)
            else:
                self.out.keys[(*path, key)] = place
                data[key] = self._node((*path, key), depth + 1)
                if flow:
                    broken, data[key] = self._broken(data[key], (*path, key))
        return data

    def _sequence(self, path: Path, depth: int) -> list[Any]:
        data: list[Any] = []
        flow, broken = self.event.flow_style, 0
        while type(self._next()).__name__ != "SequenceEndEvent":
            if broken:
                broken += _open(self._skipped(depth + 1))
                continue
            here = (*path, len(data))
            value = self._node(here, depth + 1)
            if flow:
                broken, value = self._broken(value, here)
            data.append(value)
        return data

    def _broken(self, value: Any, path: Path) -> tuple[int, Any]:
        """A plain flow text with more '(' than ')' was split at a comma: say so once and go on with the whole."""
        text, place = self.file.text, self.out.values.get(path)
        if not isinstance(value, str) or _open(value) <= 0 or place is None or text[place.start] in "\"'":
            return 0, value
        if text[place.end : place.end + 80].lstrip()[:1] != ",":
            return 0, value
        whole = _whole(text, place.start)
        hint = f'{QUOTE}: "{whole}".'
        self.reporter.error("split-text", "YAML has split this text at a comma.", path, hint=hint, place=place)
        self.out.values[path] = self._at(place.start, place.start + len(whole), whole)
        return _open(value), whole


def dump(data: Any) -> str:
    """Data as YAML text that reads back to it, in its own order; an entry that holds no other is one line."""
    yaml, out = YAML(typ="safe", pure=True), StringIO()
    yaml.default_flow_style = yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 4096
    yaml.dump(data, out)
    return out.getvalue()


def plain(value: Any) -> Any:
    """A value with lists for tuples and plain mappings, as JSON has it."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value


def resolve(text: str) -> Any:
    """A plain scalar by YAML 1.2's core schema; numbers too long to be meant stay text."""
    if text in _WORDS:
        return _WORDS[text]
    if _INTEGER.match(text):
        return int(text)
    return float(text) if len(text) <= 40 and _FLOAT.match(text) else text


def _open(value: Any) -> int:
    return value.count("(") - value.count(")") if isinstance(value, str) else 0


def _whole(text: str, start: int) -> str:
    depth = 0
    for place in range(start, min(len(text), start + 200)):
        depth += {"(": 1, ")": -1}.get(text[place], 0)
        if text[place] == "\n" or (depth == 0 and text[place] == ")"):
            return text[start : place + 1].rstrip()
    return text[start : start + 200]


def _sentence(error: MarkedYAMLError) -> str:
    parts = [str(part) for part in (error.context, error.problem) if part]
    return _first_line(", ".join(parts))


def _first_line(error: object) -> str:
    return printable(" ".join(str(error).split()), 160).rstrip(". ")


_HINTS = {  # what a message of the YAML reader speaks of, and what would be right
    "flow": f"{QUOTE}, and close every bracket.",
    "sequence entries": 'a value may not start with "- ": quote it.',
    "mapping values": "a text with ': ' in it is quoted.",
    "tab": "indent with blanks, not tabs.",
    "'\\t'": "indent with blanks, not tabs.",
    "simple key": "every line of a mapping is 'key: value'.",
    "quoted scalar": "close the quotes.",
}


def _yaml_hint(error: MarkedYAMLError) -> str:
    text = _sentence(error)
    found = (hint for words, hint in _HINTS.items() if words in text)
    return next(found, "compare with a shipped design: 'tensornet-attn show mhsa'.")
