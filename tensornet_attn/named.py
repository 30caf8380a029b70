"""Objects of the user's own modules, by their names `module:name`."""

from __future__ import annotations

import os
import re
import sys
import traceback
from collections.abc import Iterator
from importlib import import_module
from inspect import isclass, isfunction
from pkgutil import iter_modules
from typing import Any

from tensornet_attn.errors import InputError, nearest

NAME = re.compile(r"\w+(?:\.\w+)*:\w+(?:\.\w+)*")
_MISSING = object()
_SCRIPT = "__mp_main__", "__main__"  # modules without a name of their own; the first one in children


def named(name: str, what: str, wanted: str, kinds: Any) -> Any:
    """Imports the object of a name `module:name`, e.g. `my_tasks:parity`. This runs the module.

    Modules are looked up in the working directory first, as with `python -m`. `what` the object is for and the `kinds`
    that are `wanted` are words for messages. Raises InputError with the nearest names.

    >>> named("string:digits", "example", "a text", str)
    '0123456789'
    """
    if not NAME.fullmatch(name):
        raise InputError(f"the {what} '{name}' is not of the form module:name, e.g. my_module:{what}.")
    module_name, _, path = name.partition(":")
    owner = item = _module(module_name, f"the {what} '{name}': ")
    for part in path.split("."):
        owner, item = item, getattr(item, part, _MISSING)
        if item is _MISSING:
            break
    if item is _MISSING or not isinstance(item, kinds):
        file = getattr(sys.modules[module_name], "__file__", None)
        where = f"module '{module_name}'" + (f" ('{file}')" if file else "")
        wrong = f"{where} has no '{path}'" if item is _MISSING else f"'{path}' of {where} is not {wanted}: {item!r:.60}"
        known = list(_of_kinds(owner, kinds))
        hint = nearest(part, known) if known else f"define {wanted} there."
        if module_name in _SCRIPT:
            hint = "what a script or notebook defines is found there only: move it to a module."
        raise InputError(f"the {what} '{name}': {wrong}; {hint}")
    return item


def _module(name: str, start: str) -> Any:
    """Imports a module. Raises InputError if there is none, or if it raises an error; `start` begins the message."""
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return import_module(name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            package, _, last = missing.rpartition(".")
            places = getattr(sys.modules[package], "__path__", []) if package else [folder]
            known = [found.name for found in iter_modules(places)]
            hint = nearest(last, known) if known else "run the command where the module is, or set PYTHONPATH."
            where = f"package '{package}'" if package else "the working directory or on PYTHONPATH"
            raise InputError(f"{start}there is no module '{missing}' in {where}; {hint}") from error
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = "" if isinstance(error, SyntaxError) else f" ('{frame.filename}', line {frame.lineno})"
        raise InputError(f"{start}importing '{name}' raised {type(error).__name__}: {error}{place}.") from error


def _of_kinds(owner: Any, kinds: Any) -> Iterator[str]:
    """The public names in a module of objects of these kinds, without the functions and classes that it imports."""
    for name, value in vars(owner).items() if hasattr(owner, "__dict__") else ():
        imported = (isclass(value) or isfunction(value)) and value.__module__ != getattr(owner, "__name__", None)
        if isinstance(value, kinds) and not imported and not name.startswith("_"):
            yield name


def name_of(item: Any, what: str, home: str | None = None) -> str:
    """The name `module:name` of a function or class, or of a value of a module. `home` is the module to try first.

    Raises InputError if the item is not a variable of a module; `what` is the word for it.

    >>> name_of(name_of, "example")
    'tensornet_attn.named:name_of'
    """
    home = home or getattr(item, "__module__", None)
    if (isclass(item) or isfunction(item)) and "<" not in item.__qualname__:
        return f"{home}:{item.__qualname__}"
    modules = sorted(sys.modules.items(), key=lambda pair: (pair[0] != home, *map(pair[0].__eq__, _SCRIPT)))
    for module, content in modules:
        for name, value in list(getattr(content, "__dict__", {}).items()):
            if value is item:
                return f"{module}:{name}"
    shown = getattr(item, "name", None) or getattr(item, "__qualname__", None) or repr(item)
    raise InputError(
        f"the {what} '{shown}' is not a variable of a module, where it can be found again: assign it to one."
    )
