"""Files on Triton that run alone: in a process without this package, values and gradients of the reference."""

from __future__ import annotations

import inspect
from pathlib import Path

import torch

import tensornet_attn as ta
from tensornet_attn.runtime.triton.target import mend_interpreter
from tests.alone import results_alone

F64 = torch.float64
DESIGNS = {  # of each kind of kernels one
    "hard_fish": {"f": 12, "h": 4, "g": 2},
    "linear": {"f": 12, "h": 2},
    "sigma_moe": {"f": 16, "l": 16},
    "epa_vk": {"f": 16, "h": 2},
    "fast_weight1": {"f": 12, "h": 2},
}


def test_values_and_gradients(tmp_path: Path) -> None:
    cases, wanted = {}, {}
    for name, legs in DESIGNS.items():
        design, path = ta.load(name, legs=legs), tmp_path / f"{name}.py"
        path.write_text(ta.emit_source(design, backend="triton"))
        module = ta.reference(design, dtype=F64).eval()
        x = 0.3 * torch.randn(2, 19, legs["f"], dtype=F64, generator=torch.Generator().manual_seed(0))
        cases[name] = {"path": str(path), "legs": {}, "state": module.state_dict(), "calls": [([x.clone()], {})]}
        y = module(x.requires_grad_())
        wanted[name] = [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]
    found = results_alone(cases, tmp_path, f"{inspect.getsource(mend_interpreter)}\nmend_interpreter()")
    for name, tensors in wanted.items():
        torch.testing.assert_close(
            found[name][1][0], tensors, rtol=1e-9, atol=1e-10, msg=lambda text, name=name: f"{name}: {text}"
        )
