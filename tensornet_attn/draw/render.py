"""Writes pictures to files, atomically, in the format of the suffix.

`dot` on the PATH renders SVG and PNG; without it, the Graphviz in the wheels of pygraphviz does.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from hashlib import sha256
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TypedDict

from tensornet_attn.draw.core import core_words
from tensornet_attn.draw.dot import to_dot
from tensornet_attn.draw.kept import NOTHING, Marks, kept_lines
from tensornet_attn.draw.mermaid import to_mermaid
from tensornet_attn.draw.overlay import NONE, Overlay
from tensornet_attn.draw.text import diagram_text, step_lines
from tensornet_attn.draw.themes import LIGHT, Theme, theme_named
from tensornet_attn.draw.tikz import to_tikz
from tensornet_attn.draw.words import plain
from tensornet_attn.errors import InputError, MissingPartError, TensornetError, nearest
from tensornet_attn.files import write_whole
from tensornet_attn.graph.graph import Graph

SECONDS = 60  # time limit of Graphviz
DESCRIPTION = 4_000  # characters of a picture's description
# A separate process, because Graphviz writes to stderr and cannot be interrupted.
_CHILD = """
import sys, pygraphviz
graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode("utf-8"))
sys.stdout.buffer.write(graph.draw(format=sys.argv[1], prog="dot"))
"""


def to_svg(
    graph: Graph,
    title: str | None = None,
    about: str | None = None,
    kept: Marks = NOTHING,
    *,
    theme: Theme = LIGHT,
    overlay: Overlay = NONE,
) -> str:
    """The SVG of a diagram, with title and description for screen readers. Raises MissingPartError without Graphviz."""
    source = to_dot(graph, title, kept=kept, theme=theme, overlay=overlay)
    drawn = layout(source, "svg").decode("utf-8")
    drawn = re.sub(r"<!--.*?-->|<title>[^<]*</title>", "", drawn[drawn.index("<svg") :], flags=re.DOTALL)
    drawn = re.sub(r"\n\s*\n+", "\n", drawn)
    digest = _digest(source, about)  # unique ids, because a page can contain several pictures
    head = f'<svg role="img" aria-labelledby="title-{digest} desc-{digest}"'
    words = f'<title id="title-{digest}">{escape(plain(title or graph.name))}</title>\n'
    words += f'<desc id="desc-{digest}">{escape(description(graph, about, kept))}</desc>\n'
    opening = drawn.index(">") + 1
    return f"{head}{drawn[4:opening]}\n{words}{drawn[opening:].lstrip()}"


def mark(graph: Graph, title: str | None = None, about: str | None = None) -> str:
    """The suffix of the ids in a picture: a digest of its sources."""
    return _digest(to_dot(graph, title), about)


def _digest(source: str, about: str | None) -> str:
    return sha256(f"{source}{about}".encode()).hexdigest()[:8]


def to_png(
    graph: Graph, title: str | None = None, kept: Marks = NOTHING, *, theme: Theme = LIGHT, overlay: Overlay = NONE
) -> bytes:
    """The PNG of a diagram, at 144 dots per inch. Raises MissingPartError without Graphviz."""
    return layout(to_dot(graph, title, kept=kept, dots=144, theme=theme, overlay=overlay), "png")


def description(graph: Graph, about: str | None = None, kept: Marks = NOTHING) -> str:
    """A description of the picture: its `about`, core and steps, and the content of the cache."""
    heart = ", ".join(core_words(graph))
    sentences = [
        plain(about or ""),
        "A tensor diagram: nodes are tensors, those that are fixed are square, wires are legs.",
    ]
    sentences += [f"Core: {heart}." if heart else "", f"Steps: {'; '.join(map(plain, step_lines(graph)))}."]
    sentences += [f"{line}." for line in kept_lines(kept)]
    paragraph = " ".join(sentence for sentence in sentences if sentence)
    return paragraph if len(paragraph) <= DESCRIPTION else f"{paragraph[: DESCRIPTION - 4]} ..."


def layout(source: str, form: str) -> bytes:
    """Renders DOT text with Graphviz. Raises MissingPartError without it, and TensornetError if it fails."""
    program = shutil.which("dot")
    command = [program, f"-T{form}"] if program else [sys.executable, "-c", _CHILD, form]
    if program is None and find_spec("pygraphviz") is None:
        raise MissingPartError(
            "drawing SVG and PNG needs Graphviz: `pip install 'tensornet-attn[draw]'` (pygraphviz 2.0 and later "
            "include it), or install Graphviz so that `dot` is on the PATH."
        )
    try:
        done = subprocess.run(command, input=source.encode("utf-8"), capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise TensornetError(
            f"Graphviz found no layout within {SECONDS} s; draw to '.dot', '.mmd' or '.txt' instead."
        ) from None
    if done.returncode or not done.stdout:
        message = plain(done.stderr.decode("utf-8", "replace"))[-300:]
        raise TensornetError(
            f"Graphviz could not draw this diagram ({message}); draw to '.dot', '.mmd' or '.txt' instead."
        )
    return done.stdout


FORMATS = ("dot", "mmd", "png", "svg", "tex", "txt")


def draw(
    graph: Graph,
    path: str | os.PathLike[str],
    format: str | None = None,
    *,
    title: str | None = None,
    about: str | None = None,
    kept: Marks = NOTHING,
    theme: str = "light",
    overlay: Overlay = NONE,
) -> Path:
    """Writes a picture atomically and returns its path.

    The suffix selects svg, png, dot, tex (TikZ), mmd (Mermaid) or txt; `format` overrides it. `kept` marks the content
    of the decoding cache, from `kept_marks(graph)`. `theme`: light, dark or print. `overlay`: from `plan_overlay` or
    `cost_overlay`. Raises InputError for an unknown format or theme or if the file cannot be written, and
    MissingPartError for SVG and PNG without Graphviz.
    """
    target = Path(path)
    name = (target.suffix.lower() if format is None else format).removeprefix(".")
    if name not in FORMATS:
        wrong = f"no picture format '{name}'" if name else "no suffix that names a picture format"
        raise InputError(f"cannot draw to '{target}': {wrong}; {nearest(name, FORMATS)}")
    if not target.parent.is_dir():
        raise InputError(f"cannot write '{target}': there is no directory '{target.parent}'.")
    picture = content(graph, name, title, about, kept, theme, overlay)
    try:
        write_whole(target, picture)
    except OSError as error:
        raise InputError(f"cannot write '{target}': {error.strerror or error}.") from error
    return target


def content(
    graph: Graph,
    form: str,
    title: str | None,
    about: str | None,
    kept: Marks = NOTHING,
    theme: str = "light",
    overlay: Overlay = NONE,
) -> bytes:
    """The bytes of a picture in one of FORMATS. Raises InputError if the format supports no theme or overlay."""
    looks = Looks(theme=theme_named(theme), overlay=overlay)
    if form == "txt":
        _plain(form, looks)
        picture: str | bytes = diagram_text(graph, title, about, kept)
    elif form == "mmd":
        _plain(form, looks)
        picture = to_mermaid(graph, title, about, kept)
    elif form == "png":
        picture = to_png(graph, title, kept, **looks)
    else:
        picture = {"dot": to_dot, "svg": to_svg, "tex": to_tikz}[form](graph, title, about, kept, **looks)
    return picture if isinstance(picture, bytes) else picture.encode("utf-8")


class Looks(TypedDict):
    """Options of formats with colours."""

    theme: Theme
    overlay: Overlay


def _plain(form: str, looks: Looks) -> None:
    """Raises InputError if a theme or overlay is requested for a format without colours."""
    if looks["overlay"] is not NONE or looks["theme"] is not LIGHT:
        kind = "a theme" if looks["overlay"] is NONE else "the plan or the cost"
        raise InputError(f"'{form}' pictures do not show {kind}; draw to '.svg', '.png', '.dot' or '.tex'.")
