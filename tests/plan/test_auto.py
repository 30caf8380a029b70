"""The choice of `auto` between torch and cached C++ kernels: by predicted time, unless torch misses the target."""

from __future__ import annotations

import re
from typing import NoReturn

import pytest

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.plan import auto
from tensornet_attn.plan.auto import faster_on_cpu

KERNELS = "cpp: its kernels are in the cache, but would"


@pytest.mark.parametrize(
    ("seconds", "backend", "said"),
    [
        (0.5, "cpp", "torch: it would take 1 second instead of 500 milliseconds"),
        (1.1, "cpp", "torch: it would take 1 second instead of 1.1 seconds"),
        (2.0, "torch", f"{KERNELS} take 2 seconds instead of 1 second"),
    ],
)
def test_kernels_are_taken_unless_they_clearly_take_longer(
    seconds: float, backend: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = build(ta.load("hard_fish"))
    cpp, torch = (plan_of(graph, backend) for backend in ("cpp", "torch"))
    times = {"cpp": seconds, "torch": 1.0}
    monkeypatch.setattr(auto, "_measured", lambda plan: times[plan.backend])
    found = faster_on_cpu(cpp, lambda: torch)
    assert found.backend == backend
    assert found.explain().splitlines()[1] == f"  not {said}"


def test_kernels_are_taken_where_the_plan_of_torch_misses_its_target() -> None:
    def none() -> NoReturn:
        raise InputError("no plan fits")

    cpp = plan_of(build(ta.load("hard_fish")), "cpp")
    assert faster_on_cpu(cpp, none) is cpp


def test_linear_attention_takes_less_time_in_cpp() -> None:
    graph = build(ta.load("linear"))
    cpp, torch = (plan_of(graph, backend) for backend in ("cpp", "torch"))
    found = faster_on_cpu(cpp, lambda: torch)
    assert "cpp" in found.backends.values()
    times = re.search(r"not torch: it would take (.*) milliseconds instead of (.*) milliseconds", found.explain())
    assert times is not None
    assert float(times[1]) > 1.05 * float(times[2])
