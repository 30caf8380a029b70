"""Ways to plan a whole design, and the choice among them if the target limits memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tensornet_attn.errors import InputError
from tensornet_attn.kernels.attention import FUSED
from tensornet_attn.kernels.band import BAND
from tensornet_attn.kernels.blockwise import BLOCKWISE
from tensornet_attn.kernels.linear import LINEAR
from tensornet_attn.kernels.native import NATIVE
from tensornet_attn.plan.absorb import ABSORBED
from tensornet_attn.plan.demands import against_linear
from tensornet_attn.plan.distribute import DISTRIBUTION
from tensornet_attn.plan.duplicate import DUPLICATES
from tensornet_attn.plan.hoist import HOISTS
from tensornet_attn.plan.normalized import NORMALIZED
from tensornet_attn.plan.plan import Offer, Plan

DENSE, BLOCKS = "dense", "blocks of queries instead of fused attention"
AS_PRICED = "the cheapest implementation of each region"


@dataclass(frozen=True)
class Way:
    """`without`: rewritings and implementations to skip, by name.

    `forced`: implementations, and rewritings that compare whole plans, to use even if they do not pay off.
    """

    name: str
    without: tuple[str, ...] = ()
    forced: tuple[str, ...] = ()


HOISTED = (NORMALIZED.name, HOISTS.name)
IN_BLOCKS = (BLOCKWISE.name, NATIVE.name)
WAYS = (
    Way(AS_PRICED),
    Way("blocks of queries wherever possible", forced=IN_BLOCKS),
    Way(BLOCKS, (FUSED.name, HOISTS.name), forced=IN_BLOCKS),
    Way("blocks of queries instead of linear attention", (LINEAR.name, *HOISTED), forced=IN_BLOCKS),
    Way(
        DENSE,
        (ABSORBED, *HOISTED, DUPLICATES.name, DISTRIBUTION.name, BAND.name, LINEAR.name, FUSED.name, BLOCKWISE.name),
    ),
    Way("keys and values as written", (ABSORBED,)),
)


def chosen(plans: Mapping[str, Plan]) -> Plan:
    """The plan without restrictions if it meets its target, otherwise the fastest one that does. Raises InputError."""
    offers = [_offer(name, plan) for name, plan in plans.items()]
    eligible = [offer for offer in offers if not offer.against]
    if not eligible:
        raise InputError(_none(next(iter(plans.values())), offers))
    best = min(eligible, key=lambda offer: (offer.name != AS_PRICED, offer.seconds))  # ties go to the first
    others = {offer.figures: _beaten(offer, best) for offer in reversed(offers) if offer.figures != best.figures}
    return replace(plans[best.name], offers=(best, *reversed(others.values())))


def _offer(name: str, plan: Plan) -> Offer:
    target, price = plan.target, plan.price
    against = against_linear(plan) if target.linear_memory else ""
    reasons = [against] if against else []
    if target.memory is not None and price.bytes > target.memory:
        reasons.append(f"above the limit of {_limit(plan)}")
    return Offer(name, price.seconds, price.bytes, plan.region_of(price.step), tuple(reasons))


def _beaten(offer: Offer, best: Offer) -> Offer:
    slower = best.seconds > offer.seconds
    why = f"'{best.name}' meets the limit and is preferred" if slower else f"'{best.name}' is at least as fast"
    return replace(offer, against=offer.against or (why,))


def _limit(plan: Plan) -> str:
    return f"{plan.target.memory:,} bytes ({plan.target.words(plan.target.sizes(plan.graph))})"


def _none(plan: Plan, offers: list[Offer]) -> str:
    """The message if no plan meets the target."""
    name = plan.graph.name
    linear = [offer for offer in offers if not any(reason.startswith("region") for reason in offer.against)]
    if not linear:
        return f"{name}: linear_memory, but {offers[min(1, len(offers) - 1)].against[0]}."
    least = min(linear, key=lambda offer: offer.bytes)
    return (
        f"{name}: no plan fits within {_limit(plan)}: the smallest predicted peak is {least.bytes:,} bytes, in region "
        f"'{least.region}', with {least.name}."
    )
