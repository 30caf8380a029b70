"""The backend of a plan, and why: the one that was asked for, or torch if that cannot run, or the choice of `auto`.

On a GPU, `auto` takes the plan of torch, of Triton or of both; on a CPU that of torch or of cached C++ kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from warnings import warn

from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.cost.figures import as_long, instead
from tensornet_attn.cost.kernels import steps_of
from tensornet_attn.cost.target import Target
from tensornet_attn.errors import InputError
from tensornet_attn.graph.graph import Graph
from tensornet_attn.keywords import caller
from tensornet_attn.plan.demands import against_linear
from tensornet_attn.plan.make import LONGER, PLANS, cheapest, make_plan, plan_of
from tensornet_attn.plan.plan import Lowering, Plan
from tensornet_attn.rewrite.fused import FusedAttention

Make = Callable[[], Plan]
BOTH = "triton beside fused attention"  # the backend of the plan in which Triton computes what torch cannot fuse


@dataclass(frozen=True)
class Host:
    """What a module may run, on its device and in its dtype. Reasons are sentences without full stop; none: it runs.

    `gpu`: whether the device is a GPU that Triton compiles for. `against_cpp`: reasons against the C++ kernels of a
    plan, after they are compiled and compared with the reference; `against_compiler`, `against_cache`: against
    compiling C++, and against the folder of the kernels. `in_cache`: whether a plan has C++ kernels, all in the cache,
    that agreed with the reference; None if there is no cache.
    """

    against_cpp: Callable[[Plan], tuple[str, ...]]
    in_cache: Callable[[Plan], bool] | None
    against_compiler: Callable[[], str]
    against_cache: str
    gpu: bool = False
    against_triton: Callable[[], tuple[str, ...]] = tuple


def planned(graph: Graph, backend: str, target: Target, host: Host) -> Plan:
    """The plan of a graph on a backend and a host. If Triton or C++ cannot run, the plan is that of torch.

    Raises InputError if the target is strict and the backend cannot run.
    """
    if backend == "auto":
        return on_gpu(graph, target, host) if host.gpu else on_cpu(graph, target, host)
    reasons: tuple[str, ...] = ()
    if backend == "triton":
        reasons = host.against_triton()
    elif backend == "cpp" and host.gpu:
        reasons = ("it computes on a CPU",)
    elif backend == "cpp":
        reasons = host.against_cpp(plan_of(graph, backend, target))
    return in_torch(graph, target, backend, reasons) if reasons else plan_of(graph, backend, target)


def described(graph: Graph, backend: str, target: Target, host: Host, name: str) -> Plan:
    """The plan that `explain` describes: nothing is compiled. `name`: of the design in a command."""
    if backend == "auto" and not target.device.gpu:
        plan = on_cpu(graph, target, host)
        if plan.instead or not target.device.measured:
            return plan
        return beside_cpp(plan, lambda: plan_of(graph, "cpp", target), name)
    if backend == "cpp" and (reason := host.against_compiler()):
        return _in_place_of(backend, plan_of(graph, "torch", target), reason)
    return plan_of(graph, backend, target)


def in_torch(graph: Graph, target: Target, backend: str, reasons: tuple[str, ...]) -> Plan:
    """The plan of torch in place of a backend, with a warning. Raises InputError if the target is strict."""
    cannot = f"backend '{backend}' cannot run: {'; '.join(reasons)}."
    if target.strict:
        raise InputError(f"{graph.name}: strict, but {cannot}")
    warn(f"{graph.name}: {cannot} Using 'torch' instead.", stacklevel=caller())
    return _in_place_of(backend, plan_of(graph, "torch", target), *reasons)


def on_gpu(graph: Graph, target: Target, host: Host) -> Plan:
    """The plan of `auto` on a GPU: the cheapest of three, or that of torch if Triton cannot run.

    In the second one, Triton computes what torch's fused attention cannot. The roofline model predicts equal times for
    the same operations on both backends. Ties go to torch for fused attention, which is tuned for the device, and
    otherwise to Triton, because torch makes more passes over memory. Raises InputError if no plan meets its target.
    """

    makes: Sequence[Make] = (
        lambda: plan_of(graph, "torch", target),
        lambda: PLANS.get((graph.to_text(), BOTH, target), lambda: make_plan(graph, "triton", target, fused=True)),
        lambda: plan_of(graph, "triton", target),
    )
    plans = [] if host.against_triton() else [plan for make in makes if (plan := _met(make))]
    preferred = [plan for plan in plans if not against_linear(plan) and not _slower(plan, plans[-1])]
    return cheapest([*preferred, *plans]) if plans else makes[0]()


def on_cpu(graph: Graph, target: Target, host: Host) -> Plan:
    """The plan of `auto` on a CPU: cached C++ kernels, unless they are predicted to be clearly slower than torch."""
    if cpp := cached_cpp(graph, target, host):
        return faster_on_cpu(cpp, lambda: plan_of(graph, "torch", target))
    plan, reason = plan_of(graph, "torch", target), host.against_cache
    return _in_place_of("cpp", plan, reason) if reason else plan


def cached_cpp(graph: Graph, target: Target, host: Host) -> Plan | None:
    """The plan with C++ kernels, if the host has all of them; compiles nothing."""
    if host.in_cache is None:
        return None
    plan = _met(lambda: plan_of(graph, "cpp", target))
    return plan if plan and host.in_cache(plan) else None


def faster_on_cpu(cpp: Plan, torch: Make) -> Plan:
    """The plan of C++ kernels, or that of torch if they would clearly take longer at measured rates.

    Their user has compiled them, so they win in doubt, and if the plan of torch misses its target.

    They are rates of the device or, if it has none, of the shipped table, whose ratios of implementations then count.
    """
    torch_plan = _met(torch)
    if torch_plan is None:
        return cpp
    seconds, torch_seconds = map(_measured, (cpp, torch_plan))
    if cheapest((torch_plan, cpp), LONGER, (torch_seconds, seconds)) is torch_plan:
        reason = f"its kernels are in the cache, but would take {_compared(seconds, torch_seconds, cpp)}"
        return _in_place_of("cpp", torch_plan, reason)
    doubt = ": kernels that are in the cache win in doubt" * (seconds > torch_seconds)
    return _in_place_of("torch", cpp, f"it would take {_compared(torch_seconds, seconds, cpp)}{doubt}")


def beside_cpp(torch: Plan, cpp: Make, name: str) -> Plan:
    """The plan of torch on a CPU, with what C++ kernels that are not compiled yet would give, and the command.

    `name`: of the design in the command. A plan without such kernels stays as it is.
    """
    kernels = _met(cpp)
    if kernels is None or "cpp" not in kernels.backends.values():
        return torch
    seconds, seconds_now = map(_measured, (kernels, torch))
    command = f"; 'tensornet-attn warm {name}' and these options compile them" if seconds < seconds_now else ""
    reason = f"its kernels are not compiled; they would take {instead(seconds, seconds_now)}{command}"
    return _in_place_of("cpp", torch, reason)


def _in_place_of(backend: str, plan: Plan, *reasons: str) -> Plan:
    return replace(plan, instead=Lowering(backend, reasons))


def _met(make: Make) -> Plan | None:
    """The plan, or None if none meets the target: then that of another backend may, or its error says why."""
    try:
        return make()
    except InputError:
        return None


def _compared(seconds: float, baseline: float, plan: Plan) -> str:
    """Both times, or their ratio if the plan is for a device without measured rates."""
    measured = plan.target.device.measured
    return instead(seconds, baseline) if measured else f"{as_long(seconds, baseline)} at the rates of cpu"


def _measured(plan: Plan) -> float:
    """The predicted seconds at measured rates."""
    on_cpu = replace(plan, target=replace(plan.target, device=DEVICES["cpu"]))
    return (plan if plan.target.device.measured else on_cpu).price.seconds


def _slower(plan: Plan, triton: Plan) -> bool:
    """Whether torch computes a region for which Triton has a kernel, fused attention excepted."""
    fused = {name for step in plan.schedule.steps if isinstance(step.form, FusedAttention) for name in steps_of(step)}
    in_kernels = {name for region in plan.regions if region.backend == "triton" for name in region.steps}
    return any(region.backend == "triton" and not (fused | in_kernels) & {*region.steps} for region in triton.regions)
