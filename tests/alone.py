"""Runs files of modules in a process without this package: first weights, values and gradients of calls."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Alone = tuple[dict[str, Tensor], list[list[Tensor]]]

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
    known = inspect.signature(cls).parameters
    torch.manual_seed(11)
    module = cls(**{leg: size for leg, size in case["legs"].items() if leg in known}, dtype=torch.float64).eval()
    first = {key: value.clone() for key, value in module.state_dict().items()}
    module.load_state_dict(case["state"])
    found[name] = first, (results := [])
    for inputs, masks in case["calls"]:
        xs = [x.requires_grad_() for x in inputs]
        y = module(*xs, **masks)
        learned = [*xs, *(p for p in module.parameters() if p.requires_grad)]
        results.append([y.detach(), *torch.autograd.grad(y.square().sum(), learned, allow_unused=True)])
torch.save(found, sys.argv[2])
print("tensornet_attn" in sys.modules)
"""


def results_alone(cases: dict[str, dict[str, Any]], folder: Path, first: str = "") -> dict[str, Alone]:
    """Of each case: the weights of a module made at seed 11, and the output and gradients of each call.

    A case has `path`, `legs`, `state` and `calls`; `first` runs before.
    """
    torch.save(cases, folder / "cases.pt")
    files = [str(folder / "cases.pt"), str(folder / "found.pt")]
    packages = str(Path(torch.__file__).parents[1])  # on sys.path, but no .pth file in it is read
    program = PROGRAM.replace("found = {}\n", f"{first}\nfound = {{}}\n", 1)
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", program, *files, packages], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr
    return torch.load(folder / "found.pt")
