"""C++ libraries are compared with the reference when they are first loaded, on a plan whose layer lives."""

from __future__ import annotations

from ctypes import CDLL
from functools import partial
from weakref import ref

from tensornet_attn.plan.plan import Plan

PLANS: list[tuple[ref[Plan], frozenset[str]]] = []  # of living layers, and the texts of their libraries


def compare_before_use(plan: Plan, texts: tuple[str, ...]) -> None:
    """Libraries of these texts are compared with the reference, on this plan, when they are first loaded."""
    if not texts:
        return
    from tensornet_attn.runtime.cpp import CPP_FINDERS

    CPP_FINDERS["package"] = _compared_library
    others = [record for record in PLANS if (living := record[0]()) and living is not plan]
    PLANS[:] = [*others, (ref(plan), frozenset(texts))]


def plan_of_library(text: str) -> Plan | None:
    """The plan of a living layer whose library has this text."""
    return next((plan for plan_ref, texts in PLANS if text in texts and (plan := plan_ref())), None)


def _compared_library(text: str, dtype: str) -> CDLL | str:
    """The C++ library of a text, or the reason why there is none; one of no known plan needs its record."""
    from tensornet_attn.runtime.cpp import cpp_built, cpp_verified

    plan = plan_of_library(text)
    if plan is None:
        return cpp_verified(text, dtype)
    from tensornet_attn.verify.kernels import reason_against

    return cpp_built(text, dtype, partial(reason_against, plan, text))
