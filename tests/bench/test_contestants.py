"""Contestants beyond the hand-written ones: the plan with most attention, the dense layer, the delta rule of others."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.bench import contestants
from tensornet_attn.bench.baselines import layer_of
from tensornet_attn.bench.baselines.kernels import FastWeights, delta_rule, in_chunks, shares
from tensornet_attn.bench.bench import Bench, Options
from tensornet_attn.bench.case import FORWARD, PASSES, TRAINING, Case
from tensornet_attn.bench.contestants import SkippedError, contestant
from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.rewrite.fused import FusedAttention
from tensornet_attn.runtime.triton.target import interpreting
from tests.designs.cases import same

QUICK = {"repeats": 3, "seconds": 0.0}
GPU = DEVICES["h200-bfloat16"]


def reason(who: str, case: Case, kind: str = TRAINING) -> str:
    with pytest.raises(SkippedError) as refusal:
        contestant(who, case, kind, 1e9)
    return str(refusal.value)


def test_the_rewrite_on_attention_is_measured_where_the_plan_is_another() -> None:
    case = Case(ta.load("hard_fish", legs={"f": 512, "h": 8, "g": 2}), 12)
    found = contestant("fused", case, TRAINING, 1e9)
    plain = contestant("torch", case, TRAINING, 1e9)
    has = [
        any(isinstance(step.form, FusedAttention) for step in one.module.plan.schedule.steps) for one in (found, plain)
    ]
    assert has == [True, False]
    for result in Bench(Options(("fused",), passes=PASSES, **QUICK)).results([case]):
        assert {entry.status for entry in result.entries} == {"measured"}


def test_a_rewrite_that_is_no_other_is_left_out() -> None:
    assert reason("fused", Case(ta.load("mhsa", legs={"f": 8, "h": 2}), 6)) == "it is the same as 'torch'."
    wanted = "no rewrite of 'talking_heads' at n = 6 allows fused attention."
    assert reason("fused", Case(ta.load("talking_heads", legs={"f": 64}), 6)) == wanted


@pytest.mark.parametrize(("name", "n"), [("hard_fish", 4096), ("mgk", 4096)])
def test_planned_for_a_gpu_torch_is_the_rewrite_on_attention(name: str, n: int) -> None:
    from tensornet_attn.bench.targets import GPU_TARGETS

    (target,) = (target for target in GPU_TARGETS if target.design == name)
    case = Case(ta.load(name, legs=target.legs), n, 4, costs=GPU)
    plan = ta.compile(case.design, "torch", **case.wanted(TRAINING)).plan
    assert any(isinstance(step.form, FusedAttention) for step in plan.schedule.steps)


def test_the_dense_layer_has_as_many_parameters() -> None:
    case = Case(ta.load("epa", legs={"f": 128, "h": 2, "e": 4, "d": 32}), 6)
    found = contestant("dense", case, FORWARD, 1e9)
    assert found.case.design.legs["d"] == 24
    assert found.note == "mhsa of f 128, h 8, d 24: 98,304 parameters, here 83,968"
    assert reason("dense", Case(ta.load("mlp", legs={"f": 8}), 6)) == (
        "'mlp' lacks a key leg or a leg 'f', which a dense layer needs."
    )


def test_kernels_of_triton_need_a_gpu() -> None:
    case = Case(ta.load("mhsa", legs={"f": 8, "h": 2}), 6)
    if not (torch.cuda.is_available() or interpreting()):
        assert reason("triton", case) == (
            "there is no GPU, and triton runs on the CPU only if TRITON_INTERPRET=1 is set."
        )


def test_the_delta_rule_of_others_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tensornet_attn.bench.contestants.find_spec", lambda name: None)
    case = Case(ta.load("fmm_fast_weight1", legs={"f": 8, "h": 2}), 6)
    assert reason("fla", Case(ta.load("linear"), 6)) == (
        "'linear' has no delta rule that flash-linear-attention computes."
    )
    assert reason("fla", case) == "flash-linear-attention is not installed: pip install flash-linear-attention."
    monkeypatch.setattr(contestants, "find_spec", lambda name: True)
    assert reason("fla", case) == ("the delta rule of flash-linear-attention needs a GPU and bfloat16 or float16.")


def steps(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, scale: float) -> tuple[Tensor, None]:
    """What the documentation of chunk_delta_rule says it computes: positions before heads, rates [b n h]."""
    S, reads = torch.zeros(*q.shape[:1], *q.shape[2:], v.shape[-1], dtype=q.dtype), []
    for i in range(q.shape[1]):
        old = torch.einsum("bhd,bhde->bhe", k[:, i], S)
        S = S + torch.einsum("bhd,bhe->bhde", k[:, i], beta[:, i, :, None] * (v[:, i] - old))
        reads.append(torch.einsum("bhd,bhde->bhe", scale * q[:, i], S))
    return torch.stack(reads, 1), None


def test_the_delta_rule_of_others_stands_in_the_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ModuleType("fla.ops.delta_rule")
    given.chunk_delta_rule = steps  # type: ignore[attr-defined]
    for name, module in (("fla", ModuleType("fla")), ("fla.ops", ModuleType("fla.ops")), ("fla.ops.delta_rule", given)):
        monkeypatch.setitem(sys.modules, name, module)
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 7, 5, generator=generator, dtype=torch.float64).exp() for _ in range(3))
    rate = torch.rand(2, 3, 7, 1, generator=generator, dtype=torch.float64)
    q, k = shares(q), shares(k)
    same(in_chunks(q, k, v, rate), delta_rule(q, k, v, rate), "reads")
    case = Case(ta.load("fmm_fast_weight1", legs={"f": 12, "h": 3}), 7, 2, dtype="float64")
    layer = case.loaded(layer_of(case.design.name, case.sizes, True))
    assert isinstance(layer, FastWeights)
    (x,) = case.inputs()
    before = layer(x)
    layer.delta = in_chunks
    same(layer(x), before, "layer")
