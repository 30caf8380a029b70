"""The choice between the plans of torch, of Triton, and of both, on a GPU."""

from __future__ import annotations

from tensornet_attn.graph.model import Attention
from tensornet_attn.plan.demands import against_linear
from tensornet_attn.plan.model import Plan
from tensornet_attn.plan.price import price_of


def fastest(torch: Plan, both: Plan, triton: Plan) -> Plan:
    """The plan that is predicted to take the least time; in `both`, Triton has what cannot be fused attention.

    The roofline sees no difference between the same operations on two backends. Then fused attention of torch comes
    first, which is tuned to the device, and all else goes to Triton: in torch it takes more passes over memory.
    """
    plans = [triton] if against_linear(both) else [both, triton]
    if not against_linear(torch) and not _own(torch, triton):
        plans = [torch, *plans]
    plans += [torch]
    return min(plans, key=lambda plan: price_of(plan.schedule, plan.aim.sizes(plan.graph), plan.aim).seconds)


def _own(torch: Plan, triton: Plan) -> bool:
    """Whether Triton has kernels for more than what is fused attention in torch."""
    fused = {name for step in torch.schedule.steps if isinstance(step.op, Attention) for name in step.op.steps}
    return any(region.backend == "triton" and not fused & {*region.steps} for region in triton.regions)
