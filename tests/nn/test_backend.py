"""Where Triton cannot run: a sentence that says why, and the plan that is used instead."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.errors import InputError
from tests.refusals import refusal

NO_GPU = "there is no GPU, and triton runs on the CPU only if TRITON_INTERPRET=1 is set"


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("tensornet_attn.runtime.triton.target.find_spec", lambda name: True)


@pytest.fixture
def no_cpp(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No C++ kernels in the cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_a_warning_and_the_plan_of_torch(without_gpu: None) -> None:
    with pytest.warns(UserWarning, match="cannot run") as caught:
        module = ta.compile("hard_fish", backend="triton")
    assert [str(one.message) for one in caught] == [
        f"hard_fish: backend 'triton' cannot run: {NO_GPU}. Using 'torch' instead."
    ]
    assert module.plan.backend == "torch"
    assert module.explain().splitlines()[1] == f"  not triton: {NO_GPU}"
    module(torch.zeros(1, 3, 512))


def test_strict(without_gpu: None) -> None:
    assert refusal(ta.compile, "hard_fish", backend="triton", strict=True) == (
        f"hard_fish: strict, but backend 'triton' cannot run: {NO_GPU}."
    )


def test_not_installed(without_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensornet_attn.runtime.triton.target.find_spec", lambda name: None)
    with pytest.warns(UserWarning, match="triton is not installed: 'pip install triton' on Linux"):
        ta.compile("hard_fish", backend="triton")


def test_bfloat16_in_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.warns(UserWarning, match="the interpreter of triton rounds bfloat16 incorrectly"):
        ta.compile("hard_fish", backend="triton", dtype=torch.bfloat16)


def test_auto_without_a_gpu_is_torch(without_gpu: None, no_cpp: None) -> None:
    assert ta.compile("hard_fish").plan.backend == "torch"


@pytest.mark.parametrize(
    ("name", "dtype", "backend", "costs"),
    [
        ("mhsa", torch.bfloat16, "torch", "h200-bfloat16"),  # fused attention is all that there is to do
        ("hard_fish", torch.bfloat16, "triton", "h200-bfloat16"),
        ("band", torch.bfloat16, "triton", "h200-bfloat16"),
        ("linear", torch.bfloat16, "triton", "h200-bfloat16"),
        ("fmm_fast_weight1", torch.float32, "triton", "h200"),
        ("epa", torch.bfloat16, "triton", "h200-bfloat16"),
        ("mlp", torch.float32, "torch", "h200"),
    ],
)
def test_auto_on_a_gpu(
    name: str, dtype: torch.dtype, backend: str, costs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is planned there; the module is made without one."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr("tensornet_attn.runtime.triton.target.find_spec", lambda name: True)
    monkeypatch.setattr("tensornet_attn.runtime.triton.target.on_gpu", lambda device: True)
    plan = ta.compile(name, dtype=dtype).plan
    assert (plan.backend, plan.target.device.name) == (backend, costs)
    if name == "epa":  # experts by Triton, attention of one map as torch has it
        assert {region: plan.backends[region] for region in ("V", "A")} == {"V": "triton", "A": "torch"}
    if name == "hard_fish":  # where torch cannot keep to a target, Triton may
        for limited in ("torch", "auto"):
            with pytest.raises(InputError, match="the smallest predicted peak is"):
                ta.compile("thsa", limited, memory="64MB" if limited == "torch" else "1MB")
        assert ta.compile("thsa", memory="64MB").plan.backend == "triton"
    assert ta.compile(name, dtype=dtype, device_costs="generic").plan.target.device.name == "generic"


def test_auto_where_a_module_is_moved(monkeypatch: pytest.MonkeyPatch, no_cpp: None) -> None:
    """Every move is one of dtype here; what stands on a GPU is said to do so."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a GPU")
    monkeypatch.setattr("tensornet_attn.runtime.triton.target.find_spec", lambda name: True)
    module, fixed = ta.compile("hard_fish"), ta.compile("hard_fish", "torch")
    weights = module.state_dict()
    with monkeypatch.context() as there:
        there.setattr("tensornet_attn.runtime.triton.target.on_gpu", lambda device: True)
        both = torch.nn.Sequential(module, fixed).to(torch.bfloat16)
        assert (module.plan.backend, module.plan.target.device.name) == ("triton", "a100-bfloat16")
        assert "@triton.jit" in module.source
        assert fixed.plan.backend == "torch"
        other = copy.deepcopy(module)
        assert other.plan == module.plan
    both.float()
    assert (module.plan.backend, module.plan.target.device.name) == ("torch", "cpu")
    assert [*module.state_dict()] == [*weights]
    assert pickle.loads(pickle.dumps(other.float())).plan == module.plan
    assert module(torch.zeros(1, 3, 512)).shape == (1, 3, 512)


def test_a_layer_on_a_cpu_has_the_prices_of_a_cpu(no_cpp: None) -> None:
    """Rates of a CPU are of many queries, so decoding keeps generic prices; so do emitted files, everywhere alike."""

    def device(**options: Any) -> str:
        return str(ta.compile("mhsa", **options).plan.target.device.name)

    assert [device(backend=backend) for backend in ("auto", "torch", "inductor")] == ["cpu"] * 3
    assert [device(device="meta"), device(workload="prefill"), device(device_costs="flops")] == ["cpu", "cpu", "flops"]
    assert device(workload="decoding") == "generic"
    with torch.device("meta"):
        assert device() == "cpu"
    assert ta.compiler.plan_for("mhsa").target.device.name == "cpu"
    assert ta.compiler.plan_for("mhsa", "triton").target.device.name == "generic"
    assert ta.emit_source("mamba2") == ta.emit_source("mamba2", device_costs="generic")
    assert ta.compile("mamba2", "torch").source != ta.compile("mamba2", "torch", device_costs="generic").source


def test_steps_of_decoding_are_priced_as_before(no_cpp: None) -> None:
    steps = []
    for device in ("generic", "cpu"):
        layer = ta.compile("alibi", "torch", device_costs=device)
        layer(torch.zeros(1, 1, 512), cache=layer.new_cache())
        (decoder,) = layer._decodes.values()
        steps.append([planned.plan.schedule.to_text() for planned in decoder._one])
    assert steps[0] == steps[1]
