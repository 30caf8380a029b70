"""Reads a name, path, text, dict or Design into a Document: opening, size limits, decoding."""

from __future__ import annotations

import errno
import math
import os
import re
import stat
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice
from typing import Any

from tensornet_attn import limits
from tensornet_attn.errors import InputError, Problem
from tensornet_attn.ir.tokens import Refusal
from tensornet_attn.spec import library
from tensornet_attn.spec.design import Design
from tensornet_attn.spec.places import ALONE, Document, Room
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.yaml import parse

Source = str | os.PathLike[str] | Mapping[str, Any] | Design
_SHIPPED = re.compile(r"[A-Za-z0-9_*?-]+\Z")


def document_of(source: Source, what: str = "design") -> tuple[Document, Reporter]:
    """A new document with the content of a source, and its problems so far; `what` is as in `file_document`."""
    if isinstance(source, Design):
        return _built(source.document)
    if isinstance(source, Mapping):
        name = source.get("name")
        return _built(Document(source, printable(name, limits.NAME_LENGTH) if isinstance(name, str) else "design"))  # type: ignore[arg-type]
    if not isinstance(source, (str, os.PathLike)):
        raise InputError(
            f"a design must be a name, a path, YAML text, a dict or a Design, not {type(source).__name__}."
        )
    if isinstance(source, str):
        one_line = ":" in source and "{" in source and not os.path.exists(source)
        if "\n" in source or len(source) > limits.FILE_BYTES or one_line:
            return text_document(source, "<text>", None)
    return file_document(os.fsdecode(source), what=what)


def file_document(source: str, room: Room = ALONE, what: str = "design") -> tuple[Document, Reporter]:
    """The document of a shipped name or a path, within the limits `room`.

    `what` a name stands for is `design`, `model` or `design or model`; hints suggest names of this kind.
    """
    name, path = source, location(source)
    if path is None:
        candidates = [name for kind in what.split(" or ") for name in library.names(what=kind)]
        hint = Reporter(Document({}, "")).nearest(source, candidates)
        hint += " A path contains '/' or ends in '.yaml'."
        code = "unknown-model" if what == "model" else "unknown-design"
        return unreadable(source, code, f"there is no shipped {what} '{printable(source)}'.", hint)
    if _is_name(source):
        name = os.path.basename(path)
    try:
        data = _opened(path, room.bytes + 1)
    except (OSError, ValueError) as error:
        reason = "its path has a character that no path can have"  # each Python words its ValueError in another way
        if isinstance(error, OSError):
            reason = error.strerror or str(error)
        close = _similar(path) if isinstance(error, FileNotFoundError) else None
        hint = f"did you mean {close}?" if close else "give the path of a YAML file."
        return unreadable(name, "unreadable", f"this file cannot be read: {reason}.", hint)
    if _is_name(source):
        shipped, reporter = _shipped(data, name, path)
        within_limits = len(data) <= room.bytes and len(shipped.keys) + len(shipped.values) <= room.nodes
        if within_limits and not reporter.reported:
            document = shipped.copy(deepcopy(shipped.data))
            return document, Reporter(document)
    return text_document(data, name, path, room)


@lru_cache(maxsize=512)
def _shipped(data: bytes, name: str, path: str) -> tuple[Document, Reporter]:
    """Cached, because parsing YAML takes most of the time and many designs extend the same design."""
    return text_document(data, name, path)


def location(source: str) -> str | None:
    """The absolute path of a shipped name or of a path. Returns None if a name is not shipped."""
    if not _is_name(source):
        return os.path.abspath(source)
    shipped = library.file_of(source)
    return None if shipped is None else str(shipped)


def text_document(data: bytes | str, name: str, path: str | None, room: Room = ALONE) -> tuple[Document, Reporter]:
    """The document of YAML text; `name` is its name in messages."""
    name = printable(name, 200)
    if isinstance(data, str):
        data = data[: room.bytes + 1].encode("utf-8", "surrogatepass")
    if len(data) > room.bytes:
        message = f"this file is larger than {limits.FILE_BYTES // 1024} KiB, including the designs it extends."
        return unreadable(name, "too-large", message, "shorten the design.")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        message = f"byte {error.start} is not UTF-8."
        return unreadable(name, "not-utf-8", message, "save the file as UTF-8 text.", line)
    document, reporter = parse(text.replace("\r\n", "\n").replace("\r", "\n"), name, room.nodes)
    document.path = path
    return document, reporter


def unreadable(name: str, code: str, message: str, hint: str, line: int | None = None) -> tuple[Document, Reporter]:
    """An empty document with the problem that explains it."""
    document = Document({}, printable(name, 200))
    reporter = Reporter(document)
    where = (line, None if line is None else 1)
    reporter.reported.append(Problem(code, message, hint, document.name, "", *where))
    return document, reporter


def _similar(path: str) -> str | None:
    """The YAML file beside a missing file, or the shipped design, whose name is similar. None if there is none."""
    described = {name: f"the shipped design '{name}'" for name in library.names()}
    with suppress(OSError), os.scandir(os.path.dirname(path)) as entries:
        files = (entry.name for entry in islice(entries, limits.FILES))
        described |= {os.path.splitext(name)[0]: f"'{printable(name)}'" for name in files if name.endswith(".yaml")}
    matches = get_close_matches(os.path.splitext(os.path.basename(path))[0], described, n=1, cutoff=0.75)
    return described[matches[0]] if matches else None


def _is_name(source: str) -> bool:
    return bool(_SHIPPED.match(source)) and not os.path.isfile(source)


def _opened(path: str, size: int) -> bytes:
    """The first bytes of a regular file. Pipes and terminals are rejected because reading them could block."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode):
        raise OSError(0, os.strerror(errno.EISDIR) if stat.S_ISDIR(mode) else "it is not a regular file")
    with open(path, "rb") as file:
        return file.read(size)


def _built(original: Document) -> tuple[Document, Reporter]:
    """A copy of the caller's document, with the limits of a file."""
    try:
        document = original.copy(_copied(original.data, _Bounds()))
    except Refusal as refusal:
        return unreadable(original.name, refusal.code, refusal.message, refusal.hint)
    if not document.data:
        return unreadable(original.name, "empty", "this dict contains no design.", "start with {'tensornet': 1}.")
    return document, Reporter(document)


class _Bounds:
    """Counts the copied values and characters of a dict, and enforces the limits."""

    def __init__(self) -> None:
        self.nodes = self.characters = 0

    def count(self, value: Any, depth: int) -> None:
        self.nodes += 1
        self.characters += len(value) if isinstance(value, (str, bytes)) else 0
        if depth > limits.YAML_DEPTH:
            raise Refusal("too-deep", "this is nested too deeply.", f"use at most {limits.YAML_DEPTH} levels.")
        if self.nodes > limits.YAML_NODES or self.characters > limits.FILE_BYTES:
            message = f"more than {limits.YAML_NODES} keys and values, or more than {limits.FILE_BYTES} characters."
            raise Refusal("too-large", message, "shorten the design.")


def _copied(value: Any, bounds: _Bounds, depth: int = 0) -> Any:
    """A copy of the caller's data with text keys."""
    bounds.count(value, depth)
    if isinstance(value, Mapping):
        return {_text_key(key, bounds, depth): _copied(inner, bounds, depth + 1) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(inner, bounds, depth + 1) for inner in value]
    if isinstance(value, int) and value.bit_length() > 2 * limits.INTEGER_BITS:
        return math.inf  # rejected as a number everywhere
    return value


def _text_key(key: Any, bounds: _Bounds, depth: int) -> str:
    bounds.count(key, depth)
    if isinstance(key, (str, int, float, bool)) and not (isinstance(key, int) and key.bit_length() > 512):
        return str(key)
    raise Refusal("key", f"a key must be a string, not {type(key).__name__}.", "e.g. {'Q': 'x[n f] W[f d] -> n d'}.")
