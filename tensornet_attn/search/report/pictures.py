"""The pictures of designs, made small enough that a page can hold those of a whole study."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache

from tensornet_attn import compiler
from tensornet_attn.analyse import html
from tensornet_attn.errors import MissingPartError
from tensornet_attn.search.trial import Trial
from tensornet_attn.spec import Design

MOST = 3_000_000  # characters of pictures on one page
LEFT_OUT = "The picture is left out, so that this page stays small; 'tensornet-attn draw' makes it."
# What Graphviz says of every node and wire, and a page says once or not at all.
_SAME = (
    (re.compile(r' xml:space="preserve"'), ""),
    (re.compile(r' font-family="Helvetica,sans-Serif"'), ""),
    (re.compile(r' xmlns:xlink="[^"]*"'), ""),
    (re.compile(r' id="(?:graph|node|edge|clust|a_)[^"]*"'), ""),
    (re.compile(r' class="(?:node|edge|cluster|graph)[^"]*"'), ""),
    (re.compile(r"<!--.*?-->\n?"), ""),
    (re.compile(r"<g>\s*</g>\n?"), ""),
)
_PLACES = re.compile(r' (?:d|points|x|y|cx|cy|rx|ry|viewBox)="[^"]*"')
_DIGITS = re.compile(r"(\.\d)\d+")  # a tenth of a point is enough


def pictures(trials: Iterable[Trial]) -> dict[str, str]:
    """By essence, the picture of each design as SVG, the first ones as far as the page has room; else a sentence."""
    found: dict[str, str] = {}
    room = MOST
    for trial in trials:
        if trial.essence not in found:
            drawn = _picture(trial) if room > 0 else _sentence(LEFT_OUT)
            found[trial.essence] = drawn
            room -= len(drawn)
    return found


@lru_cache(maxsize=1024)
def design_of(text: str) -> Design:
    """A design by its YAML, read once."""
    return compiler.load(text)


def _picture(trial: Trial) -> str:
    try:
        return slim(compiler.picture(design_of(trial.design), "svg").decode())
    except MissingPartError as error:
        return _sentence(f"No picture: {error}")


def _sentence(text: str) -> str:
    return html.paragraph(text, "note")


def slim(svg: str) -> str:
    """A drawing of Graphviz without what its page says once."""
    for pattern, other in _SAME:
        svg = pattern.sub(other, svg)
    return _PLACES.sub(lambda places: _DIGITS.sub(r"\1", places[0]), svg)
