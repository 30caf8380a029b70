"""Files on Triton that run alone: in a process without this package, values and gradients of the reference."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import torch

import tensornet_attn as ta
from tensornet_attn.runtime.triton.target import mend_interpreter

F64 = torch.float64
DESIGNS = {  # of each kind of kernels one
    "hard_fish": {"f": 12, "h": 4, "g": 2},
    "linear": {"f": 12, "h": 2},
    "sigma_moe": {"f": 16, "l": 16},
    "epa_vk": {"f": 16, "h": 2},
    "fast_weight1": {"f": 12, "h": 2},
}
PROGRAM = """
import importlib.util, inspect, sys
from typing import Any
sys.path += sys.argv[3:]
import torch
assert importlib.util.find_spec("tensornet_attn") is None
found = {}
for name, case in torch.load(sys.argv[1]).items():
    spec = importlib.util.spec_from_file_location(name, case["path"])
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    (cls,) = [c for c in vars(file).values() if inspect.isclass(c) and issubclass(c, torch.nn.Module)]
    module = cls(dtype=torch.float64).eval()
    module.load_state_dict(case["state"])
    x = case["x"].requires_grad_()
    y = module(x)
    found[name] = [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]
torch.save(found, sys.argv[2])
print("tensornet_attn" in sys.modules)
"""


def test_values_and_gradients(tmp_path: Path) -> None:
    cases, wanted = {}, {}
    for name, legs in DESIGNS.items():
        design, path = ta.load(name, legs=legs), tmp_path / f"{name}.py"
        path.write_text(ta.emit_source(design, backend="triton"))
        module = ta.reference(design, dtype=F64).eval()
        x = 0.3 * torch.randn(2, 19, legs["f"], dtype=F64, generator=torch.Generator().manual_seed(0))
        cases[name] = {"path": str(path), "state": module.state_dict(), "x": x.clone()}
        y = module(x.requires_grad_())
        wanted[name] = [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]
    torch.save(cases, tmp_path / "cases.pt")
    files, packages = [str(tmp_path / "cases.pt"), str(tmp_path / "found.pt")], str(Path(torch.__file__).parents[1])
    program = PROGRAM.replace(
        "found = {}\n", f"{inspect.getsource(mend_interpreter)}\nmend_interpreter()\nfound = {{}}\n", 1
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *files, packages], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
    found = torch.load(tmp_path / "found.pt")
    for name, tensors in wanted.items():
        torch.testing.assert_close(
            found[name], tensors, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )
