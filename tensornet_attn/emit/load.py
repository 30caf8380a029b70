"""The only place that runs generated text: source to module, with tracebacks that can show it.

A text is loaded once. Its module stays as long as something owns it, and as long as it is one of the `KEPT` used last.
One with functions or kernels that operations of torch call by name stays for good, as one that has such operations of
its own does: a backward or a compiled graph may still call them.
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

KEPT = 128  # modules that nothing owns
REGISTERS = ("torch.library.", "@block_function(", " = region(")  # in a text of what is registered for good
_PREFIX = "tensornet_attn._emitted_"
_owners: Counter[str] = Counter()
_for_good: set[str] = set()
_recent: OrderedDict[str, None] = OrderedDict()
_lock = RLock()  # reentrant: owners go whenever memory is collected


def load(source: str, name: str) -> ModuleType:
    """The module of an emitted text; equal texts are loaded once. `name` shows in tracebacks.

    It stands in sys.modules, where torch.compile looks functions up by the name of their module.
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
    module = sys.modules[full] = ModuleType(full)  # there before it runs: what is registered is looked up by it
    module.__file__ = file
    try:
        exec(compile(source, file, "exec"), module.__dict__)  # the text was emitted by this package
    except BaseException:
        del sys.modules[full], linecache.cache[file]
        raise
    if any(mark in source for mark in REGISTERS):
        _for_good.add(full)
    return module


def load_class(source: str, class_name: str, name: str) -> Any:
    """The class that an emitted text defines."""
    return getattr(load(source, name), class_name)


def unload_with(owner: object, function: Any) -> None:
    """Lets the emitted module of a function go when the last of its owners is gone."""
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
    """Forgets a module that nothing owns, none of those used last, and without operations of torch."""
    if name not in _owners and name not in _recent and name not in _for_good:
        linecache.cache.pop(str(getattr(sys.modules.pop(name, None), "__file__", "")), None)
