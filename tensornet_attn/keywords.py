"""Checks the keyword arguments of public functions. The error for an unknown keyword suggests the closest known one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache, wraps
from inspect import Parameter, isfunction, signature
from typing import Any, is_typeddict

from tensornet_attn.errors import nearest

PACKAGE = __name__.partition(".")[0]
OF_LOAD = frozenset({"legs", "settings"})  # they belong to a design, not to what is done with it


def checked(member: Any, package: str = PACKAGE) -> Any:
    """Wraps a public function so that an unknown keyword raises TypeError with a suggestion.

    The same function always gives the same wrapper. Returns `member` unchanged if it is not a function, or if it
    accepts arbitrary keywords.

    >>> def made(width, *, depth=1): ...
    >>> checked(made)(3, dept=2)
    Traceback (most recent call last):
    TypeError: made() got an unexpected keyword argument 'dept'; did you mean 'depth'?
    """
    return _checked(member, package) if isfunction(member) else member


@cache
def _checked(function: Callable[..., Any], package: str) -> Callable[..., Any]:
    accepted = keywords_of(function)
    if accepted is None:
        return function

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        for name in keywords:
            if name not in accepted:
                of_load = name in OF_LOAD and "design" in accepted
                hint = f"give it to load(design, {name}=...)" if of_load else nearest(name, accepted)
                raise TypeError(f"{function.__name__}() got an unexpected keyword argument '{name}'; {hint}")
        return function(*args, **keywords)

    call.__module__ = package  # pickle looks the function up in this module
    return call


def keywords_of(function: Callable[..., Any]) -> frozenset[str] | None:
    """The keywords of a function, those of `**options: Unpack[Options]` included. Returns None if it accepts any.

    >>> from tensornet_attn.compiler import explain
    >>> sorted(keywords_of(explain))[:5]
    ['backend', 'batch', 'bucket', 'causal', 'design']
    """
    names = set[str]()
    for parameter in signature(function).parameters.values():
        if parameter.kind in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            names.add(parameter.name)
        elif parameter.kind is Parameter.VAR_KEYWORD:
            options = function.__globals__.get(str(parameter.annotation).removeprefix("Unpack[").removesuffix("]"))
            if not is_typeddict(options):
                return None
            names |= options.__annotations__.keys()
    return frozenset(names)


def caller() -> int:
    """The `stacklevel` with which `warnings.warn`, called beside it, reports the line that called the package.

    Lines of torch between them, which calls a module's forward, are passed over.
    """
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in (PACKAGE, "torch"):
        frame, level = frame.f_back, level + 1
    return level
