"""The design of one place in a model: opened where the file says, by name, by path, or inline with its places."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from typing import Any

from tensornet_attn.spec import Design
from tensornet_attn.spec.places import Document, Path
from tensornet_attn.spec.report import Reporter, printable
from tensornet_attn.spec.sources import document_of, file_document, text_document


def opened(value: Any, document: Document, path: Path) -> tuple[Document, Reporter]:
    """A fresh document of the design at `path` of a model's document; without data where it cannot be had."""
    if isinstance(value, Design):
        return document_of(value)
    if isinstance(value, Mapping):
        inner = inside(document, path)
        return inner, Reporter(inner)
    if "\n" in value:
        return text_document(value, "<text>", None)
    found, reporter = file_document(_location(value, document))
    if found.data and not {"tensornet", "extends"} & found.data.keys():  # show nothing of a file that is no design
        found = Document({}, found.name)
        reporter = Reporter(found)
        hint = "a design starts with 'tensornet: 1'; check that file by itself."
        reporter.error("unknown-design", f"'{printable(value)}' is no design.", (), hint=hint)
    return found, reporter


def shipped(value: Any) -> bool:
    """Whether a part names a shipped design."""
    return isinstance(value, str) and not is_path(value) and "\n" not in value


def is_path(name: str) -> bool:
    """Whether a name of a design or model is a path, not that of a shipped one."""
    return "/" in name or os.sep in name or name.endswith((".yaml", ".yml"))


def _location(name: str, document: Document) -> str:
    """A path is relative to the model's file, as under `extends`."""
    return os.path.normpath(os.path.join(os.path.dirname(document.path or ""), name)) if is_path(name) else name


def inside(document: Document, path: Path) -> Document:
    """A part of a document as one of its own, which may be changed."""
    depth, data = len(path), copy.deepcopy(document.value(path))
    name = data.get("name") if isinstance(data, dict) else None
    out = Document(data, document.name if document.values else printable(str(name or "design"), 64), path=document.path)
    for places, own in ((document.keys, out.keys), (document.values, out.values)):
        own.update({at[depth:]: place for at, place in places.items() if at[:depth] == path})
    return out
