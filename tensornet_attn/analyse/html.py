"""A page of HTML in one file: nothing is loaded from elsewhere, and every text is escaped."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Iterable, Sequence
from hashlib import sha256
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DOTS = 144  # per inch: twice the 72 that a figure's inches stand for on the page
_STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; color: #1f2933;
  background: #fff; max-width: 1080px; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.7rem; margin: 0 0 .3rem; }
h2 { font-size: 1.35rem; margin: 3rem 0 .3rem; padding-top: 1rem; border-top: 2px solid #d9e2ec; }
h3 { font-size: 1.1rem; margin: 2.2rem 0 .3rem; }
h4 { font-size: .95rem; margin: 1.4rem 0 .2rem; color: #486581; }
p { margin: .3rem 0; max-width: 54rem; }
.note, figcaption, caption { color: #52606d; font-size: .86rem; }
code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .9em; background: #f0f4f8;
  padding: .05em .3em; border-radius: 3px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6rem 0 1rem; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding-bottom: .3rem; }
th, td { padding: .22rem .8rem; text-align: right; border-bottom: 1px solid #e4e7eb; }
th { font-weight: 600; border-bottom: 2px solid #bcccdc; vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tr.whole td { font-weight: 600; border-top: 2px solid #bcccdc; }
figure { margin: .6rem 0 1.2rem; }
img { max-width: 100%; height: auto; }
img.diagram { max-height: 460px; }
nav ul { columns: 3; padding-left: 1.2rem; }
"""
_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, body: Iterable[str], style: str = "", script: str = "") -> str:
    """A whole page; `body` is HTML already, `style` is CSS beyond that of all pages; no script but `script` runs."""
    content = "\n".join(body)
    policy = (
        f"{_POLICY}; script-src 'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" if script else _POLICY
    )
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{_STYLE}{style}</style>\n</head>\n"
        f"<body>\n{content}\n{f'<script>{script}</script>{chr(10)}' if script else ''}</body>\n</html>\n"
    )


def heading(level: int, text: str, mark: str | None = None) -> str:
    return f"<h{level}{f' id={chr(34)}{escape(mark)}{chr(34)}' if mark else ''}>{escape(text)}</h{level}>"


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{escape(text)}</p>"


def code(text: str) -> str:
    return f"<p><code>{escape(text)}</code></p>"


def table(header: Sequence[str], rows: Iterable[Sequence[str]], caption: str, last: bool = False) -> str:
    """A table; `last`: its last row sums up the others."""
    rows = list(rows)
    lines = [
        f'<div class="wide"><table><caption>{escape(caption)}</caption>',
        f"<thead>{_row(header, 'th')}</thead>",
        "<tbody>",
    ]
    lines += [_row(row, "td", " class='whole'" if last and row is rows[-1] else "") for row in rows]
    return "\n".join([*lines, "</tbody></table></div>"])


def _row(cells: Sequence[str], tag: str, attributes: str = "") -> str:
    return f"<tr{attributes}>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>"


def plot(figure: Figure, words: str) -> str:
    """A figure as a PNG inside the page, with words that say what it shows."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS, metadata={"Software": None})
    width = round(figure.get_figwidth() * 96)
    return _picture(buffer.getvalue(), "image/png", words, f' width="{width}"')


def picture(svg: bytes, words: str) -> str:
    """An SVG as an image, where its ids and its text are its own."""
    return _picture(svg, "image/svg+xml", words, ' class="diagram"')


def _picture(data: bytes, kind: str, words: str, attributes: str) -> str:
    source = f"data:{kind};base64,{b64encode(data).decode()}"
    image = f'<img{attributes} src="{source}" alt="{escape(words)}">'
    return f"<figure>{image}<figcaption>{escape(words)}</figcaption></figure>"
