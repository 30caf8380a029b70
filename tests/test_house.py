"""The house rules that a machine can hold: layers, sizes, imports of torch, no network, one place that runs text."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import networkx
import pytest

from tests import budget

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "tensornet_attn"
FREE = {"constants", "errors", "keywords", "limits", "files", "named", "version"}  # every layer may import these
LAYERS = (
    "ir",
    "ops",
    "spec",
    "graph",
    "special",
    "rewrite",
    "cost",
    "tiles",
    "emit",
    "kernels",
    "plan",
    "draw",
    "runtime",
    "nn",
    "reference",
    "verify",
    "compiler",
    "report",
    "models",
    "tasks",
    "checkpoint",
    "hf",
    "convert",
    "analyse",
    "bench",
    "train",
    "compare",
    "search",
    "cli",
)
WITHOUT_TORCH = FREE | {
    "ir",
    "spec",
    "graph",
    "special",
    "rewrite",
    "cost",
    "tiles",
    "emit",
    "kernels",
    "plan",
    "draw",
    "report",
}
TORCH_WHEN_NEEDED = {"ops", "compiler", "cli", "__init__"}  # inside functions only
NETWORK = {"socket", "ssl", "http", "urllib", "ftplib", "smtplib", "xmlrpc", "requests", "httpx", "aiohttp", "urllib3"}
SERVES = "tensornet_attn/cli/serve.py"  # files, to this machine alone
RUNS_TEXT = f"{PACKAGE}/emit/load.py"  # the only module that runs generated text
LINES = 600
CLOCK = re.compile(r"\btime\.(?:perf_counter|process_time|time)\b|\bfrom time import.*")


@cache
def modules(root: Path) -> list[tuple[Path, ast.Module]]:
    paths = sorted((root / PACKAGE).rglob("*.py"))
    return [(path.relative_to(root), ast.parse(path.read_text(encoding="utf-8"), str(path))) for path in paths]


def layer_of(module: str) -> str:
    """`tensornet_attn.spec.sizes` -> `spec`; the package itself is `__init__`."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def module_name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def imports(tree: ast.AST, root: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, those in functions too; `from tensornet_attn import limits` names the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            whole = module == PACKAGE
            yield from ((node.lineno, f"{module}.{alias.name}" if whole else module) for alias in node.names)


def layer_violations(root: Path) -> list[str]:
    found = []
    for path, tree in modules(root):
        own = layer_of(module_name(path))
        if own == "__init__" or own in FREE:  # the public face imports lazily what it shows
            allowed = {"__init__", *FREE, *LAYERS} if own == "__init__" else FREE
        elif own in LAYERS:
            allowed = FREE | set(LAYERS[: LAYERS.index(own) + 1])
        else:
            found.append(f"{path}: '{own}' has no place in LAYERS")
            continue
        if own == "cli":
            allowed = allowed | {"__init__"}  # the command line uses the public face
        for line, module in imports(tree, root):
            if module.startswith("."):
                found.append(f"{path}:{line}: relative import")
            elif module.split(".")[0] == PACKAGE and not _may_import(module, allowed):
                found.append(f"{path}:{line}: {own} imports {module}")
    return found


def _may_import(module: str, allowed: set[str]) -> bool:
    layer = layer_of(module)
    return layer in allowed or ("__init__" in allowed and layer not in LAYERS)


def torch_violations(root: Path) -> list[str]:
    found = []
    for path, tree in modules(root):
        layer = layer_of(module_name(path))
        if layer in WITHOUT_TORCH:
            found += [f"{path}:{line}: torch" for line, name in imports(tree, root) if name.split(".")[0] == "torch"]
        elif layer in TORCH_WHEN_NEEDED:
            top = ast.Module([node for node in tree.body if isinstance(node, (ast.Import, ast.ImportFrom))], [])
            found += [f"{path}:{line}: torch" for line, name in imports(top, root) if name.split(".")[0] == "torch"]
    return found


def network_violations(root: Path) -> list[str]:
    return [
        f"{path}:{line}: {name}"
        for path, tree in modules(root)
        for line, name in imports(tree, root)
        if name.split(".")[0] in NETWORK and path.as_posix() != SERVES
    ]


def execution_violations(root: Path) -> list[str]:
    """Calls of the built-in exec, eval, compile and __import__, outside the one place for them."""
    found = []
    for path, tree in modules(root):
        own = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}  # `ta.compile` is no built-in
        called = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
        calls = [node for node in called if node.func.id in {"exec", "eval", "compile", "__import__"} - own]
        if path.as_posix() != RUNS_TEXT:
            found += [f"{path}:{node.lineno}: {node.func.id}" for node in calls]
    return found


def size_violations(root: Path) -> list[str]:
    counts = [
        (path.relative_to(root), path.read_text(encoding="utf-8").count("\n"))
        for folder in (PACKAGE, "tests")
        for path in sorted((root / folder).rglob("*.py"))
    ]
    return [f"{path}: {lines} lines" for path, lines in counts if lines > LINES]


def cycle_violations(root: Path) -> list[str]:
    """Modules that import each other, imports for types and those inside of functions included."""
    names = {module_name(path) for path, _ in modules(root)}
    graph = networkx.DiGraph()
    for path, tree in modules(root):
        for _, module in imported_modules(tree, names):
            graph.add_edge(module_name(path), module)
    return [" -> ".join(sorted(found)) for found in networkx.strongly_connected_components(graph) if len(found) > 1]


def imported_modules(tree: ast.AST, names: set[str]) -> Iterator[tuple[int, str]]:
    """(line, module) of every import from this package; of `from package import module` the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in names)
        elif isinstance(node, ast.ImportFrom) and node.module in names:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield node.lineno, inner if inner in names else node.module


def private_violations(root: Path) -> list[str]:
    """Private names of this package that another module imports."""
    return [
        f"{path}:{node.lineno}: {alias.name} of {node.module}"
        for path, tree in modules(root)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == PACKAGE
        for alias in node.names
        if alias.name.startswith("_") and not alias.name.endswith("__")
    ]


def import_by_name_violations(root: Path) -> list[str]:
    """Modules of this package that are imported by a text: packages alone do so, for what they show."""
    found = []
    for path, tree in modules(root):
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            name = getattr(called, "attr", None) or getattr(called, "id", None)
            words = map(ast.unparse, node.args) if isinstance(node, ast.Call) and name == "import_module" else ()
            if any(PACKAGE in word for word in words) and path.name != "__init__.py":
                found.append(f"{path}:{node.lineno}: import_module")
    return found


def clock_violations(root: Path) -> list[str]:
    """Clocks whose reading a test might compare with a bound, which a busy machine breaks; to wait, time.monotonic."""
    paths = sorted((root / "tests").rglob("*.py"))
    return [f"{p.relative_to(root)}: {m[0]}" for p in paths for m in CLOCK.finditer(p.read_text(encoding="utf-8"))]


RULES = [
    layer_violations,
    cycle_violations,
    private_violations,
    import_by_name_violations,
    torch_violations,
    network_violations,
    execution_violations,
    size_violations,
    clock_violations,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_house(rule: Callable[[Path], list[str]]) -> None:
    assert rule(ROOT) == []


MISTAKES = [
    (layer_violations, "spec/a.py", "from tensornet_attn.graph import model", "spec imports tensornet_attn.graph"),
    (layer_violations, "spec/a.py", "def f():\n    import tensornet_attn.plan.a", "spec imports tensornet_attn.plan.a"),
    (layer_violations, "draw/a.py", "from tensornet_attn import reference", "draw imports tensornet_attn.reference"),
    (layer_violations, "graph/a.py", "from tensornet_attn import load", "graph imports tensornet_attn.load"),
    (layer_violations, "errors.py", "from tensornet_attn.spec import read", "errors imports tensornet_attn.spec"),
    (layer_violations, "reference.py", "import tensornet_attn.cli", "reference imports tensornet_attn.cli"),
    (layer_violations, "graph/a.py", "from . import model", "relative import"),
    (layer_violations, "stray.py", "", "'stray' has no place in LAYERS"),
    (torch_violations, "cost/a.py", "def f():\n    from torch import nn", "torch"),
    (torch_violations, "cli/a.py", "import torch.nn", "torch"),
    (network_violations, "nn/a.py", "from urllib.request import urlopen", "urllib.request"),
    (execution_violations, "emit/python.py", "exec('1')", "exec"),
    (size_violations, "nn/a.py", "x = 1\n" * (LINES + 1), f"{LINES + 1} lines"),
]


@pytest.mark.parametrize(("rule", "name", "text", "message"), MISTAKES)
def test_a_mistake_is_caught(
    tmp_path: Path, rule: Callable[[Path], list[str]], name: str, text: str, message: str
) -> None:
    (tmp_path / PACKAGE / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / PACKAGE / name).write_text(text)
    (found,) = rule(tmp_path)
    assert found.startswith(f"{PACKAGE}/{name}:")
    assert found.endswith(message)


def test_a_clock_in_a_test_is_found(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_a.py").write_text("end = time.monotonic() + 300\nassert time" + ".time() < start + 2\n")
    assert clock_violations(tmp_path) == ["tests/test_a.py: time" + ".time"]


ALLOWED = [
    ("draw/a.py", "from tensornet_attn.graph.graph import Graph\nfrom tensornet_attn import limits"),
    ("cli/a.py", "def f():\n    import torch\n    import tensornet_attn as ta\n    from tensornet_attn import Design"),
    ("emit/load.py", "exec(compile('1', 'f', 'exec'))"),
    ("nn/a.py", "import re\nimport torch\nre.compile('a')"),
    ("compiler.py", "def compile(): pass\ndef reference(): return compile()"),
]


@pytest.mark.parametrize(("name", "text"), ALLOWED)
def test_what_is_allowed_passes(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / PACKAGE / name).parent.mkdir(parents=True)
    (tmp_path / PACKAGE / name).write_text(text)
    assert [found for rule in RULES for found in rule(tmp_path)] == []


WITHOUT_TORCH_OR_NETWORK = """
import socket, sys
def refuse(*args, **kwargs): raise AssertionError("the network was touched")
socket.socket.connect = socket.getaddrinfo = refuse
import tensornet_attn as ta
assert ta.check("mhsa") == []
design = ta.load("mhsa")
ta.cost(design, n=16).to_text()
assert ta.cost(design, n=16).as_dict() == ta.cost("mhsa", n=16).as_dict()  # still the function, not the package
ta.draw(design, sys.argv[1])
ta.emit_source(design)
print(sorted(name for name in sys.modules if name.split(".")[0] in ("torch", "triton")))
"""


@pytest.mark.parametrize("suffix", ["svg", "dot", "mmd"])
def test_check_cost_draw_and_emission_need_neither_torch_nor_network(tmp_path: Path, suffix: str) -> None:
    picture = tmp_path / f"mhsa.{suffix}"
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH_OR_NETWORK, str(picture)], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("[]\n", "", 0)
    assert picture.stat().st_size > 0


def test_mypy_reads_the_whole_package() -> None:
    """No folder is left out, nor a user's calls, and torch is read: without its types a wrong argument is not seen."""
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["mypy"]
    assert options["files"] == ["tensornet_attn", "docs/generate", "tests/typed/user.py"]
    assert options["strict"]
    assert "exclude" not in options
    assert not [rule for rule in options["overrides"] if {"follow_imports", "follow_imports_for_stubs"} & {*rule}]
    ignored = [name for rule in options["overrides"] if rule.get("ignore_errors") for name in rule["module"]]
    modules = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in (ROOT / "tensornet_attn").rglob("*.py")
    }
    assert {*ignored} <= modules  # modules one by one, each of which exists


def test_no_room_is_above_its_budget() -> None:
    """`python -m tests.budget --write` lowers the budget of a room that became smaller; nothing raises one."""
    assert budget.problems(budget.read(), budget.measured()) == []
