"""Our own contestants: a design compiled on one of the backends, and the plan with most calls of attention."""

from __future__ import annotations

from collections.abc import Callable

from torch import nn

from tensornet_attn import compiler
from tensornet_attn.bench.case import FORWARD, Case
from tensornet_attn.bench.contestant import Contestant, SkippedError, need_compiler, need_kernels, within
from tensornet_attn.bench.guard import pair_bytes
from tensornet_attn.cost.devices import Device
from tensornet_attn.plan.model import Plan
from tensornet_attn.plan.target import target_from

OURS = ("auto", "torch", "inductor", "triton")
ALMOST_FREE = Device("almost free arithmetic", rate=10**18, bandwidth=10**9)


def ours(backend: str) -> Callable[[Case, str, float], Contestant]:
    def make(case: Case, kind: str, limit: float) -> Contestant:
        if backend == "inductor":
            need_compiler(case.device)
        if backend == "triton":
            need_kernels(case)
        module = compiler.compile(case.design, backend, case.causal, **case.wanted(kind))
        within(pair_bytes(module.plan.schedule, case, kind != FORWARD), limit)
        found = case.loaded(module)
        if module.plan.backend == "triton" and case.tune:
            tuned(module)
        notes = [module.plan.backend if backend == "auto" else "", elsewhere(module.plan)]
        return Contestant(found, case, ", ".join(note for note in notes if note))

    return make


def tuned(module: nn.Module) -> None:
    from tensornet_attn.nn.module import CompiledDesign
    from tensornet_attn.nn.tune import tune_design

    assert isinstance(module, CompiledDesign)
    tune_design(module)


def elsewhere(plan: Plan) -> str:
    """What a plan leaves to another backend, plain products and boxes aside."""
    found = [f"'{region.name}'" for region in plan.regions if region.backend != plan.backend and not region.plain]
    return f"{', '.join(found)} on torch" if found else ""


def fused(case: Case, kind: str, limit: float) -> Contestant:
    """Our torch backend as it would be if arithmetic were free: every call of attention that rewriting allows.

    It keeps a ratio from being won by a plan of `torch` that was a mistake.
    """
    wanted = {**case.wanted(kind), "device_costs": ALMOST_FREE}
    plan, usual = (compiler.plan_of(case.graph, "torch", target_from(**w)) for w in (wanted, case.wanted(kind)))
    if not any(step.attention is not None for step in plan.schedule.steps):
        raise SkippedError(f"no rewriting of '{case.design.name}' at n = {case.n} is a call of attention.")
    if plan.schedule.to_text() == usual.schedule.to_text():
        raise SkippedError("it is what 'torch' does.")
    module = compiler.compile(case.design, "torch", case.causal, **wanted)  # type: ignore[arg-type]
    within(pair_bytes(module.plan.schedule, case, kind != FORWARD), limit)
    return Contestant(case.loaded(module), case)
