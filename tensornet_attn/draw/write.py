"""A picture as a file: the suffix says which kind, and nothing half-written is ever left."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tensornet_attn.draw.dot import dot_source
from tensornet_attn.draw.mermaid import mermaid_source
from tensornet_attn.draw.render import png_bytes, svg_text
from tensornet_attn.draw.text import diagram_text
from tensornet_attn.errors import InputError, nearest
from tensornet_attn.files import write_whole
from tensornet_attn.graph.model import Graph

Maker = Callable[[Graph, str | None, str | None], str | bytes]
FORMATS: dict[str, Maker] = {
    "dot": dot_source,
    "mmd": mermaid_source,
    "png": lambda graph, title, about: png_bytes(graph, title),
    "svg": svg_text,
    "txt": diagram_text,
}


def write(graph: Graph, path: str | os.PathLike[str], form: str | None, title: str | None, about: str | None) -> Path:
    """Writes the picture, whole or not at all, and returns its path."""
    target = Path(path)
    form = _format(target, form)
    if not target.parent.is_dir():
        raise InputError(f"cannot write '{target}': there is no directory '{target.parent}'.")
    picture = content(graph, form, title, about)
    try:
        write_whole(target, picture)
    except OSError as error:
        raise InputError(f"cannot write '{target}': {error.strerror or error}.") from error
    return target


def content(graph: Graph, form: str, title: str | None, about: str | None) -> bytes:
    """The bytes of a picture in one of FORMATS."""
    made = FORMATS[form](graph, title, about)
    return made if isinstance(made, bytes) else made.encode("utf-8")


def _format(target: Path, form: str | None) -> str:
    name = (target.suffix.lower() if form is None else form).removeprefix(".")
    if name not in FORMATS:
        wrong = f"no picture format '{name}'" if name else "no suffix that names a picture format"
        raise InputError(f"cannot draw to '{target}': {wrong}; {nearest(name, FORMATS)}")
    return name
