"""What the delta rule costs as it runs, in chunks: products as torch counts them, floats as autograd keeps them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tensornet_attn.cost import cost
from tensornet_attn.graph.graph import Box, Graph, Leg, Step, Use
from tensornet_attn.graph.graph import Tensor as Given
from tensornet_attn.runtime import gated, scan
from tests.memory import kept
from tests.work import flops_with

H, D, E = 3, 4, 5
LEGS = {"query": ("n", "h", "d"), "key": ("m", "h", "d"), "value": ("m", "h", "e"), "rate": ("m", "h")}


def operands(n: int, m: int) -> list[Tensor]:
    """Query, key, value and rate of one sequence, as the function takes them."""
    shapes = ((H, n, D), (H, m, D), (H, m, E), (H, m))
    return [torch.rand(shape).requires_grad_() for shape in shapes]


def graph(mode: str) -> Graph:
    legs = (Leg("n", "query"), Leg("m", "key"), Leg("h", "head", H), Leg("d", "size", D), Leg("e", "size", E))
    uses = tuple((role, Use(role, own)) for role, own in LEGS.items())
    step = Step("y", Box("delta_rule", "m", uses, mode=mode), ("n", "h", "e"))
    return Graph("g", legs, (), tuple(Given(name, "input", own) for name, own in LEGS.items()), (step,), "y")


@pytest.mark.parametrize("m", [64, 640])
def test_products_of_a_chunk(m: int) -> None:
    """Those of `work.py`; the triangular systems, m C (d + e) / 2, torch does not count."""
    chunk = 32
    found = flops_with(lambda: scan.delta_rule(*operands(m, m), chunk=chunk), vars(gated).values())
    inside, between = 2 * chunk * D + chunk * E, D * D + 3 * D * E
    assert found == 2 * H * (m * (inside + between) + m // chunk * D * D * E)


@pytest.mark.parametrize(("n", "m"), [(70, 70), (70, 50), (50, 70)])
@pytest.mark.parametrize("mode", ["none", "read", "both"])
def test_floats_kept_are_those_that_autograd_keeps(mode: str, n: int, m: int) -> None:
    found = kept(lambda: scan.delta_rule(*operands(n, m), normalize=mode, eps=0.1))
    assert found // 4 == cost(graph(mode), {"n": n, "m": m}).total.saved_floats


GATES = {"decay": ("m", "h", "d"), "erase": ("m", "h", "d"), "write": ("m", "h", "d")}


@pytest.mark.parametrize("gates", [("decay",), ("erase",), ("write",), ("decay", "erase", "write")])
def test_gates(gates: tuple[str, ...]) -> None:
    """What is passed through of the state, and what the backward keeps."""
    n, given = 70, dict(zip(LEGS, operands(70, 70), strict=True))
    given |= {role: torch.rand(H, n, D).requires_grad_() for role in gates}
    legs = LEGS | {role: GATES[role] for role in gates}
    plain = graph("none")
    uses = tuple((role, Use(role, own)) for role, own in legs.items())
    tensors = tuple(Given(name, "input", own) for name, own in legs.items())
    step = Step("y", Box("delta_rule", "m", uses, mode="none"), ("n", "h", "e"))
    whole = Graph("g", plain.legs, (), tensors, (step,), "y")
    passes = 3 + ("decay" in gates) + ("write" in gates)
    assert cost(whole, {"n": n, "m": n}).total.macs == passes * n * H * D * E
    q, k, v, rate, *_ = given.values()
    found = kept(lambda: gated.gated_delta_rule(q, k, v, rate, **{role: given[role] for role in gates}))
    assert found // 4 == cost(whole, {"n": n, "m": n}).total.saved_floats
