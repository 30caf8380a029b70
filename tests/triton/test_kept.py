"""Launches of regions that are kept: what a later call of the same kind compiles, binds and launches. Nothing runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.graph import build
from tensornet_attn.runtime.triton import configure
from tensornet_attn.runtime.triton.kernels.region_launch import launch_of
from tensornet_attn.runtime.triton.kernels.regions import tiled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="triton is for Linux alone")


class Launches:
    """The launches so far: names of kernels with their addresses, and how many of them Triton bound."""

    def __init__(self) -> None:
        self.made: list[tuple[str, tuple[Any, ...]]] = []
        self.bound = 0


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[Launches]:
    """A GPU that is absent: kernels are compiled for it, and a launch is written down."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import CompiledKernel
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    found, run = Launches(), JITFunction.run

    def bound(self: Any, *args: Any, **options: Any) -> Any:
        found.bound += 1
        return run(self, *args, **options)

    def handles(self: Any) -> None:
        self.module = self.function = 1
        self._run = lambda *args: found.made.append((self.name, args[9:]))

    absent = SimpleNamespace(
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        get_current_device=lambda: -1000,
        get_current_stream=lambda device: 0,
    )
    monkeypatch.setattr(JITFunction, "run", bound)
    monkeypatch.setattr(CompiledKernel, "_init_handles", handles)
    monkeypatch.setattr(driver, "_active", absent)
    configure.CONFIGS.clear()
    yield found
    configure.CONFIGS.clear()


@pytest.fixture(scope="module")
def region() -> str:
    """The region of a softmax attention of two heads."""
    from tensornet_attn.compiler import _realise
    from tensornet_attn.emit.load import load
    from tensornet_attn.nn.module import CompiledDesign

    design = ta.load("mhsa", legs={"f": 32, "h": 2})
    plan = plan_of(build(design), "triton")
    module = CompiledDesign(design, plan, _realise, None, torch.float16)
    return load(module.source, plan.graph.name).y_1_tiles  # type: ignore[no-any-return]


def heads(n: int = 64, more: int = 0) -> Tensor:
    """[1, heads, n, d] as a view of a product [1, n, heads, d]; `more`: elements before it."""
    x = torch.zeros(more + n * 32, dtype=torch.float16)[more:].view(1, n, 2, 16)
    return x.transpose(1, 2)


def attention(region: str, operands: list[Tensor]) -> Tensor:
    return tiled(region, operands, 64, 64, (1,), None, None, [0.25])


def test_only_the_first_call_binds(launches: Launches, region: str) -> None:
    for i in range(3):
        operands = [heads() for _ in range(3)]
        out = attention(region, operands)
        assert launches.bound == 1
        name, arguments = launches.made[i]
        assert name == "y_1_tiles_forward"
        addresses = [x if isinstance(x, int) else x.data_ptr() for x in arguments[:6]]
        assert addresses == [x.data_ptr() for x in (*operands, operands[0], operands[0], out)]


def test_gradients_of_later_calls(launches: Launches, region: str) -> None:
    """Four kernels for forward and backward, which Triton binds once each, and gradients in the order of operands."""
    for i in range(2):
        operands = [heads().requires_grad_() for _ in range(3)]
        attention(region, operands).backward(heads())
        assert launches.bound == 4
        names = [name.removeprefix("y_1_tiles_") for name, _ in launches.made[4 * i :]]
        assert names == ["forward", "row_products", "rows", "keys"]
        assert [x.grad.stride() for x in operands if x.grad is not None] == [x.stride() for x in operands]


def test_other_addresses_take_another_kernel(launches: Launches, region: str) -> None:
    """Triton compiles kernels for addresses that are no multiples of 16 bytes; such a call binds."""
    attention(region, [heads() for _ in range(3)])
    attention(region, [heads(more=1) for _ in range(3)])
    assert launches.bound == 2
    attention(region, [heads() for _ in range(3)])
    attention(region, [heads(more=1) for _ in range(3)])
    assert launches.bound == 3


def test_other_strides_are_another_call(launches: Launches, region: str) -> None:
    attention(region, [heads() for _ in range(3)])
    attention(region, [heads().contiguous() for _ in range(3)])
    assert launches.bound == 2
    first, second = (arguments for _, arguments in launches.made)
    assert first[7] != second[7]  # the strides of Q


def test_a_tuned_configuration_is_not_hidden(launches: Launches, region: str) -> None:
    call = (None, None, None, region, [True] * 3, 64, 64, [1], [0.25], False, None)
    operands = [heads() for _ in range(3)]
    attention(region, operands)
    before = launch_of(operands, *call).config("forward")
    (key,) = (key for key in configure.ASKED if key.startswith(f"{region}_forward "))
    other = next(one for one in configure.ASKED[key] if one != before)
    try:
        configure.choose({key: other})
        attention(region, operands)
        assert launch_of(operands, *call).config("forward") == other
        assert launches.bound == 2
    finally:
        configure.CHOICES.clear()


def test_hooks_of_a_kernel_run(launches: Launches, region: str) -> None:
    from tensornet_attn.runtime.triton.kernels.region_launch import REGIONS

    called = []
    kernel = REGIONS[region].kernels["forward"]
    attention(region, [heads() for _ in range(3)])
    kernel.add_pre_run_hook(lambda *args, **options: called.append(1))
    try:
        attention(region, [heads() for _ in range(3)])
        assert called == [1]
    finally:
        kernel.pre_run_hooks.clear()


def test_what_is_kept_is_bounded(launches: Launches, region: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensornet_attn.runtime.triton.kernels.kept.MOST_KEPT", 4)
    for n in (64, 128, 192, 256):
        tiled(region, [heads(n) for _ in range(3)], n, n, (1,), None, None, [0.25])
        assert len(configure.CONFIGS) <= 5
