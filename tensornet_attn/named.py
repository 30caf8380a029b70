"""Objects of the user's own modules, by their names `module:name`."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from importlib import import_module
from inspect import isclass, isfunction
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from tensornet_attn.errors import InputError, TensornetError, nearest

NAME = re.compile(r"\w+(?:\.\w+)*:\w+(?:\.\w+)*")
_LIBRARIES = *(sysconfig.get_path(kind) + os.sep for kind in ("stdlib", "purelib")), os.path.dirname(__file__) + os.sep
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
    owner = target = _module(module_name, f"the {what} '{name}': ")
    for part in path.split("."):
        owner, target = target, getattr(target, part, _MISSING)
        if target is _MISSING:
            break
    if target is _MISSING or not isinstance(target, kinds):
        file = getattr(sys.modules[module_name], "__file__", None)
        where = f"module '{module_name}'" + (f" ('{file}')" if file else "")
        wrong = (
            f"{where} has no '{path}'" if target is _MISSING else f"'{path}' of {where} is not {wanted}: {target!r:.60}"
        )
        candidates = list(_of_kinds(owner, kinds))
        hint = nearest(part, candidates) if candidates else f"define {wanted} there."
        if module_name in _SCRIPT:
            hint = "what a script or notebook defines is found there only: move it to a module."
        raise InputError(f"the {what} '{name}': {wrong}; {hint}")
    return target


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
            candidates = [module.name for module in iter_modules(places)]
            hint = (
                nearest(last, candidates) if candidates else "run the command where the module is, or set PYTHONPATH."
            )
            where = f"package '{package}'" if package else "the working directory or on PYTHONPATH"
            raise InputError(f"{start}there is no module '{missing}' in {where}; {hint}") from error
        frame = _of_the_user(error)
        location = "" if isinstance(error, SyntaxError) else f" ('{frame.filename}', line {frame.lineno})"
        raise InputError(f"{start}importing '{name}' raised {type(error).__name__}: {error}{location}.") from error


def _of_kinds(owner: Any, kinds: Any) -> Iterator[str]:
    """The public names in a module of objects of these kinds, without the functions and classes that it imports."""
    for name, member in vars(owner).items() if hasattr(owner, "__dict__") else ():
        imported = (isclass(member) or isfunction(member)) and member.__module__ != getattr(owner, "__name__", None)
        if isinstance(member, kinds) and not imported and not name.startswith("_"):
            yield name


def sentence(error: Exception) -> str:
    """The first line of an error; with its type and the line of the user's code that raised it, unless it is a
    TensornetError."""
    first = (str(error).strip() or type(error).__name__).split("\n", 1)[0][:300]
    if isinstance(error, TensornetError):
        return first
    frame = _of_the_user(error)
    return f"{type(error).__name__}: {first} ({Path(frame.filename).name}:{frame.lineno})"


def _of_the_user(error: BaseException) -> traceback.FrameSummary:
    """The last frame in the user's code, otherwise the last one: compiled modules give no absolute path."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if os.path.isabs(f.filename) and not f.filename.startswith(_LIBRARIES)]
    return (users or frames)[-1]


def name_of(target: Any, what: str, home: str | None = None) -> str:
    """The name `module:name` of a function or class, or of a value of a module. `home` is the module to try first.

    Raises InputError if the target is not a variable of a module; `what` is the word for it.

    >>> name_of(name_of, "example")
    'tensornet_attn.named:name_of'
    """
    home = home or getattr(target, "__module__", None)
    if (isclass(target) or isfunction(target)) and "<" not in target.__qualname__:
        return f"{home}:{target.__qualname__}"
    modules = sorted(sys.modules.items(), key=lambda pair: (pair[0] != home, *map(pair[0].__eq__, _SCRIPT)))
    for module, content in modules:
        for name, member in list(getattr(content, "__dict__", {}).items()):
            if member is target:
                return f"{module}:{name}"
    shown = getattr(target, "name", None) or getattr(target, "__qualname__", None) or repr(target)
    raise InputError(
        f"the {what} '{shown}' is not a variable of a module, where it can be found again: assign it to one."
    )
