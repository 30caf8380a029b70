"""The choice of `auto` between torch and cached C++ kernels: by predicted time, unless torch misses the target."""

from __future__ import annotations

import re
from typing import NoReturn

import pytest

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.cost.target import target_from
from tensornet_attn.errors import InputError
from tensornet_attn.graph import build
from tensornet_attn.plan import auto
from tensornet_attn.plan.auto import Host, beside_cpp, faster_on_cpu, planned
from tensornet_attn.plan.plan import Plan

ON_CPU = target_from(device_costs="cpu")
KERNELS = "cpp: its kernels are in the cache, but would"


def both(name: str) -> tuple[Plan, Plan]:
    """Of C++ kernels, and of torch."""
    graph = build(ta.load(name))
    return plan_of(graph, "cpp", ON_CPU), plan_of(graph, "torch", ON_CPU)


@pytest.mark.parametrize(
    ("seconds", "backend", "said"),
    [
        (0.5, "cpp", "torch: it would take 1 second instead of 500 milliseconds"),
        (
            1.1,
            "cpp",
            "torch: it would take 1 second instead of 1.1 seconds: kernels that are in the cache win in doubt",
        ),
        (2.0, "torch", f"{KERNELS} take 2 seconds instead of 1 second"),
    ],
)
def test_kernels_are_taken_unless_they_clearly_take_longer(
    seconds: float, backend: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpp, torch = both("hard_fish")
    monkeypatch.setattr(auto, "_measured", {cpp: seconds, torch: 1.0}.get)
    found = faster_on_cpu(cpp, lambda: torch)
    assert found.backend == backend
    assert found.explain().splitlines()[1] == f"  not {said}"


def none(*_: object) -> NoReturn:
    raise InputError("no plan fits")


def test_kernels_are_taken_where_the_plan_of_torch_misses_its_target() -> None:
    cpp = plan_of(build(ta.load("hard_fish")), "cpp")
    assert faster_on_cpu(cpp, none) is cpp


@pytest.mark.parametrize(
    ("seconds", "command"), [(0.5, "; 'tensornet-attn warm hard_fish' and these options compile them"), (2.0, "")]
)
def test_kernels_that_are_not_compiled_are_named_with_the_command(
    seconds: float, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpp, torch = both("hard_fish")
    monkeypatch.setattr(auto, "_measured", {cpp: seconds, torch: 1.0}.get)
    figures = {0.5: "500 milliseconds instead of 1 second", 2.0: "2 seconds instead of 1 second"}[seconds]
    told = beside_cpp(torch, lambda: cpp, "hard_fish").explain().splitlines()
    assert told[1] == f"  not cpp: its kernels are not compiled; they would take {figures}{command}"
    assert beside_cpp(torch, lambda: torch, "hard_fish") is torch  # no region has kernels


@pytest.mark.parametrize("device", ["generic", "cpu"])
@pytest.mark.parametrize("name", ["hard_fish", "thsa", "alibi", "fox", "mgk", "skip_left", "talking_heads"])
def test_a_listing_has_the_figures_of_one_device_and_a_reason_for_each_dearer_choice(name: str, device: str) -> None:
    told = ta.explain(name, device_costs=device)
    assert ("at the rates of cpu" in told) <= (device == "generic")
    assert f" on {device}, " in told.splitlines()[0]
    for figures in re.findall(r"predicted: (.*)$", told, re.MULTILINE):
        pair = re.fullmatch(r"(.+) (\w*seconds?) instead of (.+) (\w*seconds?)", figures)
        assert pair is None or pair[2] != pair[4] or float(pair[1]) <= float(pair[3])


def test_kernels_win_in_doubt_where_a_backend_asks_for_them() -> None:
    """Prices of a CPU overestimate kernels that share a product among 64 maps: SDPA took 12 times as long."""
    cpp = plan_of(build(ta.load("skip_left")), "cpp", ON_CPU)
    assert cpp.backends["y.p1"] == "cpp"


def test_linear_attention_takes_less_time_in_cpp() -> None:
    cpp, torch = both("linear")
    found = faster_on_cpu(cpp, lambda: torch)
    assert "cpp" in found.backends.values()
    times = re.search(r"not torch: it would take (.*) milliseconds instead of (.*) milliseconds", found.explain())
    assert times is not None
    assert float(times[1]) > 1.05 * float(times[2])


def test_a_plan_of_kernels_says_why_it_does_not_fuse() -> None:
    assert "not fused attention: the scores are a product of 3 tensors" in both("talking_heads")[0].explain()


@pytest.mark.parametrize(("backend", "reason"), [("triton", "no triton"), ("cpp", "it computes on a CPU")])
@pytest.mark.filterwarnings("ignore:hard_fish.* cannot run:UserWarning")
def test_a_backend_that_a_host_cannot_run_is_torch_with_the_reason(backend: str, reason: str) -> None:
    host = Host(none, None, none, "", True, lambda: ("no triton",))  # asked for no C++
    plan = planned(build(ta.load("hard_fish")), backend, ON_CPU, host)
    assert plan.explain().splitlines()[1] == f"  not {backend}: {reason}"
