"""From a source to a Design: reading, `extends`, overrides, form. Everything wrong is reported at once."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ValidationError

from tensornet_attn import limits
from tensornet_attn.errors import DesignError, InputError
from tensornet_attn.spec.design import SECTIONS, Design
from tensornet_attn.spec.places import ALONE, Document, File, Path, Place, Room
from tensornet_attn.spec.report import Reporter, meant, printable
from tensornet_attn.spec.sizes import KINDS, SPELLINGS
from tensornet_attn.spec.sources import Source, document_of, file_document, location, text_document
from tensornet_attn.spec.translate import TOP, report_validation

__all__ = ["Reading", "Source", "load", "merge", "read", "read_document", "read_text"]
_WORD = re.compile(r"\w+")
OWN = ("name", "contains")  # said by each file for itself: what a parent contains its child may not
_FILLED: dict[str, Any] = {"tensornet": 1, "name": "unnamed", "legs": {}, "inputs": {}, "diagram": {}, "output": ""}


@dataclass
class Reading:
    """What could be read of a design: a Design without its broken parts, the paths of those, and the problems."""

    design: Design | None
    reporter: Reporter
    broken: list[Path] = field(default_factory=list)


def load(source: Source, legs: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None) -> Design:
    """The design of a shipped name, path, YAML text, dict or Design, its form checked. Raises DesignError."""
    reading = read(source, legs, settings)
    problems = reading.reporter.problems()
    if reading.design is None or reading.reporter.failed:
        raise DesignError(problems)
    return reading.design


def read(
    source: Source,
    legs: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    kind: type[Design] = Design,
) -> Reading:
    """Like `load`, but returns what it could read, a `kind` of Design, together with the problems."""
    for name, values in (("legs", legs), ("settings", settings)):
        if values is not None and not isinstance(values, Mapping):
            raise InputError(f"{name}= is a mapping of names to numbers, not {type(values).__name__}.")
    return read_document(*document_of(source), legs, settings, kind)


def read_text(data: bytes | str, name: str) -> Reading:
    """Reads YAML from bytes under the name that messages show."""
    return read_document(*text_document(data, name, None))


def read_document(
    document: Document,
    reporter: Reporter,
    legs: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    kind: type[Design] = Design,
) -> Reading:
    """Reads what was parsed already, such as a design that stands inside another file; places included."""
    if document.data:
        document = _extended(document, reporter, ())
        reporter.document = document
    if "model" in document.data and not {"diagram", "extends"} & document.data.keys():
        hint = "'tensornet-attn check' and ta.models read models."
        reporter.error("unknown-key", "this is a model; a design is wanted here.", ("model",), key=True, hint=hint)
        return Reading(None, reporter)
    if not document.data:
        return Reading(None, reporter)
    _mend_keys(document, reporter)
    _override(document, "legs", legs or {}, reporter)
    _override(document, "settings", settings or {}, reporter)
    return _validated(document, reporter, kind)


def _extended(document: Document, reporter: Reporter, seen: tuple[str, ...], room: Room = ALONE) -> Document:
    """The document merged over what it `extends`; without data where that cannot be had. `room`: what it may have."""
    name = document.data.pop("extends", None)
    if name is None:
        return document
    nothing = Document({}, document.name)
    if not isinstance(name, str):
        reporter.error("wrong-type", "'extends' names one design or path.", ("extends",), hint="e.g. 'extends: mhsa'.")
        return nothing
    source = name
    if "/" in name or name.endswith(".yaml"):
        source = os.path.normpath(os.path.join(os.path.dirname(document.path or ""), name))
    seen, room = (*seen, document.path or ""), document.beside(room)
    if location(source) in seen:
        message = f"'{name}' extends this design again."
        reporter.error("circular-extends", message, ("extends",), hint="let one of them stand alone.")
        return nothing
    if len(seen) > limits.EXTENDS_DEPTH:
        message = f"more than {limits.EXTENDS_DEPTH} designs extend each other."
        reporter.error("too-deep", message, ("extends",), hint="shorten the chain.")
        return nothing
    parent, told = file_document(source, room)
    if not {"tensornet", "extends"} & parent.data.keys():
        _no_parent(name, told, reporter)
        return nothing
    parent = _extended(parent, told, seen, room)
    reporter.found += told.found
    return merge(parent, document, reporter) if parent.data else nothing


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


def _no_parent(name: str, told: Reporter, reporter: Reporter) -> None:
    """Says why there is nothing to extend, and shows nothing of a file that may be no design at all."""
    problem = next(iter(told.problems()), None)
    if problem is not None and problem.code == "unknown-design":
        message, hint = problem.message, problem.hint
    elif problem is not None and problem.code in ("unreadable", "too-large"):
        message, hint = f"'{name}' {problem.message.removeprefix('this file ')}", problem.hint
    else:
        message, hint = f"'{name}' is no design.", "a design starts with 'tensornet: 1'; check that file by itself."
    reporter.error("unknown-design", message, ("extends",), hint=hint)


def _mend_keys(document: Document, reporter: Reporter) -> None:
    """Reports unknown keys at the top; one that resembles a missing key is read as that one."""
    for key in [key for key in document.data if key not in TOP]:
        guess = meant(reporter.unknown_key((key,), TOP))
        if guess and guess not in document.data and guess != "extends":
            document.rename(key, guess)
        else:
            del document.data[key]


def _override(document: Document, section: str, values: Mapping[str, Any], reporter: Reporter) -> None:
    """Puts `legs=` and `settings=` of the call in place of what the file says; a leg keeps its kind."""
    known = document.data.get(section)
    for key, value in values.items():
        name, written = printable(str(key), limits.NAME_LENGTH), _written(value)
        text = printable(f"{name}: {written}", 200)
        file, start = File(f"{section}= argument", text, (text,)), len(name) + 2
        place = Place(file, 0, len(text), 0, 0)
        if not isinstance(known, dict) or name not in known:
            what = "leg" if section == "legs" else "setting"
            hint = reporter.nearest(name, known if isinstance(known, dict) else ())
            message = f"the design has no {what} '{name}' to replace."
            reporter.error(f"unknown-{what}", message, (), hint=hint, place=place)
            continue
        old, new = (_kind(known[name]), _kind(value)) if section == "legs" else ("", "")
        if problem := _kind_problem(name, known[name], old, new):
            reporter.error("run-time-leg", problem[0], (), hint=problem[1], place=place)
            continue
        known[name] = f"{old} {written}" if old and not new else value
        document.keys[(section, name)] = place
        document.values[(section, name)] = Place(file, start, len(text), 0, start, str(known[name]) if old else written)


def _kind(value: Any) -> str:
    """The kind a leg's value opens with; none for a size."""
    word = value.split(maxsplit=1)[:1] if isinstance(value, str) else []
    kind = SPELLINGS.get(word[0], word[0]) if word else ""
    return kind if kind in KINDS else ""


def _kind_problem(name: str, known: Any, old: str, new: str) -> tuple[str, str] | None:
    """(sentence, hint) where an override would change a leg's kind, or size what the input sizes."""
    if new and new != old:
        kind = f"a {old} leg" if old else "a size"
        return f"leg '{name}' is {kind}, and keeps its kind.", "give its size alone; another kind is another design."
    if old in ("query", "key") and known == old and not new:
        return f"leg '{name}' is sized by the input at run time.", f"'{old} 256' gives it a maximum."
    return None


def _written(value: Any) -> str:
    """A number or text as one would write it; an integer too long to be meant becomes one that is refused."""
    if isinstance(value, int) and value.bit_length() > 2 * limits.INTEGER_BITS:
        return "1e999"
    return str(value)


def _validated(document: Document, reporter: Reporter, kind: type[Design]) -> Reading:
    """The Design of the data; broken parts are reported, left out, and the rest validated again."""
    reading = Reading(None, reporter)
    data = {key: value for key, value in document.data.items() if value is not None}
    for _ in range(3):
        try:
            design = kind(**data)
        except DesignError as error:
            _prune(data, report_validation(cast(ValidationError, error.__cause__), reporter), reading)
            continue
        design._document = document
        reading.design = design
        return reading
    return reading


def _prune(data: dict[str, Any], paths: list[Path], reading: Reading) -> None:
    """Leaves out what holds no usable value, and fills what then is missing."""
    lost: dict[str, set[str | int]] = {}
    for path in paths:
        reading.broken.append(path[:2])
        head = str(path[0]) if path else ""
        if len(path) > 1 and isinstance(data.get(head), dict):
            lost.setdefault(head, set()).add(path[1])
        elif head in _FILLED:
            data[head] = _FILLED[head]
        else:
            data.pop(head, None)
    for head, names in lost.items():
        if isinstance(data.get(head), dict):
            data[head] = {key: value for key, value in data[head].items() if key not in names}
