"""Grouped experts as emitted code: how it reads, one graph for all lengths, export, and files that stand alone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta

SIZES = {
    "epa": {"f": 12, "h": 3, "e": 16},
    "epa_vkqo": {"f": 12, "h": 3, "e": 16},
    "epa_xl": {"f": 12, "h": 3, "e": 16},
    "sigma_moe": {"f": 12, "e": 16, "l": 5},
}
NAMES = pytest.mark.parametrize("name", SIZES)


def made(name: str, **options: object) -> nn.Module:
    torch.manual_seed(0)
    design = ta.load(name, legs=SIZES[name], settings={"k": 2})
    return ta.compile(design, device_costs="generic", **options).eval()


def lines(source: str) -> list[str]:
    """The lines of `forward` that speak of experts."""
    body = source[source.index("def forward") :].partition("\n\n\n")[0]
    return [line.strip() for line in body.split("\n") if "chosen" in line]


def test_how_it_reads() -> None:
    assert lines(made("epa_vkqo").source) == [
        "Gs, Gs_chosen = top_chosen(Gs_of, Gs_of, 2)  # ... m h 2",
        "Gd, Gd_chosen = top_chosen(Gd_of, Gd_of, 2)  # ... n h 2",
        "Q = expert_sums(x[..., None, None, :], self.Wq, Gd, Gd_chosen)  # ... n h d",
        "K = expert_sums(memory_hidden[..., None, None, :], self.Wk, Gs, Gs_chosen)  # ... m h d",
        "V = expert_sums(memory_hidden[..., None, None, :], self.Wv, Gs, Gs_chosen)  # ... m h d",
        "return expert_sums(o.transpose(-3, -2).unsqueeze(-2), self.Wo, Gd, Gd_chosen, True)  # ... n f",
    ]
    assert lines(made("sigma_moe").source) == [
        "G, G_chosen = top_chosen(G_of, G_of, 2)  # ... n 2",
        "# H.of, H: leg e has the 2 chosen entries only",
        "H_of = expert_rows(x[..., None, :], self.W1, G_chosen)  # ... n e l",
        "return expert_sums(H, self.W2, G, G_chosen)  # ... n f",
    ]


@pytest.mark.parametrize(
    "name", ["epa", *(pytest.param(name, marks=pytest.mark.slow) for name in SIZES if name != "epa")]
)
def test_one_graph_and_no_recompilation(name: str) -> None:
    torch._dynamo.reset()
    module = made(name, dtype=torch.float64)  # in float32, gradients of epa_xl differ by their order of summation
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, n, stance in [
        (2, 6, "default"),
        (3, 7, "default"),
        (4, 9, "fail_on_recompile"),
        (5, 11, "fail_on_recompile"),
    ]:
        x = torch.randn(batch, n, 12, dtype=torch.float64, requires_grad=True)
        with torch.compiler.set_stance(stance):
            found = gradients(compiled, x)
        torch.testing.assert_close(found, gradients(module, x), rtol=1e-9, atol=1e-9)


def gradients(module: nn.Module, x: Tensor) -> list[Tensor]:
    y = module(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]


@NAMES
def test_export_with_dynamic_batch_and_length(name: str) -> None:
    module = made(name)
    dims = {0: torch.export.Dim("batch", min=1, max=64), 1: torch.export.Dim("n", min=2, max=512)}
    program = torch.export.export(_Alone(module), (torch.randn(3, 5, 12),), dynamic_shapes=(dims,))
    for batch, n in ((1, 9), (4, 2)):
        x = torch.randn(batch, n, 12)
        torch.testing.assert_close(program.module()(x), module(x), rtol=1e-5, atol=1e-6)


class _Alone(nn.Module):
    """A module of one argument, because export wants each argument named."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        return self.module(x)


@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")  # torch's own, of its fused attention
@NAMES
def test_vmap_and_functional_call(name: str) -> None:
    module, x = made(name), torch.randn(3, 2, 5, 12)
    found = torch.func.vmap(lambda one: torch.func.functional_call(module, dict(module.named_parameters()), one))(x)
    torch.testing.assert_close(found, module(x), rtol=1e-5, atol=1e-6)


@NAMES
def test_autocast(name: str) -> None:
    module, plain, x = made(name), made(name, backend="reference"), torch.randn(2, 5, 12)
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x)
    y.float().square().sum().backward()
    assert y.dtype == torch.bfloat16
    assert all(weight.grad.dtype == torch.float32 for weight in module.parameters())
    assert y.isfinite().all()
    assert plain(x).shape == y.shape


PROGRAM = """
import importlib.util, sys
sys.path += sys.argv[2:]
import torch
assert importlib.util.find_spec("tensornet_attn") is None
modules = []
for name, case in torch.load(f"{sys.argv[1]}/cases.pt").items():
    spec = importlib.util.spec_from_file_location(name, f"{sys.argv[1]}/{name}.py")
    file = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(file)
    modules.append((getattr(file, case["class"])(dtype=torch.float64), case))
for module, case in modules:  # all files are loaded by now
    module.load_state_dict(case["state"])
    x = case["x"].requires_grad_()
    y = module.eval()(x)
    found = [y, *torch.autograd.grad(y.square().sum(), [x, *module.parameters()])]
    torch.testing.assert_close(found, case["wanted"], rtol=1e-9, atol=1e-10)
print(len(modules))
"""


def test_several_files_stand_alone_in_one_process(tmp_path: Path) -> None:
    cases = {}
    for name in SIZES:
        module, oracle = (made(name, backend=backend, dtype=torch.float64) for backend in ("torch", "reference"))
        oracle.load_state_dict(module.state_dict())
        x = torch.randn(2, 5, 12, dtype=torch.float64, requires_grad=True)
        wanted = [one.detach() for one in gradients(oracle, x)]
        source = ta.emit_source(module.design, backend="torch")
        class_name = source.split("class ")[1].split("(")[0]
        cases[name] = {"class": class_name, "state": module.state_dict(), "x": x.detach(), "wanted": wanted}
        (tmp_path / f"{name}.py").write_text(source)
    torch.save(cases, tmp_path / "cases.pt")
    packages = str(Path(torch.__file__).parents[1])
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, str(tmp_path), packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{len(SIZES)}\n", 0), done.stderr
