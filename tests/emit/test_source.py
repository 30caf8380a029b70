"""The emitted text: how it reads, that it is a pure function, and that nothing of a user's can escape into it."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.emit.load import load

NAMES = ta.list_designs()


def forward_of(source: str) -> str:
    """The method `forward`, without its indentation."""
    cls = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef))
    (method,) = (node for node in cls.body if isinstance(node, ast.FunctionDef) and node.name == "forward")
    lines = source.splitlines()[method.lineno - 1 : method.end_lineno]
    return "\n".join(line.removeprefix("    ") for line in lines)


def test_gqa_reads_as_one_would_write_it() -> None:
    assert (
        forward_of(ta.emit_source("gqa"))
        == '''\
def forward(
    self, x: Tensor, memory: Tensor | None = None, *, mask: Tensor | None = None, key_mask: Tensor | None = None
) -> Tensor:
    """x is [... n f]; memory is [... m f]; mask [n m] or [... n m]; key_mask [... m], True = visible."""
    memory = x if memory is None else memory
    Q = (x @ self.Wq.flatten(1)).unflatten(-1, self.Wq.shape[1:])  # ... n g j d
    memory_hidden = memory if key_mask is None else memory.where(key_mask[..., None], 0)  # ... m f
    K = (memory_hidden @ self.Wk.flatten(1)).unflatten(-1, self.Wk.shape[1:])  # ... m g d
    V = (memory_hidden @ self.Wv.flatten(1)).unflatten(-1, self.Wv.shape[1:])  # ... m g d

    # A and A V: one fused call; the scores are not materialised
    q = Q.flatten(-3, -2).transpose(-3, -2)  # ... (g j) n d
    k = K.transpose(-3, -2)  # ... g m d
    v = V.transpose(-3, -2)  # ... g m d
    keep, bias = visible(
        None, heads_together(mask, max(x.ndim, memory.ndim) - 2, (0, 1)), key_mask, max(x.ndim, memory.ndim) - 2, 1
    )
    o = attend_heads(q, k, v, keep, bias, self.Wq.shape[3] ** -0.5)  # ... (g j) n d

    return o.transpose(-3, -2).flatten(-2) @ self.Wo.flatten(0, 2)  # ... n f'''
    )


def test_differential_reads_as_one_would_write_it() -> None:
    lines = forward_of(ta.emit_source("differential", package=True)).splitlines()
    assert lines[11:14] == [
        "    lambda1 = exp(self.lq1 @ self.lk1)  # a scalar",
        "    lambda2 = exp(self.lq2 @ self.lk2)  # a scalar",
        "    A_A2 = -lambda1 + lambda2 - 0.8  # a scalar",
    ]
    assert lines[-9:] == [
        "    # A2 and A2 V: one fused call; the scores are not materialised",
        "    q_2 = Q2.transpose(-3, -2)  # ... h n d",
        "    k_2 = K2.transpose(-3, -2)  # ... h m d",
        "    v_2 = V.transpose(-3, -2)  # ... h m e",
        "    o_2 = attend(q_2, k_2, v_2, keep, bias, self.Wq1.shape[2] ** -0.5)  # ... h n e",
        "    del Q2, K2, V, q_2, k_2, v_2",
        "",
        "    O = rms_norm(o.transpose(-3, -2) + A_A2 * o_2.transpose(-3, -2), -1)  # ... n h e",
        "    return (1 - 0.8) * projected(O.flatten(-2), self.Wo.flatten(0, 1))  # ... n f",
    ]


def test_no_line_is_too_long_and_ruff_finds_nothing(tmp_path: Path) -> None:
    for name in NAMES:
        for package in (False, True):
            (tmp_path / f"{name}_{package}.py").write_text(ta.emit_source(name, package=package))
    rules = ["check", "--isolated", "--no-cache", "--line-length", "120", "--select", "E,W,F,I,B,RET,PIE,C4,UP"]
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *rules, "--ignore", "E741", "--target-version", "py311", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", NAMES)
def test_lengths_are_bound_where_they_are_used(name: str) -> None:
    (method,) = ast.parse(forward_of(ta.emit_source(name))).body
    stored = [n.id for n in ast.walk(method) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
    read = {n.id for n in ast.walk(method) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
    assert [local for local in stored if local not in read and local != "_"] == []


EMIT_ALL = """
import hashlib, tensornet_attn as ta
for name in ta.list_designs():
    print(name, hashlib.sha256(ta.emit_source(name).encode()).hexdigest())
"""


def test_emission_is_a_pure_function() -> None:
    outputs = set()
    for seed in ("0", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", EMIT_ALL], env=environment, capture_output=True, text=True, check=True
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


def mlp(**more: Any) -> dict[str, Any]:
    return {
        "tensornet": 1,
        "name": "plain",
        "legs": {"n": "query", "f": 4, "l": 6},
        "inputs": {"x": "n f"},
        "weights": {"W": "f l", "V": "l f"},
        "diagram": {"H": {"map": "relu", "of": "x[n f] W[f l] -> n l"}, "y": "H[n l] V[l f] -> n f"},
        "output": "y",
    } | more


@pytest.mark.parametrize("name", ["tl", "F", "os", "math", "functools", "triton", "dataclass"])
def test_a_step_adds_no_import(name: str) -> None:
    """Nor do its weight and its leg: imports follow from the global names that the code reads."""
    diagram = {name: {"map": "tanh", "of": "x[n f] W[f l] -> n l"}, "y": f"{name}[n l] V[l f] -> n f"}
    plain = {"H": {"map": "tanh", "of": "x[n f] W[f l] -> n l"}, "y": "H[n l] V[l f] -> n f"}
    for package in (True, False):
        found, wanted = (ta.emit_source(mlp(diagram=one), backend="torch", package=package) for one in (diagram, plain))
        assert imports(found) == imports(wanted)


def imports(source: str) -> list[str]:
    return [ast.unparse(node) for node in ast.parse(source).body if isinstance(node, ast.Import | ast.ImportFrom)]


EVIL = [
    '"""\nimport os\n"""',
    "a \" b ' c",
    "back\\slash \\x41 \\N{BULLET} \\",
    "{x} {{y}} %s $z",
    'ends with a quote"',
    "two\nlines\r\nand\u2028more\x0b",
    "\u202eright to left\u202c and \ufeff",
    "'''",
    "# no comment",
    "é 漢 🙂",
]


@pytest.mark.parametrize("text", EVIL)
def test_no_text_escapes(text: str) -> None:
    source = ta.emit_source(mlp(about=text, source=text))
    plain, tree = ast.parse(ta.emit_source(mlp())), ast.parse(source)
    assert ast.dump(ast.Module(tree.body[1:], [])) == ast.dump(ast.Module(plain.body[1:], []))
    assert "\\" not in source.split("import torch")[0]
    assert max(len(line) for line in source.splitlines()) <= 120
    assert ta.compile(mlp(about=text, source=text), "torch")(torch.randn(3, 4)).shape == (3, 4)


@pytest.mark.parametrize(
    "name",
    ["tensor", "nn", "f", "torch", "value_error", "none", "true", "a__b", "x_", "import_", "x" * 64, "module", "super"],
)
def test_designs_of_any_name_compile(name: str) -> None:
    module = ta.compile(mlp(name=name), "torch")
    assert module(torch.randn(2, 3, 4)).shape == (2, 3, 4)


@pytest.mark.parametrize(
    "name", ["self", "torch", "F", "nn", "Tensor", "math", "visible", "relu", "n", "out", "new", "dtype"]
)
def test_tensors_and_legs_of_any_name_compile(name: str) -> None:
    data = mlp(
        legs={"n": "query", name if name != "n" else "f": 4, "l": 6}, inputs={name: ["n", name if name != "n" else "f"]}
    )
    leg = name if name != "n" else "f"
    data["weights"] = {"reset_parameters": [leg, "l"], "V": ["l", leg]}
    data["diagram"] = {
        "H": {"map": "relu", "of": f"{name}[n {leg}] reset_parameters[{leg} l] -> n l"},
        "keep": f"H[n l] V[l {leg}] -> n {leg}",
    }
    data["output"] = "keep"
    module = ta.compile(data, "torch")
    assert module(torch.randn(3, 4)).shape == (3, 4)
    assert load(module.source, "plain").Plain()(torch.randn(3, 4)).shape == (3, 4)
