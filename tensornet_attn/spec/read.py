"""Reads a source into a Design: `extends`, overrides, validation. All problems are reported together."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

from pydantic import ValidationError

from tensornet_attn import limits
from tensornet_attn.errors import DesignError, InputError
from tensornet_attn.spec.design import SECTIONS, Design
from tensornet_attn.spec.places import ALONE, Document, File, Path, Room, SourceRange
from tensornet_attn.spec.report import Reporter, meant, printable
from tensornet_attn.spec.sizes import KINDS, SPELLINGS
from tensornet_attn.spec.sources import Source, document_of, file_document, location, text_document
from tensornet_attn.spec.translate import TOP, report_validation

__all__ = ["ReadDesign", "Source", "load", "merge", "read", "read_document", "read_text"]
_WORD = re.compile(r"\w+")
OWN = ("name", "contains")  # not inherited: a child may lack the special cases of its parent
_FILLED: dict[str, Any] = {"tensornet": 1, "name": "unnamed", "legs": {}, "inputs": {}, "diagram": {}, "output": ""}


@dataclass
class ReadDesign:
    """The result of reading: a Design without its broken parts, the paths of the broken parts, and the problems."""

    design: Design | None
    reporter: Reporter
    broken: list[Path] = field(default_factory=list)


def load(source: Source, legs: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None) -> Design:
    """Reads a design from a shipped name, path, YAML text, dict or Design. Raises DesignError if its form is wrong."""
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
) -> ReadDesign:
    """Like `load`, but returns the readable part, of class `kind`, together with the problems."""
    for name, values in (("legs", legs), ("settings", settings)):
        if values is not None and not isinstance(values, Mapping):
            raise InputError(f"{name}= must be a mapping of names to numbers, not {type(values).__name__}.")
    return read_document(*document_of(source), legs, settings, kind)


def read_text(data: bytes | str, name: str) -> ReadDesign:
    """Reads YAML text; `name` is its name in messages."""
    return read_document(*text_document(data, name, None))


def read_document(
    document: Document,
    reporter: Reporter,
    legs: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    kind: type[Design] = Design,
) -> ReadDesign:
    """Reads a parsed document, such as a design inside another file, with its locations."""
    if document.data:
        document = _extended(document, reporter, ())
        reporter.document = document
    if "model" in document.data and not {"diagram", "extends"} & document.data.keys():
        hint = "use 'tensornet-attn check' or ta.models for models."
        reporter.error("unknown-key", "this is a model, not a design.", ("model",), key=True, hint=hint)
        return ReadDesign(None, reporter)
    if not document.data:
        return ReadDesign(None, reporter)
    _mend_keys(document, reporter)
    _override(document, "legs", legs or {}, reporter)
    _override(document, "settings", settings or {}, reporter)
    return _validated(document, reporter, kind)


def _extended(document: Document, reporter: Reporter, chain: tuple[str, ...], room: Room = ALONE) -> Document:
    """The document merged over the design it `extends`, within the limits `room`; empty if that design is unusable."""
    name = document.data.pop("extends", None)
    if name is None:
        return document
    nothing = Document({}, document.name)
    if not isinstance(name, str):
        reporter.error(
            "wrong-type",
            "'extends' must be the name or the path of one design.",
            ("extends",),
            hint="e.g. 'extends: mhsa'.",
        )
        return nothing
    source = name
    if "/" in name or name.endswith(".yaml"):
        source = os.path.normpath(os.path.join(os.path.dirname(document.path or ""), name))
    chain, room = (*chain, document.path or ""), document.beside(room)
    if location(source) in chain:
        message = f"'{name}' extends this design in turn."
        reporter.error("circular-extends", message, ("extends",), hint="remove 'extends' from one of them.")
        return nothing
    if len(chain) > limits.EXTENDS_DEPTH:
        message = f"this chain of 'extends' has more than {limits.EXTENDS_DEPTH} designs."
        reporter.error("too-deep", message, ("extends",), hint="shorten the chain.")
        return nothing
    parent, parent_reporter = file_document(source, room)
    if not {"tensornet", "extends"} & parent.data.keys():
        _no_parent(name, parent_reporter, reporter)
        return nothing
    parent = _extended(parent, parent_reporter, chain, room)
    reporter.reported += parent_reporter.reported
    return merge(parent, document, reporter) if parent.data else nothing


def merge(parent: Document, child: Document, reporter: Reporter) -> Document:
    """Merges sections key by key: the child's value replaces the parent's as a whole, null removes an entry."""
    merged = Document({**parent.data}, child.name, parent.keys, parent.values, child.path)
    replaced: list[Path] = [(key,) for key in OWN]
    for key in OWN:
        merged.data.pop(key, None)
    for key, value in child.data.items():
        inherited = merged.data.get(key) or {}
        if key in SECTIONS and isinstance(value, dict) and isinstance(inherited, dict):
            merged.data[key] = _section(inherited, value, key, reporter)
            replaced += [(key, name) for name in value]
        else:
            merged.data[key] = value
            replaced.append((key,))
    replaced += _without_unread(merged.data, parent.data, child.data)
    merged.replace(child, replaced)
    merged.keys |= {path: place for path, place in child.keys.items() if len(path) == 1}
    merged.values |= {path: place for path, place in child.values.items() if not path}
    return merged


def _without_unread(merged: dict[str, Any], parent: dict[str, Any], child: dict[str, Any]) -> list[Path]:
    """Removes the parent's optional inputs that only replaced steps read; returns their paths.

    A child that computes keys and values from `x` need not remove the input `memory`.
    """
    inputs, child_inputs = merged.get("inputs"), child.get("inputs")
    if not isinstance(inputs, dict):
        return []
    removed = [
        name
        for name, declared in inputs.items()
        if isinstance(declared, dict)
        and "default" in declared
        and not (isinstance(child_inputs, dict) and name in child_inputs)
        and _reads(parent.get("diagram"), name)
        and not _reads(merged.get("diagram"), name)
    ]
    merged["inputs"] = {name: declared for name, declared in inputs.items() if name not in removed}
    return [("inputs", name) for name in removed]


def _reads(diagram: Any, name: str) -> bool:
    """Whether a diagram, or a part of it, contains a name."""
    if isinstance(diagram, dict):
        return any(_reads(inner, name) for inner in diagram.values())
    return isinstance(diagram, str) and name in _WORD.findall(diagram)


def _section(
    parent_entries: dict[str, Any], child_entries: dict[str, Any], section: str, reporter: Reporter
) -> dict[str, Any]:
    """Merges one section of the child into the parent's."""
    new_before, new_last = (
        _new_names(parent_entries, child_entries)
        if section == "diagram"
        else ({}, [name for name in child_entries if name not in parent_entries])
    )
    for name in child_entries:
        if child_entries[name] is None and name not in parent_entries:
            message = f"the extended design has no '{name}' to remove."
            hint = reporter.nearest(name, parent_entries)
            reporter.error("nothing-to-remove", message, (section, name), key=True, hint=hint)
    order = [name for parent_name in parent_entries for name in (*new_before.get(parent_name, ()), parent_name)]
    values = parent_entries | child_entries
    return {
        name: values[name]
        for name in (*order, *new_last)
        if not (name in child_entries and child_entries[name] is None)
    }


def _new_names(parent_entries: dict[str, Any], child_entries: dict[str, Any]) -> tuple[dict[str, list[str]], list[str]]:
    """(the child's new steps before each step of the parent, the new steps at the end)."""
    new_before: dict[str, list[str]] = {}
    waiting: list[str] = []
    for name in child_entries:
        if name in parent_entries:
            new_before[name], waiting = waiting, []
        else:
            waiting.append(name)
    return new_before, waiting


def _no_parent(name: str, parent_reporter: Reporter, reporter: Reporter) -> None:
    """Reports why the design cannot be extended, without quoting the file, which may not be a design."""
    problem = next(iter(parent_reporter.problems()), None)
    if problem is not None and problem.code == "unknown-design":
        message, hint = problem.message, problem.hint
    elif problem is not None and problem.code in ("unreadable", "too-large"):
        message, hint = f"'{name}' {problem.message.removeprefix('this file ')}", problem.hint
    else:
        message, hint = f"'{name}' is not a design.", "start a design with 'tensornet: 1'; check that file by itself."
    reporter.error("unknown-design", message, ("extends",), hint=hint)


def _mend_keys(document: Document, reporter: Reporter) -> None:
    """Reports unknown keys at the top level; a key that resembles a missing key is renamed to it."""
    for key in [key for key in document.data if key not in TOP]:
        guess = meant(reporter.unknown_key((key,), TOP))
        if guess and guess not in document.data and guess != "extends":
            document.rename(key, guess)
        else:
            del document.data[key]


def _override(document: Document, section: str, values: Mapping[str, Any], reporter: Reporter) -> None:
    """Replaces the file's values by `legs=` and `settings=` of the call. A leg keeps its kind."""
    declared = document.data.get(section)
    for key, value in values.items():
        name, written = printable(str(key), limits.NAME_LENGTH), _written(value)
        source_line = printable(f"{name}: {written}", 200)
        file, start = File(f"{section}= argument", source_line, (source_line,)), len(name) + 2
        place = SourceRange(file, 0, len(source_line), 0, 0)
        if not isinstance(declared, dict) or name not in declared:
            what = "leg" if section == "legs" else "setting"
            hint = reporter.nearest(name, declared if isinstance(declared, dict) else ())
            message = f"the design has no {what} '{name}' to replace."
            reporter.error(f"unknown-{what}", message, (), hint=hint, place=place)
            continue
        declared_kind, new_kind = (_kind(declared[name]), _kind(value)) if section == "legs" else ("", "")
        if problem := _kind_problem(name, declared[name], declared_kind, new_kind):
            reporter.error("run-time-leg", problem[0], (), hint=problem[1], place=place)
            continue
        declared[name] = f"{declared_kind} {written}" if declared_kind and not new_kind else value
        document.keys[(section, name)] = place
        document.values[(section, name)] = SourceRange(
            file, start, len(source_line), 0, start, str(declared[name]) if declared_kind else written
        )


def _kind(written: Any) -> str:
    """The kind at the start of a leg's value; empty for a size."""
    word = written.split(maxsplit=1)[:1] if isinstance(written, str) else []
    kind = SPELLINGS.get(word[0], word[0]) if word else ""
    return kind if kind in KINDS else ""


def _kind_problem(name: str, declared: Any, declared_kind: str, new_kind: str) -> tuple[str, str] | None:
    """(message, hint) if an override would change a leg's kind, or set a size that the input sets, otherwise None."""
    if new_kind and new_kind != declared_kind:
        kind = f"a {declared_kind} leg" if declared_kind else "a size"
        return f"leg '{name}' is {kind}; an override cannot change that.", "give only its size, or edit the design."
    if declared_kind in ("query", "key") and declared == declared_kind and not new_kind:
        return (
            f"leg '{name}' is sized by the input at run time.",
            f"give it a maximum instead, e.g. '{declared_kind} 256'.",
        )
    return None


def _written(value: Any) -> str:
    """A number or text as YAML; an integer beyond any limit becomes a number that is rejected."""
    if isinstance(value, int) and value.bit_length() > 2 * limits.INTEGER_BITS:
        return "1e999"
    return str(value)


def _validated(document: Document, reporter: Reporter, kind: type[Design]) -> ReadDesign:
    """Validates the data. Broken parts are reported and removed, and the rest is validated again."""
    reading = ReadDesign(None, reporter)
    entries = {key: value for key, value in document.data.items() if value is not None}
    for _ in range(6):
        try:
            design = kind(**entries)
        except DesignError as error:
            _prune(entries, report_validation(cast(ValidationError, error.__cause__), reporter), reading)
            continue
        design._document = document
        reading.design = design
        return reading
    return reading


def _prune(entries: dict[str, Any], errors: dict[Path, str], reading: ReadDesign) -> None:
    """Removes the values at these paths, and fills in required keys. Of a box with a wrong key, the rest stays."""
    cut = reading.reporter.cut
    entries |= deepcopy(entries)
    for path in sorted(errors, key=len, reverse=True):
        if path[:1] == ("diagram",) and len(path) > 2 and isinstance(path[-1], str) and cut.count(path) < 2:
            cut.append(path)
            owner: Any = entries
            for step in path[:-1]:
                owner = owner[step]
            owner.pop(path[-1], None)
            if errors[path] == "missing":  # any text keeps the box; what it means is not reported
                owner[path[-1]] = path[1]
            continue
        reading.broken.append(path[:2])
        head = str(path[0]) if path else ""
        if len(path) > 1 and isinstance(entries.get(head), dict):
            entries[head].pop(path[1], None)
        elif head in _FILLED:
            entries[head] = _FILLED[head]
        else:
            entries.pop(head, None)
