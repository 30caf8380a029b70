"""Emitted files run without this package, with the weights, values and gradients of the reference."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tensornet_attn as ta
from tests.designs.cases import CASES, compiled, inputs_of
from tests.shipped import asked_for

PROGRAM = """
import importlib.util, sys
folder = sys.argv[1]
sys.path += sys.argv[2:]
import torch
assert importlib.util.find_spec("tensornet_attn") is None
for name, case in torch.load(f"{folder}/cases.pt").items():
    scope = {}
    exec(compile(open(f"{folder}/{name}.py").read(), name, "exec"), scope)
    cls = scope[case["class"]]
    torch.manual_seed(11)
    module = cls(dtype=torch.float64)
    case["initial"] = {key: value.clone() for key, value in module.state_dict().items()}
    module.load_state_dict(case["state"])
    module.eval()
    xs = [x.requires_grad_() for x in case["inputs"]]
    y = module(*xs)
    y.square().sum().backward()
    case["output"], case["gradients"] = y.detach(), {key: p.grad for key, p in module.named_parameters()}
    case["input gradients"] = [x.grad for x in xs]
    case["more"] = module(*(x.detach()[None, None] for x in xs)).detach()
    case["one"] = module(*(x.detach()[0] for x in xs)).detach()
    torch.save(case, f"{folder}/{name}.pt")
print("tensornet_attn" in sys.modules)
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> dict[str, dict]:
    """What a process without the package computes with the emitted files."""
    folder, cases = tmp_path_factory.mktemp("standalone"), {}
    for name in (name for name in CASES if name in asked_for(request)):
        module = compiled(name, "torch")
        source = ta.emit_source(module.design, backend="torch")
        (folder / f"{name}.py").write_text(source)
        class_name = source.split("class ")[1].split("(")[0]
        cases[name] = {"class": class_name, "state": module.state_dict(), "inputs": inputs_of(name)}
    torch.save(cases, folder / "cases.pt")
    packages = str(Path(torch.__file__).parents[1])  # on sys.path, but no .pth file in it is read
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PROGRAM, str(folder), packages], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
    return {name: torch.load(folder / f"{name}.pt") for name in cases}


@pytest.mark.rotated
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients(name: str, results: dict[str, dict]) -> None:
    found, oracle, xs = results[name], compiled(name, "reference"), [x.requires_grad_() for x in inputs_of(name)]
    y = oracle(*xs)
    oracle.zero_grad()
    y.square().sum().backward()
    wanted = {key: p.grad for key, p in oracle.named_parameters()}
    close = {"rtol": 1e-9, "atol": 1e-10}
    torch.testing.assert_close(found["output"], y.detach(), **close)
    torch.testing.assert_close(found["gradients"], wanted, **close)
    torch.testing.assert_close(found["input gradients"], [x.grad for x in xs], **close)
    torch.testing.assert_close(found["more"], y.detach()[None, None], **close)
    torch.testing.assert_close(found["one"], y.detach()[0], **close)


@pytest.mark.rotated
@pytest.mark.parametrize("name", CASES)
def test_one_seed_gives_the_same_weights(name: str, results: dict[str, dict]) -> None:
    case = CASES[name]
    torch.manual_seed(11)
    design = ta.load(name, legs=case.legs, settings=case.settings)
    state = ta.compile(design, "torch", dtype=torch.float64).state_dict()
    assert results[name]["initial"].keys() == state.keys()
    for key, value in state.items():
        assert torch.equal(results[name]["initial"][key], value), key
