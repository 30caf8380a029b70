"""Parses YAML text into plain data with locations. Rejects tags, aliases and duplicate keys; limits depth and size."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping
from io import StringIO
from itertools import accumulate
from typing import Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import AliasEvent, MappingStartEvent, NodeEvent, ScalarEvent

from tensornet_attn import limits
from tensornet_attn.spec.places import Document, File, Path, SourceRange
from tensornet_attn.spec.report import Reporter, printable, words

_INTEGER = re.compile(r"[-+]?[0-9]{1,40}\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_END = re.compile(r"[\n\[\]{}]|, *\w+: ")  # of a plain text inside a mapping or list
_WORDS: dict[str, bool | None] = {"null": None, "Null": None, "NULL": None, "~": None, "": None}
_WORDS |= {word: word.lower() == "true" for word in ("true", "True", "TRUE", "false", "False", "FALSE")}
Data = dict[str, Any]  # of `Design.as_dict()`
QUOTE = "inside {...} and [...] quote text with commas or brackets"


class UnreadableText(Exception):
    """The text cannot be read any further. The reporter has the problems found so far."""


def parse(text: str, name: str, nodes: int = limits.YAML_NODES) -> tuple[Document, Reporter]:
    """The document, empty if it cannot be read, and its YAML problems. `nodes` limits the number of keys and values."""
    file = File(name, text, tuple(text.split("\n")))
    document = Document({}, name, values={(): SourceRange(file, 0, 1, 0, 0)})
    reporter = Reporter(document)
    try:
        data = _Parser(file, document, reporter, nodes).document()
    except UnreadableText:
        return document, reporter
    if data is None or data == {}:
        reporter.error("empty", "this text contains no design.", (), hint="start with 'tensornet: 1'.")
    elif not isinstance(data, dict):
        message = "a design must be a mapping of keys to values."
        reporter.error("not-a-mapping", message, (), hint="start with 'tensornet: 1'.")
    else:
        document.data = data
    return document, reporter


class _Parser:
    """Builds data from ruamel's events one at a time, so that each limit stops the parser at once."""

    def __init__(self, file: File, document: Document, reporter: Reporter, max_nodes: int):
        self.file, self.out, self.reporter = file, document, reporter
        self.nodes, self.most = 0, max_nodes
        self.starts = [0, *accumulate(len(line) + 1 for line in file.lines)]
        self.events = YAML(typ="safe", pure=True).parse(file.text)

    def document(self) -> Any:
        for _ in range(2):  # the start of the stream and the start of the document
            self._next()
        if type(self.event).__name__ == "StreamEndEvent":
            return None
        self._next()
        root = self._node((), 0)
        self._next()
        self._next()
        if type(self.event).__name__ != "StreamEndEvent":
            self._stop(
                "documents", "a second document starts here, but a file contains one design.", "remove the '---'."
            )
        return root

    def _next(self) -> Any:
        try:
            self.event = next(self.events)
        except StopIteration:
            raise UnreadableText from None
        except MarkedYAMLError as error:
            starts = _sentence(error).startswith(("while scanning a quoted", "while scanning a simple key"))
            mark = error.context_mark if starts else error.problem_mark or error.context_mark
            place = self._at(mark.index, mark.index + 1) if mark else None
            self._stop("yaml", *_explained(error, self.file.text), place)
        except (YAMLError, ValueError, OverflowError) as error:
            start = getattr(error, "position", 0)
            message = f"this is not valid YAML: {_first_line(str(error).partition(': ')[0])}."
            self._stop("yaml", message, "check that this is a text file.", self._at(start, start + 1))
        except RecursionError:
            hint = f"use at most {limits.YAML_DEPTH} levels."
            self._stop("too-deep", "this is nested too deeply.", hint, self._at(0, 1))
        return self.event

    def _stop(self, code: str, message: str, hint: str, place: SourceRange | None = None) -> NoReturn:
        self.reporter.error(code, message, (), hint=hint, place=place or self._place())
        raise UnreadableText

    def _place(self, value: str | None = None) -> SourceRange:
        return self._at(self.event.start_mark.index, self.event.end_mark.index, value)

    def _at(self, start: int, end: int, value: str | None = None) -> SourceRange:
        line = bisect_right(self.starts, start) - 1
        return SourceRange(self.file, start, end, line, start - self.starts[line], value)

    def _count(self) -> None:
        self.nodes += 1
        if self.nodes > self.most:
            message = f"this file has more than {limits.YAML_NODES} keys and values, including the designs it extends."
            self._stop("too-large", message, "shorten the design.")

    def _node(self, path: Path, depth: int) -> Any:
        event = self.event
        self._count()
        if depth > limits.YAML_DEPTH:
            self._stop("too-deep", "this is nested too deeply.", f"use at most {limits.YAML_DEPTH} levels.")
        self._refuse_extras()
        if isinstance(event, ScalarEvent):
            return self._scalar(path)
        self.out.values[path] = self._place()
        return self._mapping(path, depth) if isinstance(event, MappingStartEvent) else self._sequence(path, depth)

    def _refuse_extras(self) -> None:
        """Rejects aliases, anchors and tags: a design is data."""
        if isinstance(self.event, AliasEvent):
            self._stop("alias", "aliases are not supported.", "write out the value.")
        if isinstance(self.event, NodeEvent) and self.event.anchor is not None:
            self._stop("alias", "anchors are not supported.", "write out the value where it is used.")
        if getattr(self.event, "tag", None) is not None:
            self._stop("tag", "tags are not supported: a design is data.", "remove the tag.")

    def _skipped(self, depth: int) -> Any:
        """Reads a node and discards its location."""
        out, self.out = self.out, Document({}, "")
        value = self._node((), depth)
        self.out = out
        return value

    def _scalar(self, path: Path) -> Any:
        scalar, plain = self.event.value, self.event.style in (None, "")
        if scalar or not plain:  # an absent value has no location; its key's location is used
            self.out.values[path] = self._place(scalar)
        if not scalar.isprintable() and any("\ud800" <= character <= "\udfff" for character in scalar):
            message = "this text contains half of a surrogate pair, which is not a character."
            self._stop("yaml", message, "write the character itself.")
        return resolve(scalar) if plain else scalar

    def _key(self) -> str:
        event = self.event
        self._refuse_extras()
        if not isinstance(event, ScalarEvent):
            self._stop("key", "a key must be plain text.", "e.g. 'Q: x[n f] W[f d] -> n d'.")
        if event.value == "<<" and event.style in (None, ""):
            self._stop("alias", "merge keys are not supported.", "write out the values.")
        self._count()
        return str(event.value)

    def _mapping(self, path: Path, depth: int) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        flow, end = self.event.flow_style, 0
        while type(self._next()).__name__ != "MappingEndEvent":
            key, place = self._key(), self._place(self.event.value)
            self._next()
            if place.start < end:  # a later part of a text that was split at a comma
                self._skipped(depth + 1)
            elif key in mapping:
                message = f"duplicate key '{key}'; it is already on line {self.out.keys[(*path, key)].line + 1}."
                hint = "remove or rename one of them."
                self.reporter.error("duplicate-key", message, (*path, key), key=True, hint=hint, place=place)
                self.reporter.dropped |= words(self._skipped(depth + 1))
            else:
                self.out.keys[(*path, key)] = place
                mapping[key] = self._node((*path, key), depth + 1)
                if flow:
                    end, mapping[key] = self._broken(mapping[key], (*path, key))
        return mapping

    def _sequence(self, path: Path, depth: int) -> list[Any]:
        sequence: list[Any] = []
        flow, end = self.event.flow_style, 0
        while type(self._next()).__name__ != "SequenceEndEvent":
            if self._place().start < end:
                self._skipped(depth + 1)
                continue
            element_path = (*path, len(sequence))
            value = self._node(element_path, depth + 1)
            if flow:
                end, value = self._broken(value, element_path)
            sequence.append(value)
        return sequence

    def _broken(self, scalar: Any, path: Path) -> tuple[int, Any]:
        """Reports a plain flow text that was split at a comma, with more '(' than ')': its end and the whole text."""
        text, place = self.file.text, self.out.values.get(path)
        if not isinstance(scalar, str) or _open(scalar) <= 0 or place is None or text[place.start] in "\"'":
            return 0, scalar
        if text[place.end : place.end + 80].lstrip()[:1] != ",":
            return 0, scalar
        whole_text = _whole(text, place.start)
        end, closing = place.start + len(whole_text), ")" * _open(whole_text)
        quoted = f'"{whole_text}"' if '"' not in whole_text else "'" + whole_text.replace("'", "''") + "'"
        hint = f"{QUOTE}, and close every bracket." if closing else f"{QUOTE}: {quoted}."
        self.reporter.error("split-text", "YAML splits this text at a comma.", path, hint=hint, place=place)
        self.out.values[path] = self._at(place.start, end, whole_text)
        return end, whole_text + closing


def dump(data: Any) -> str:
    """Data as YAML text that reads back to equal data, in the same order; an entry without nested entries is a line."""
    yaml, out = YAML(typ="safe", pure=True), StringIO()
    yaml.default_flow_style = yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 4096
    yaml.dump(data, out)
    return out.getvalue()


def plain(value: Any) -> Any:
    """A value with lists for tuples and dicts for mappings, as in JSON."""
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    return [plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def edited(design: Data, edit: Callable[[str], Any]) -> Data:
    """A copy of a design as data, with `edit` applied to every expression of its diagram."""

    def walk(operand: Any) -> Any:
        if isinstance(operand, str):
            return edit(operand) if "->" in operand else operand
        return {key: walk(inner) for key, inner in operand.items()} if isinstance(operand, dict) else operand

    copy: Data = plain(design)
    copy["diagram"] = {name: walk(step) for name, step in copy["diagram"].items()}
    return copy


def resolve(scalar: str) -> Any:
    """Resolves a plain scalar by the core schema of YAML 1.2. Very long numbers stay text."""
    if scalar in _WORDS:
        return _WORDS[scalar]
    if _INTEGER.match(scalar):
        return int(scalar)
    return float(scalar) if len(scalar) <= 40 and _FLOAT.match(scalar) else scalar


def _open(value: Any) -> int:
    return value.count("(") - value.count(")") if isinstance(value, str) else 0


def _whole(text: str, start: int) -> str:
    """The text from `start` to the bracket that closes it; without one, to the next key or the end of the mapping."""
    depth = 0
    for position in range(start, min(len(text), start + 200)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0 and text[position] == ")":
            return text[start : position + 1]
        if _END.match(text, position):
            return text[start:position].rstrip()
    return text[start : start + 200]


def _sentence(error: MarkedYAMLError) -> str:
    clauses = [str(clause) for clause in (error.context, error.problem) if clause]
    return _first_line(", ".join(clauses))


def _first_line(error: object) -> str:
    return printable(" ".join(str(error).split()), 160).rstrip(". ")


_HINTS = {  # words in a message of the YAML parser, and the hint
    "flow": f"{QUOTE}, and close every bracket.",
    "sequence entries": 'quote a value that starts with "- ".',
    "mapping values": "quote a text that contains ': '.",
    "tab": "indent with spaces, not tabs.",
    "'\\t'": "indent with spaces, not tabs.",
    "simple key": "write each line of a mapping as 'key: value', with a space after the colon.",
    "found '<scalar>'": "quote the whole text.",
    "quoted scalar": "close the quotes.",
}


def _explained(error: MarkedYAMLError, text: str) -> tuple[str, str]:
    """The message and the hint for an error of the YAML parser."""
    fault, mark = _sentence(error), error.problem_mark
    message = f"this is not valid YAML: {fault}."
    *lines_above, line = text[: mark.index if mark else 0].split("\n")
    continues = "mapping values" in fault and re.fullmatch(r" *\w+", line)  # an entry that YAML joins to the text above
    if continues and re.match(r" *\w+:[^ ]", next((line for line in reversed(lines_above) if line.strip()), "")):
        return message, "put a space after the colon in the line above."
    if continues or "<block mapping start>" in fault:
        return "this line is indented differently from the lines above.", "indent the lines of a mapping equally."
    hints = (hint for words, hint in _HINTS.items() if words in fault)
    return message, next(hints, "compare with a shipped design: 'tensornet-attn show mhsa'.")
