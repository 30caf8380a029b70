"""The weight of the house: `python -m tests.budget` prints it, `--write` lowers the budget to it.

`tests/budget.json` holds, for each room of the package, for the tests and for the Python of docs/, the number of AST
nodes without docstrings; for each room, the uses of names that say nothing of what they hold; and the files and
functions of the package that run from `hard_fish.yaml` to source, for each backend, in a fresh process. A figure only
goes down. A room that another room's code moves into takes the nodes with it: change both figures by hand.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUDGET = ROOT / "tests" / "budget.json"
PACKAGE = "tensornet_attn"
BACKENDS = ("torch", "cpp", "triton")
GENERIC = frozenset("found own one made part place text known given other result item value thing data tmp res".split())
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)

TRAIL = f"""
import importlib, inspect, json, os, pkgutil, sys
import {PACKAGE} as ta
package = os.path.dirname(ta.__file__) + os.sep
for room in sys.argv[2:]:  # what runs on import is not on the way
    for module in pkgutil.walk_packages([package + room], f"{PACKAGE}.{{room}}."):
        importlib.import_module(module.name)
load, emit, entered = ta.load, ta.emit_source, set()
def trace(frame, event, _):
    code = frame.f_code
    named = code.co_flags & inspect.CO_OPTIMIZED and not code.co_name.startswith("<")
    if event == "call" and named and code.co_filename.startswith(package):
        entered.add((code.co_filename, code.co_qualname))
sys.settrace(trace)
emit(load("hard_fish"), backend=sys.argv[1])
sys.settrace(None)
print(json.dumps([len({{file for file, _ in entered}}), len(entered)]))
"""
ON_THE_WAY = "ir ops spec graph special rewrite cost tiles plan emit draw".split()


def nodes(tree: ast.AST) -> int:
    """
    >>> nodes(ast.parse('def f():\\n    "A docstring."\\n    return 1')) == nodes(ast.parse("def f():\\n    return 1"))
    True
    """
    every = list(ast.walk(tree))
    documented = sum(isinstance(node, _DOCUMENTED) and ast.get_docstring(node) is not None for node in every)
    return len(every) - 2 * documented  # the expression and its constant


def generic_names(tree: ast.AST) -> int:
    """
    >>> generic_names(ast.parse("def f(found): return found + gradient"))
    2
    """
    names = (node.id if isinstance(node, ast.Name) else getattr(node, "arg", None) for node in ast.walk(tree))
    return sum(name in GENERIC for name in names)


def room_of(path: Path) -> str:
    """`tensornet_attn/plan/make.py` -> `tensornet_attn/plan`, `tests/cost/test_a.py` -> `tests`."""
    return "/".join(path.parts[: 2 if path.parts[0] == PACKAGE else 1])


def sizes(root: Path = ROOT) -> dict[str, dict[str, int]]:
    """By room, `nodes` and `generic names`."""
    rooms: dict[str, dict[str, int]] = {}
    for path in _modules(root):
        tree, room = ast.parse(path.read_text(encoding="utf-8")), room_of(path.relative_to(root))
        figures = rooms.setdefault(room, {"nodes": 0, "generic names": 0})
        figures["nodes"] += nodes(tree)
        figures["generic names"] += generic_names(tree)
    return rooms


def trail(backend: str) -> dict[str, int]:
    """The files and functions entered from hard_fish.yaml to the source of one backend, in a fresh process."""
    command = [sys.executable, "-c", TRAIL, backend, *ON_THE_WAY]
    printed = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, check=True).stdout
    files, functions = json.loads(printed)
    return {"files": files, "functions": functions}


def measured() -> dict[str, dict[str, int]]:
    return sizes() | {f"hard_fish to {backend}": trail(backend) for backend in BACKENDS}


def problems(budget: Mapping[str, Mapping[str, int]], now: Mapping[str, Mapping[str, int]]) -> list[str]:
    """What is above its budget, and budgets that can be lowered by more than 1 %.

    >>> problems({"a": {"nodes": 3}, "c": {"nodes": 900}}, {"a": {"nodes": 5}, "b": {"nodes": 1}, "c": {"nodes": 890}})
    ['a: 5 nodes, 2 above the budget.', 'b: 1 nodes, 1 above the budget.', 'c: 890 nodes: lower the budget of 900.']
    """
    lines = []
    for name, kinds in now.items():
        for kind, count in kinds.items():
            most = budget.get(name, {}).get(kind, 0)
            if count > most:
                lines.append(f"{name}: {count:,} {kind}, {count - most:,} above the budget.")
            elif count < 0.99 * most:
                lines.append(f"{name}: {count:,} {kind}: lower the budget of {most:,}.")
    gone = sorted({*budget} - {*now})
    return [*lines, *(f"{name} is gone: remove its budget." for name in gone)]


def read() -> dict[str, dict[str, int]]:
    budget: dict[str, dict[str, int]] = json.loads(BUDGET.read_text(encoding="utf-8"))
    return budget


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.budget", description="the weight of the house")
    parser.add_argument("--write", action="store_true", help="lower the budget to what there is")
    options = parser.parse_args(arguments)
    budget, now = read(), measured()
    for name, kinds in now.items():
        print(f"{name:28}", *(f"{count:9,} {kind:14}" for kind, count in kinds.items()))
    for kind in ("nodes", "generic names"):
        total = sum(kinds[kind] for name, kinds in now.items() if name.startswith(PACKAGE))
        print(f"{'the package':28} {total:9,} {kind}")
    if options.write:
        budget = {
            name: {kind: min(count, budget.get(name, {}).get(kind, count)) for kind, count in kinds.items()}
            for name, kinds in now.items()
        }
        BUDGET.write_text(json.dumps(budget, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    print(*(lines := problems(budget, now)), sep="\n")
    return 1 if lines else 0


def _modules(root: Path) -> Iterable[Path]:
    folders = (PACKAGE, "tests", "docs")
    return [path for folder in folders for path in sorted((root / folder).rglob("*.py"))]


if __name__ == "__main__":
    sys.exit(main())
