"""What a public name takes and has, as lines: parameters, kinds, defaults, annotations as they are written."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from typing import Any, is_typeddict

PACKAGE = "tensornet_attn"
WIDTH = 120


def lines_of(name: str, value: Any) -> Iterator[str]:
    """The lines of one public name."""
    if inspect.isclass(value):
        yield from _class(name, value)
    elif inspect.isfunction(value):
        yield from _call(name, value)
    else:
        yield f"{name}: {type(value).__name__}"


def _call(name: str, function: Any) -> Iterator[str]:
    """`cost(design: Source, n: int | None = None) -> Report`, a line a parameter where it is long.

    Options that have names, `**options: Unpack[Options]`, are written one by one.
    """
    found = inspect.signature(function)
    parts, star = [], False
    for parameter in found.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.VAR_KEYWORD and (options := _options(function, parameter)):
            parts += ([] if star else ["*"]) + [f"{key}: {kind} = ..." for key, kind in options.items()]
            star = True
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not star:
            parts.append("*")
        star = star or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        parts.append(_parameter(parameter))
    back = "" if found.return_annotation is found.empty else f" -> {_text(found.return_annotation)}"
    line = f"{name}({', '.join(parts)}){back}"
    yield from [line] if len(line) <= WIDTH else [f"{name}(", *(f"  {part}" for part in parts), f"){back}"]


def _parameter(parameter: inspect.Parameter) -> str:
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    kind = "" if parameter.annotation is parameter.empty else f": {_text(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {_default(parameter.default)}"
    return f"{stars}{parameter.name}{kind}{default}"


def _default(value: object) -> str:
    """A constant as it is; another object, whose text names classes, by what it is."""
    plain = value is None or isinstance(value, bool | int | float | str | tuple)
    return repr(value) if plain else f"<{type(value).__name__}>"


def _text(annotation: Any) -> str:
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return re.sub(r"\b\w+(\.\w+)*\.(?=[A-Z])", "", text)  # where a class is defined may change


def _options(function: Any, parameter: inspect.Parameter) -> dict[str, str]:
    """The names and types of `**options: Unpack[Options]`, those of its parents first."""
    given = str(parameter.annotation).removeprefix("Unpack[").removesuffix("]")
    typed = inspect.unwrap(function).__globals__.get(given)
    if not is_typeddict(typed):
        return {}
    found: dict[str, str] = {}
    for key, kind in typed.__annotations__.items():
        found[key] = _text(getattr(kind, "__forward_arg__", kind))
    return found


def _class(name: str, cls: type) -> Iterator[str]:
    """A class: what it is made of, then its public methods and properties, those of its parents in the package too."""
    bases = [base.__name__ for base in cls.__mro__[1:] if not base.__module__.startswith(PACKAGE)]
    yield f"class {name} is {', '.join(base for base in bases if base not in ('object', 'Generic'))}".removesuffix(
        " is "
    )
    if hasattr(cls, "model_fields"):  # pydantic's
        for key, field in cls.model_fields.items():
            yield f"  {key}{' (required)' if field.is_required() else ''}"
    elif is_dataclass(cls):
        for field in fields(cls):
            default = field.default is not MISSING or field.default_factory is not MISSING
            value = f" = {_default(field.default)}" if field.default is not MISSING else " = ..." if default else ""
            yield f"  {field.name}: {_text(field.type)}{value}"
    members: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if base.__module__.startswith(PACKAGE):
            members |= vars(base)
    for key, member in sorted(members.items()):
        made = key == "__init__" and not is_dataclass(cls) and not hasattr(cls, "model_fields")
        if key.startswith(("_", "model_")) and not made:
            continue
        yield from (f"  {line}" for line in _member(cls, key, member))


def _member(cls: type, key: str, member: Any) -> Iterator[str]:
    if isinstance(member, staticmethod | classmethod):
        yield from _call(f"{type(member).__name__} {key}", getattr(cls, key))
    elif inspect.isfunction(member):
        yield from _call(key, member)
    elif isinstance(member, property) or type(member).__name__ == "cached_property":
        yield f"property {key}"
