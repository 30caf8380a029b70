"""A self-contained HTML page: it loads nothing from elsewhere, and all text is escaped."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tensornet_attn import compiler
from tensornet_attn.errors import MissingPartError
from tensornet_attn.report import words
from tensornet_attn.spec import Design

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TEMPLATES = Path(__file__).parent / "templates"
DOTS = 144  # per inch: twice the 72 per inch of the figure's size on the page
FILTERS = (words.clock, words.column, words.counted, words.drop, words.exact, words.joined, words.score, words.short)
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Table:
    """A table of text; `total`: the last row is the sum of the others."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    total: bool = False


@dataclass(frozen=True)
class Image:
    """An image as a data URI with alternative text. `width`: of a plot, in pixels."""

    source: str
    words: str
    width: int | None = None


Block = Table | Image | str  # a part of a page; a string is a sentence


def page(template: str, title: str, script: str = "", **context: Any) -> str:
    """Renders a template as a page; the only script that runs is the file `script` in the template folder."""
    code = _file(script) if script else Markup()
    digest = b64encode(sha256(code.encode()).digest()).decode()
    policy = Markup(f"{_POLICY}; script-src 'sha256-{digest}'" if script else _POLICY)
    return (
        environment(TEMPLATES, True, FILTERS)
        .get_template(template)
        .render(title=title, script=code, policy=policy, **context)
    )


@cache
def environment(folder: Path, html: bool, filters: tuple[Callable[..., str], ...]) -> Environment:
    """The templates of a folder, with filters by name; `html`: escapes all text."""
    templates = Environment(
        loader=FileSystemLoader(folder),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.globals |= {"file": _file, "drawing": drawing}
    templates.filters |= {function.__name__: function for function in filters}
    return templates


def _file(name: str) -> Markup:
    """The contents of a style or script, unescaped."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def plot(figure: Figure, words: str) -> Image:
    """A matplotlib figure as a PNG image."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS, metadata={"Software": None})
    return _image(buffer.getvalue(), "image/png", words, round(figure.get_figwidth() * 96))


def picture(design: Design, words: str) -> Image | str:
    """The diagram of a design as an image, isolated from the ids of the page; or why there is none."""
    try:
        return _image(compiler.picture(design, "svg"), "image/svg+xml", words)
    except MissingPartError as error:
        return f"No picture of the diagram: {error}"


def _image(content: bytes, kind: str, words: str, width: int | None = None) -> Image:
    return Image(f"data:{kind};base64,{b64encode(content).decode()}", words, width)


def drawing(design: Design) -> Markup:
    """The diagram of a design as an element of the page, or a note with the reason why there is none."""
    try:
        return Markup(compiler.picture(design, "svg").decode())
    except MissingPartError as error:
        return note(f"No picture: {error}")


def note(text: str) -> Markup:
    return Markup('<p class="note">{}</p>').format(text)
