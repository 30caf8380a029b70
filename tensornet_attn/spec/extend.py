"""`extends`: a child's document merged over its parent's, places included."""

from __future__ import annotations

import re
from typing import Any

from tensornet_attn.spec.design import SECTIONS
from tensornet_attn.spec.places import Document, Path
from tensornet_attn.spec.report import Reporter

_WORD = re.compile(r"\w+")
OWN = ("name", "contains")  # said by each file for itself: what a parent contains its child may not


def merge(parent: Document, child: Document, reporter: Reporter) -> Document:
    """Sections merge key by key, a value given again replaces the whole value, null removes."""
    out = Document({**parent.data}, child.name, parent.keys, parent.values, child.path)
    replaced: list[Path] = [(key,) for key in OWN]
    for key in OWN:
        out.data.pop(key, None)
    for key, value in child.data.items():
        mine = out.data.get(key) or {}
        if key in SECTIONS and isinstance(value, dict) and isinstance(mine, dict):
            out.data[key] = _section(mine, value, key, reporter)
            replaced += [(key, name) for name in value]
        else:
            out.data[key] = value
            replaced.append((key,))
    replaced += _without_unread(out.data, parent.data, child.data)
    out.replace(child, replaced)
    out.keys |= {path: place for path, place in child.keys.items() if len(path) == 1}
    out.values |= {path: place for path, place in child.values.items() if not path}
    return out


def _without_unread(out: dict[str, Any], parent: dict[str, Any], child: dict[str, Any]) -> list[Path]:
    """Takes out inputs of the parent that may be left out and that only steps read which the child has replaced.

    A child that says how keys and values are made of `x` need not say that there is no `memory` any more.
    """
    inputs, own = out.get("inputs"), child.get("inputs")
    if not isinstance(inputs, dict):
        return []
    gone = [
        name
        for name, declared in inputs.items()
        if isinstance(declared, dict)
        and "default" in declared
        and not (isinstance(own, dict) and name in own)
        and _reads(parent.get("diagram"), name)
        and not _reads(out.get("diagram"), name)
    ]
    out["inputs"] = {name: declared for name, declared in inputs.items() if name not in gone}
    return [("inputs", name) for name in gone]


def _reads(value: Any, name: str) -> bool:
    """Whether a name stands in a diagram, or in a part of one."""
    if isinstance(value, dict):
        return any(_reads(part, name) for part in value.values())
    return isinstance(value, str) and name in _WORD.findall(value)


def _section(mine: dict[str, Any], theirs: dict[str, Any], section: str, reporter: Reporter) -> dict[str, Any]:
    """One section of the parent with the child's entries in it."""
    before, last = _new_names(mine, theirs) if section == "diagram" else ({}, [n for n in theirs if n not in mine])
    for name in theirs:
        if theirs[name] is None and name not in mine:
            message = f"the design it extends has no '{name}' to remove."
            hint = reporter.nearest(name, mine)
            reporter.error("nothing-to-remove", message, (section, name), key=True, hint=hint)
    order = [name for known in mine for name in (*before.get(known, ()), known)]
    values = mine | theirs
    return {name: values[name] for name in (*order, *last) if not (name in theirs and theirs[name] is None)}


def _new_names(mine: dict[str, Any], theirs: dict[str, Any]) -> tuple[dict[str, list[str]], list[str]]:
    """New steps by the parent's step they stand before: the next one in the child's file; and those with no next."""
    before: dict[str, list[str]] = {}
    waiting: list[str] = []
    for name in theirs:
        if name in mine:
            before[name], waiting = waiting, []
        else:
            waiting.append(name)
    return before, waiting
