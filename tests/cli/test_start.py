"""Starting is quick, and torch is imported only where it is needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tensornet_attn as ta
from tensornet_attn.cli.demo import LEGS, main

WITHOUT_TORCH = ["--help", "list", "show mhsa", "check mhsa", "schema", "cost mhsa", "draw mhsa", "compile mhsa"]
WATCH = """
import sys
from tensornet_attn.cli import main
code = main(sys.argv[1:])
print(code, sorted({name.split(".")[0] for name in sys.modules} & {"torch", "networkx", "rich"}), file=sys.stderr)
"""
COUNT = """
import sys
from tensornet_attn.cli import main
main(sys.argv[1:])
print(len(sys.modules), file=sys.stderr)
"""


@pytest.mark.parametrize("command", WITHOUT_TORCH)
def test_torch_stays_out(command: str) -> None:
    done = subprocess.run([sys.executable, "-c", WATCH, *command.split()], capture_output=True, text=True, check=False)
    cut = ["networkx"] if command == "cost mhsa" else []  # finds the least that decoding can keep
    assert done.stderr == f"0 {cut}\n"


@pytest.mark.parametrize(("command", "most"), [("--help", 250), ("list", 450), ("check mhsa", 450)])
def test_few_modules_are_imported(command: str, most: int) -> None:
    """What takes time at the start is importing; seconds would depend on the machine."""
    done = subprocess.run([sys.executable, "-c", COUNT, *command.split()], capture_output=True, text=True, check=True)
    assert int(done.stderr) < most


CALL = """
import sys
import torch, tensornet_attn as ta
layer = ta.compile(ta.load("mhsa", legs={"f": 16}))
layer(torch.randn(2, 3, 16, requires_grad=True)).sum().backward()
print(sorted({"sympy", "torch._dynamo"} & sys.modules.keys()))
"""


def test_a_layer_that_nothing_traces_does_not_import_what_traces() -> None:
    done = subprocess.run([sys.executable, "-c", CALL], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_the_demo_runs_the_layer_that_make_compiles(capsys: pytest.CaptureFixture[str]) -> None:
    main()
    assert "agrees with the reference in float64" in capsys.readouterr().out
    sizes = ",".join(f"{leg}={size}" for leg, size in LEGS.items())
    assert f"DEMO := thsa --legs {sizes}\n" in (Path(__file__).parents[2] / "Makefile").read_text(encoding="utf-8")
    assert ta.cost(ta.load("thsa", legs=LEGS), n=64).macs < 5e7  # of a forward: milliseconds
