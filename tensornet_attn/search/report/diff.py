"""What a design has that its base has not: both as lines, an entry a line, and the lines that differ in colour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import unified_diff
from html import escape
from typing import Any

from tensornet_attn.spec import Design

ABOUT = ("tensornet", "name", "about", "source", "contains")  # say nothing of what is computed
NEAR = 1  # lines around a change that are shown
KINDS = {"+": "more", "-": "less", "@": "place"}


def difference(base: Mapping[str, Any], design: Design) -> str:
    """The difference as HTML: lines that only the base has, that only the design has, and some around them."""
    before, after = list(lines(base)), list(lines(design.as_dict()))
    changed = list(unified_diff(before, after, n=NEAR, lineterm=""))[2:]
    if not changed:
        return '<p class="note">As its base is.</p>'
    told = (_line(text) for text in changed[1:])  # the first place is the beginning
    return f'<pre class="diff">{"".join(told)}</pre>'


def _line(text: str) -> str:
    kind = KINDS.get(text[0], "same")
    words = "  ..." if kind == "place" else f"{text[0]} {text[1:]}"
    return f'<span class="{kind}">{escape(words)}</span>'


def lines(data: Mapping[str, Any]) -> Iterator[str]:
    """The entries of a design, a line each, under the names of their sections.

    >>> list(lines({"legs": {"f": 64}, "weights": {"W": {"legs": "f g", "init": "zeros"}}, "output": "y"}))
    ['legs:', '  f: 64', 'weights:', '  W: {legs: f g, init: zeros}', 'output: y']
    """
    sections = {name: data[name] for name in _order(data) if name not in ABOUT}
    for name, section in sections.items():
        if isinstance(section, Mapping):
            yield f"{name}:"
            yield from (f"  {key}: {_flow(value)}" for key, value in section.items())
        else:
            yield f"{name}: {_flow(section)}"


def _order(data: Mapping[str, Any]) -> list[str]:
    """The sections in the order of the language, which both sides of a difference share."""
    known = ["legs" if name == "declared_legs" else name for name in Design.model_fields]
    return [name for name in known if name in data]


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        short = set(value) == {"legs"}  # `Wq: {legs: f h d}` is written `Wq: f h d`
        inside = ", ".join(f"{key}: {_flow(item)}" for key, item in value.items())
        return _flow(value["legs"]) if short else f"{{{inside}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_flow, value))}]"
    return str(value)
