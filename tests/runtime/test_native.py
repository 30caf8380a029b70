"""C++ kernels in modules: results, the calls that they take, derivatives, torch.compile, `auto` and `warm`."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import tensornet_attn as ta
from tensornet_attn.bench.case import TRAINING, Case
from tensornet_attn.bench.regret import candidates_of
from tensornet_attn.cli.app import app
from tensornet_attn.errors import InputError
from tensornet_attn.runtime import blockwise_cpp, cpp, native
from tests.agreement import modules, same_outcome
from tests.refusals import refusal
from tests.relations.found import FOUND
from tests.runtime.test_saved_products import NEAR, WIDE

F64 = torch.float64
pytestmark = pytest.mark.skipif(bool(cpp.reason_against_cpp()), reason="there is no C++ compiler")


def layer(backend: str = "cpp", dtype: torch.dtype = F64, **options: Any) -> nn.Module:
    """Compiled in the cache of the whole run: once for each dtype."""
    return ta.compile(WIDE, backend, dtype=dtype, **options)


def wide(backend: str = "cpp", dtype: torch.dtype = torch.float32) -> nn.Module:
    """With kernels in float32, which docs/cpp.md compiles too."""
    return ta.compile("hard_fish", backend, dtype=dtype)


def inputs(*batch: int, n: int = 70, m: int | None = None, width: int = 6) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(*batch, size, width, generator=draw, dtype=F64) for size in ([n] if m is None else [n, m])]


@pytest.fixture
def calls() -> Iterator[list[str]]:
    """The names of regions whose C++ runs in this thread; another one compares new libraries with the reference."""
    found: list[str] = []
    run, thread = blockwise_cpp.cpp_forward, threading.get_ident()

    def counted(name: str, *given: Any) -> Any:
        found.extend([name] * (threading.get_ident() == thread))
        return run(name, *given)

    with patch.object(blockwise_cpp, "cpp_forward", counted):
        yield found


def pair() -> tuple[nn.Module, nn.Module]:
    made, plain = layer(), layer("reference")
    plain.load_state_dict(made.state_dict())
    return made, plain


def agree(made: nn.Module, plain: nn.Module, given: list[Tensor], **options: Any) -> None:
    same_outcome(made, plain, given, 1e-10, 1e-12, **options)


def masks(*batch: int, n: int, m: int) -> dict[str, Any]:
    draw = torch.Generator().manual_seed(1)
    keep = torch.rand(*batch, n, m, generator=draw) < 0.6
    keep[..., 3, :] = False  # a query that sees nothing
    return {"mask": keep, "key_mask": torch.rand(*batch, m, generator=draw) < 0.7}


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("n", [1, 33, 150])
def test_results_are_those_of_the_reference(calls: list[str], batch: tuple[int, ...], n: int) -> None:
    made, plain = pair()
    agree(made, plain, inputs(*batch, n=n))
    assert len(calls) == 1


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
@pytest.mark.parametrize("form", ["mask", "key_mask", "both", "float", "no batch"])
def test_masks_of_the_call(calls: list[str], batch: tuple[int, ...], form: str) -> None:
    (made, plain), given = pair(), masks(*batch, n=70, m=70)
    given = {name: x for name, x in given.items() if form in (name, "both")}
    if form in ("float", "no batch"):
        keep = masks(*(batch if form == "float" else ()), n=70, m=70)["mask"]
        given = {"mask": torch.where(keep, torch.linspace(-1, 1, 70, dtype=F64), -torch.inf)}
    agree(made, plain, inputs(*batch), **given)
    assert len(calls) == 1


@pytest.mark.parametrize("threads", [1, 3])
def test_workers_share_the_gradients(threads: int) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        agree(*pair(), inputs(1, n=200))
    finally:
        torch.set_num_threads(before)


def test_calls_that_the_functions_of_blocks_compute(calls: list[str]) -> None:
    made, (x,) = layer(), inputs(2)
    with torch.autocast("cpu", torch.bfloat16):
        made(x)
    bias = torch.zeros(70, 70, dtype=F64, requires_grad=True)
    torch.autograd.grad(made(x, mask=bias).sum(), bias)
    torch.testing.assert_close(torch.func.vmap(made)(x[None])[0], layer_like(made)(x))
    assert made(x[:, :0]).shape == (2, 0, 2, 6)
    assert not calls


def layer_like(made: nn.Module) -> nn.Module:
    plain = layer("reference")
    plain.load_state_dict(made.state_dict())
    return plain


def test_the_backward_draws_what_the_forward_drew(calls: list[str]) -> None:
    """Along a random direction, differences of the forward with the same seed are the gradient."""
    made, x = ta.compile(NEAR, "cpp", causal=True, dtype=F64, linear_memory=True), inputs(2, n=40)[0]
    leaves = [x.requires_grad_(), *made.parameters()]
    weight = torch.randn(2, 40, 2, 6, generator=torch.Generator().manual_seed(2), dtype=F64)

    def value(step: float = 0.0) -> Tensor:
        torch.manual_seed(7)
        with torch.no_grad():
            for leaf, way in zip(leaves, ways, strict=True):
                leaf.add_(way, alpha=step)
        return (made(x) * weight).sum()

    ways = [torch.randn(leaf.shape, generator=torch.Generator().manual_seed(3), dtype=F64) for leaf in leaves]
    gradients = torch.autograd.grad(value(), leaves)
    wanted = sum(float((gradient * way).sum()) for gradient, way in zip(gradients, ways, strict=True))
    ahead, behind = value(1e-6).item(), value(-2e-6).item()
    assert (ahead - behind) / 2e-6 == pytest.approx(wanted, rel=1e-5)
    torch.manual_seed(8)
    assert (made(x) * weight).sum().item() != ahead
    with pytest.raises(RuntimeError, match="dropout and noise, so their gradients have no derivatives"):
        torch.autograd.grad(value(), x, create_graph=True)
    plain = ta.reference(NEAR, causal=True, dtype=F64)
    plain.load_state_dict(made.state_dict())
    agree(made.eval(), plain.eval(), [x])
    assert calls


def test_second_derivatives(calls: list[str]) -> None:
    (x,) = inputs(n=20)
    x.requires_grad_()
    found = []
    for module in pair():
        (first,) = torch.autograd.grad(module(x).pow(2).sum(), x, create_graph=True)
        found.append(torch.autograd.grad(first.pow(2).sum(), [x, *module.parameters()]))
    for got, want in zip(*found, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)
    assert len(calls) == 1


def test_torch_compile_sees_one_operation() -> None:
    made, plain = pair()
    agree(
        torch.compile(made, fullgraph=True, backend="aot_eager", dynamic=True), plain, inputs(2), **masks(2, n=70, m=70)
    )


def test_float32(calls: list[str]) -> None:
    made, (x,) = wide(), inputs(2, width=512)
    plain = wide("reference", F64)
    plain.load_state_dict(made.state_dict())
    torch.testing.assert_close(made(x.float()).double(), plain(x), rtol=1e-4, atol=1e-5)
    assert len(calls) == 1
    text = native.CPP_REGIONS[calls[0]].text
    assert cpp.cpp_library(text, "float32") is cpp.cpp_library(text, "float32") is not None


def test_small_calls_do_not_ask_what_memory_is_free(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading it takes longer than the kernel; only calls that save products ask."""
    made, (x,) = layer(linear_memory=True), inputs(2)
    monkeypatch.setattr(native, "free_memory", lambda: pytest.fail("the system is asked"))
    made(x.requires_grad_()).sum().backward()
    assert len(calls) == 1


def test_auto_takes_what_warm_has_compiled(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    design, before = ta.load("hard_fish"), cpp.cpp_folder()
    ta.warm(design)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    early = ta.compile(design)
    assert early.plan.backend == "torch"
    assert "backend torch" in ta.explain(design)
    (tmp_path / "tensornet-attn").mkdir()
    (tmp_path / "tensornet-attn" / "cpp").symlink_to(before)
    assert ta.compile(design).plan.backend == "cpp"
    assert "C++ kernels" in ta.explain(design)
    assert early.plan.backend == "torch"
    assert ta.compile("sigma_moe").plan.backend == "torch"
    message = refusal(ta.compile, design, backend="torch", n=4096, memory=4096)
    assert refusal(ta.compile, design, n=4096, memory=4096) == message


def test_auto_takes_cached_kernels_unless_they_are_predicted_to_be_slower() -> None:
    ta.warm("hard_fish")
    for workload in ("training", "prefill"):
        said = ta.explain("hard_fish", n=1024, workload=workload)
        assert said.startswith(f"hard_fish: backend cpp, for {workload}")
        assert re.search(r"\n  not torch: it would take [\d.]+ \w+ instead of [\d.]+ \w+\n", said)
        assert ta.compile("hard_fish", n=1024, workload=workload).plan.backend == "cpp"
    (way, plan), *others = candidates_of(Case(ta.load("hard_fish"), 1024), TRAINING)
    assert (way, plan.backend) == ("C++ kernels", "cpp")
    assert {plan.backend for _, plan in others} == {"torch"}


def test_warm_says_what_it_made() -> None:
    done = CliRunner().invoke(app, ["warm", "hard_fish"])
    assert done.exit_code == 0, done.output
    assert f"hard_fish: {cpp.cpp_folder()}" in done.output
    assert "torch computes all of it" in CliRunner().invoke(app, ["warm", "sigma_moe"]).output
    with pytest.raises(InputError, match="dtype 'int8'"):
        ta.warm("hard_fish", dtype="int8")


def test_warm_takes_the_options_of_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, object] = {}
    monkeypatch.setattr("tensornet_attn.compiler.warm", lambda *_, **wanted: asked.update(wanted) or [])
    options = ["--workload", "decoding", "--memory", "2GiB", "--linear-memory", "--batch", "3"]
    assert CliRunner().invoke(app, ["warm", "mhsa", *options]).exit_code == 0
    sizes = {"n": None, "m": None, "batch": 3}
    assert asked == {"workload": "decoding", "memory": "2GiB", "linear_memory": True, **sizes}


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpp, "cpp_compiler", lambda: None)
    with pytest.warns(UserWarning, match="backend 'cpp' cannot run: there is no C"):
        made = layer()
    assert made.plan.backend == "torch"
    assert "not cpp: there is no C++ compiler" in made.explain()
    assert "not cpp: there is no C++ compiler" in ta.explain("hard_fish", "cpp")
    with pytest.raises(InputError, match="strict, but backend 'cpp'"):
        layer(strict=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32(calls: list[str], dtype: torch.dtype) -> None:
    made, (x,) = wide(dtype=dtype), inputs(2, width=512)
    plain = wide("reference", F64)
    plain.load_state_dict(made.state_dict())
    y = made(x.to(dtype).requires_grad_())
    torch.testing.assert_close(y.double(), plain(x), rtol=0.1, atol=0.05)
    assert y.dtype == dtype
    assert torch.autograd.grad(y.sum(), made.Wk)[0].dtype == dtype
    assert len(calls) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_beside_decays_is_computed_in_float32(calls: list[str], dtype: torch.dtype) -> None:
    """The decays come first and are in float32 already."""
    gated = next(design for design in FOUND if design["name"] == "gated_relu")
    gated_layer, oracle, (x,) = (
        ta.compile(gated, "cpp", dtype=dtype),
        ta.reference(gated, dtype=F64),
        inputs(2, width=4),
    )
    oracle.load_state_dict(gated_layer.state_dict())
    y = gated_layer(x.to(dtype).requires_grad_())
    torch.testing.assert_close(y.double(), oracle(x.to(dtype).double()), rtol=0.1, atol=0.05)
    assert y.dtype == dtype
    assert torch.autograd.grad(y.sum(), gated_layer.W)[0].dtype == dtype
    assert calls


def test_subnormal_numbers_of_the_process_stay(calls: list[str]) -> None:
    made, x = layer(), torch.tensor([1e-310], dtype=F64)
    made(inputs()[0])
    assert calls
    assert (x * 1).item() == 1e-310


@pytest.mark.slow
def test_a_tensor_that_is_key_and_value() -> None:
    """With absorbed weights: the gradient of x has a part of each."""
    design = ta.load("cope", legs={"f": 12, "h": 3, "p": 3})
    plain, made = modules(design, "cpp", workload="decoding")
    agree(made, plain, inputs(2, n=9, width=12))
