"""A page of HTML in one file: nothing is loaded from elsewhere, and every text is escaped."""

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
DOTS = 144  # per inch: twice the 72 that a figure's inches stand for on the page
FILTERS = (words.clock, words.column, words.counted, words.drop, words.exact, words.joined, words.score, words.short)
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Table:
    """A table of texts; `total`: its last row sums up the others."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str
    total: bool = False


@dataclass(frozen=True)
class Image:
    """A picture as a data URI, and the words that say what it shows. `width` in pixels, of a plot."""

    source: str
    words: str
    width: int | None = None


Block = Table | Image | str  # what pages are made of; a string is a sentence


def page(template: str, title: str, script: str = "", **context: Any) -> str:
    """The page of a template; no script runs but the file `script` of the folder of templates."""
    text = _file(script) if script else Markup()
    digest = b64encode(sha256(text.encode()).digest()).decode()
    policy = Markup(f"{_POLICY}; script-src 'sha256-{digest}'" if script else _POLICY)
    return (
        environment(TEMPLATES, True, FILTERS)
        .get_template(template)
        .render(title=title, script=text, policy=policy, **context)
    )


@cache
def environment(folder: Path, html: bool, filters: tuple[Callable[..., str], ...]) -> Environment:
    """The templates of a folder, filters by their names; of HTML, every text is escaped."""
    made = Environment(
        loader=FileSystemLoader(folder),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.globals |= {"file": _file, "drawing": drawing}
    made.filters |= {function.__name__: function for function in filters}
    return made


def _file(name: str) -> Markup:
    """A style or script, as it stands."""
    return Markup((TEMPLATES / name).read_text(encoding="utf-8"))


def plot(figure: Figure, words: str) -> Image:
    """A figure of matplotlib as a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS, metadata={"Software": None})
    return _image(buffer.getvalue(), "image/png", words, round(figure.get_figwidth() * 96))


def picture(design: Design, words: str) -> Image | str:
    """The diagram of a design as an image, where its ids and its text are its own; or why there is none."""
    try:
        return _image(compiler.picture(design, "svg"), "image/svg+xml", words)
    except MissingPartError as error:
        return f"No picture of the diagram: {error}"


def _image(data: bytes, kind: str, words: str, width: int | None = None) -> Image:
    return Image(f"data:{kind};base64,{b64encode(data).decode()}", words, width)


def drawing(design: Design) -> Markup:
    """The diagram of a design as an element of the page, or a note that says why there is none."""
    try:
        return Markup(compiler.picture(design, "svg").decode())
    except MissingPartError as error:
        return note(f"No picture: {error}")


def note(text: str) -> Markup:
    return Markup('<p class="note">{}</p>').format(text)
