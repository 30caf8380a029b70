"""The choice between the plans of torch and of Triton, on a GPU."""

from __future__ import annotations

from tensornet_attn.graph.model import Attention
from tensornet_attn.plan.demands import against_linear
from tensornet_attn.plan.model import Plan
from tensornet_attn.plan.price import price_of


def faster(torch: Plan, triton: Plan) -> Plan:
    """The plan that is predicted to take less time.

    Where neither is, by the roofline alone, that of torch if all that Triton has kernels for is fused attention there:
    it is tuned to the device. All else takes more passes over memory in torch than the roofline knows of.
    """
    seconds = [price_of(plan.schedule, plan.aim.sizes(plan.graph), plan.aim).seconds for plan in (torch, triton)]
    if seconds[0] != seconds[1]:
        return torch if seconds[0] < seconds[1] else triton
    fused = {name for step in torch.schedule.steps if isinstance(step.op, Attention) for name in step.op.steps}
    own = any(region.backend == "triton" and not fused & {*region.steps} for region in triton.regions)
    return triton if own or against_linear(torch) else torch
