"""The choice of `auto` among plans: of torch, of Triton, and of both on a GPU; of torch and of C++ on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.cost.figures import as_long, duration, instead
from tensornet_attn.cost.kernels import steps_of
from tensornet_attn.cost.price import price_of
from tensornet_attn.errors import InputError
from tensornet_attn.plan.demands import against_linear
from tensornet_attn.plan.model import Lowering, Plan
from tensornet_attn.rewrite.fused import FusedAttention

Make = Callable[[], Plan]
LONGER = 1.2  # times the time of torch that cached C++ kernels may be predicted to take: predictions err by as much


def fastest(torch: Make, both: Make, triton: Make) -> Plan:
    """The plan with the least predicted time; in `both`, Triton computes what torch's fused attention cannot.

    The roofline model predicts equal times for the same operations on both backends. Ties go to torch for fused
    attention, which is tuned for the device, and otherwise to Triton, because torch makes more passes over memory.
    Raises InputError if no plan meets its target.
    """
    made, errors = list[Plan](), list[InputError]()
    for make in (torch, both, triton):
        try:
            made.append(make())
        except InputError as error:  # another plan may meet the target
            errors.append(error)
    if not made:
        raise errors[0]
    first = [plan for plan in made if not against_linear(plan) and not _slower(plan, made[-1])]
    return min(
        [*first, *made], key=lambda plan: price_of(plan.schedule, plan.target.sizes(plan.graph), plan.target).seconds
    )


def faster_on_cpu(cpp: Plan, torch: Make) -> Plan:
    """The plan of C++ kernels, or that of torch if they would clearly take longer at measured rates.

    Their user has compiled them, so they win in doubt, and if the plan of torch misses its target.

    They are rates of the device or, if it has none, of the shipped table, whose ratios of implementations then count.
    """
    try:
        other = torch()
    except InputError:
        return cpp
    own, others = map(_measured, (cpp, other))
    if own < LONGER * others:
        doubt = ": kernels that are in the cache win in doubt" * (own > others)
        return replace(cpp, instead=Lowering("torch", (f"it would take {_compared(others, own, cpp)}{doubt}",)))
    reason = f"its kernels are in the cache, but would take {_compared(own, others, cpp)}"
    return replace(other, instead=Lowering("cpp", (reason,)))


def beside_cpp(torch: Plan, cpp: Make, name: str) -> Plan:
    """The plan of torch on a CPU, with what C++ kernels that are not compiled yet would give, and the command.

    `name`: of the design in the command. A plan without such kernels stays as it is.
    """
    try:
        kernels = cpp()
    except InputError:  # only torch meets the target
        return torch
    if "cpp" not in kernels.backends.values():
        return torch
    seconds, seconds_now = map(_measured, (kernels, torch))
    command = f"; 'tensornet-attn warm {name}' and these options compile them" if seconds < seconds_now else ""
    reason = f"its kernels are not compiled; they would take {instead(seconds, seconds_now, duration)}{command}"
    return replace(torch, instead=Lowering("cpp", (reason,)))


def _compared(own: float, other: float, plan: Plan) -> str:
    """Both times, or their ratio if the plan is for a device without measured rates."""
    measured = plan.target.device.measured
    return instead(own, other, duration) if measured else f"{as_long(own, other)} at the rates of cpu"


def _measured(plan: Plan) -> float:
    """The predicted seconds at measured rates."""
    target = plan.target if plan.target.device.measured else replace(plan.target, device=DEVICES["cpu"])
    return price_of(plan.schedule, target.sizes(plan.graph), target).seconds


def _slower(plan: Plan, triton: Plan) -> bool:
    """Whether torch computes a region for which Triton has a kernel, fused attention excepted."""
    fused = {name for step in plan.schedule.steps if isinstance(step.form, FusedAttention) for name in steps_of(step)}
    own = {name for region in plan.regions if region.backend == "triton" for name in region.steps}
    return any(region.backend == "triton" and not (fused | own) & {*region.steps} for region in triton.regions)
