"""Runs generated source, in this one place: source to module, with lines in tracebacks.

A text is loaded once. Its module stays in memory as long as it has an owner or is one of the `KEPT` most recently used.
Modules with custom operations, or with functions and kernels that custom operations call by name, stay for good: a
backward or a compiled graph may still call them.
"""

from __future__ import annotations

import linecache
import sys
import weakref
from collections import Counter, OrderedDict
from hashlib import sha256
from threading import RLock
from types import ModuleType
from typing import Any

KEPT = 128  # modules without owner
REGISTERS = (
    "torch.library.",
    "@block_function(",
    " = region(",
    " = tile_map(",
)  # marks of a text that registers something permanently
_PREFIX = "tensornet_attn._emitted_"
_owners: Counter[str] = Counter()
_for_good: set[str] = set()
_recent: OrderedDict[str, None] = OrderedDict()
_lock = RLock()  # reentrant, because owners are released during garbage collection


def load(source: str, name: str) -> ModuleType:
    """Loads an emitted text as a module; equal texts are loaded once. `name` appears in tracebacks.

    The module is in sys.modules, where torch.compile looks up functions.
    """
    full = f"{_PREFIX}{name}_{sha256(source.encode()).hexdigest()[:16]}"
    with _lock:
        module = sys.modules.get(full) or _loaded(source, full)
        _recent[full] = None
        _recent.move_to_end(full)
        while len(_recent) > KEPT:
            _forget(_recent.popitem(last=False)[0])
    return module


def _loaded(source: str, full: str) -> ModuleType:
    file = f"<{full}>"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    module = sys.modules[full] = ModuleType(full)  # registered before it runs, because registrations look it up
    module.__file__ = file
    try:
        exec(compile(source, file, "exec"), module.__dict__)  # emitted by this package
    except BaseException:
        del sys.modules[full], linecache.cache[file]
        raise
    if any(mark in source for mark in REGISTERS):
        _for_good.add(full)
    return module


def load_class(source: str, class_name: str, name: str) -> Any:
    """Loads an emitted text and returns the class it defines."""
    return getattr(load(source, name), class_name)


def unload_with(owner: object, function: Any) -> None:
    """Allows the module of an emitted function to be unloaded when its last owner is gone."""
    name = function.__module__
    with _lock:
        _owners[name] += 1
    weakref.finalize(owner, _release, name).atexit = False


def _release(name: str) -> None:
    with _lock:
        _owners[name] -= 1
        if not _owners[name]:
            del _owners[name]
        _forget(name)


def _forget(name: str) -> None:
    """Unloads a module that has no owner, is not recently used and registered nothing permanently."""
    if name not in _owners and name not in _recent and name not in _for_good:
        linecache.cache.pop(str(getattr(sys.modules.pop(name, None), "__file__", "")), None)
