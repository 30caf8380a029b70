"""The choice among the plans of torch, of Triton, and of both, on a GPU."""

from __future__ import annotations

from collections.abc import Callable

from tensornet_attn.errors import InputError
from tensornet_attn.plan.demands import against_linear
from tensornet_attn.plan.model import Plan
from tensornet_attn.plan.price import price_of

Make = Callable[[], Plan]


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


def _slower(plan: Plan, triton: Plan) -> bool:
    """Whether torch computes a region for which Triton has a kernel, fused attention excepted."""
    fused = {name for step in plan.schedule.steps if step.attention for name in step.attention.steps}
    own = {name for region in plan.regions if region.backend == "triton" for name in region.steps}
    return any(region.backend == "triton" and not (fused | own) & {*region.steps} for region in triton.regions)
