"""Every shipped design with a softmax on Triton: values and gradients of the oracle, in the interpreter."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.compiler import plan_of
from tensornet_attn.graph import build
from tests.designs.cases import ATTENTION, CASES
from tests.triton.regions import draw, on_triton, pair, same

QUICK = ("alibi", "differential", "fish", "mgk", "mhsa", "thsa")


def planned(name: str) -> ta.compiler.Plan:  # type: ignore[name-defined]
    case = CASES[name]
    return plan_of(build(ta.load(name, legs=case.legs, settings=case.settings)), "triton")


def taken() -> list[str]:
    return [name for name in ATTENTION if any(step.op.kind == "tiles" for step in kernels(name))]


def kernels(name: str) -> list[ta.graph.graph.Step]:  # type: ignore[name-defined]
    return [step for step in planned(name).schedule.steps if getattr(step.op, "body", ())]


TAKEN = taken()


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in QUICK else pytest.mark.slow) for n in TAKEN])
@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.slow), 19])
def test_values_and_gradients(name: str, n: int) -> None:
    case = CASES[name]
    ours, oracle = pair(name, positive=(*case.positive, "pi"), legs=case.legs, settings=case.settings)
    assert on_triton(ours)
    graph = ours.plan.graph
    inputs = [draw(2, n, case.legs["f"], seed=7 + i) for i, _ in enumerate(graph.of_role("input"))]
    sizes = {leg.name: leg.size or n for leg in graph.legs}
    noise = {t.name: draw(2, *(sizes[leg] for leg in t.legs), seed=9) for t in graph.of_role("noise")}
    call = {"noise": noise} if noise else {}
    same(ours, oracle, inputs, **call)
    mask: torch.Tensor | None = torch.where(draw(2, n, n, seed=3) < 0.8, draw(2, n, n, seed=4), -torch.inf)
    boxes = {getattr(step.op, "kind", "") for step in graph.steps}
    if "delta_rule" in boxes:  # which takes no mask but that of keys
        mask = None
    elif boxes & {"normalize", "keep"}:  # beside the softmax: these take no numbers that are added
        mask = draw(2, n, n, seed=3) < 0.8
    same(ours, oracle, inputs, mask=mask, key_mask=draw(2, n, seed=5) < 0.8, **call)


def test_relative_positions_and_mixed_heads_are_taken() -> None:
    assert {"epa_xl", "gfish", "talking_heads", "transformer_xl"} <= {*TAKEN}
