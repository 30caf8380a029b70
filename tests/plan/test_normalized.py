"""Blends of maps whose rows are divided by their sums: each map reads the values, and ones for the sums."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import tensornet_attn as ta
from tests.agreement import same_outcome

from .linear_cases import SCORES, design
from .test_decay import SHAPES
from .test_linear import draw, modules

pytestmark = pytest.mark.usefixtures("in_blocks")

NEAR = {"softmax": "m", "mask": ["band(2)"], "of": SCORES}
FAR = {"normalize": "m", "of": SCORES}
BLEND = "b[h] near[h n m] + 0.5 * far[h n m] -> h n m"
BLENDS = {
    "a band and a kernel": design(BLEND, near=NEAR, far=FAR),
    "with eps": design(BLEND, near=NEAR, far=FAR, eps=0.5),
    "two softmaxes": design(BLEND, near=NEAR, far={"softmax": "m", "of": "Qc[n d] Kc[m d] + k[m h] -> h n m"}),
    "values without heads": design(BLEND, "A[h n m] Vs[m e] Wo[h e f] -> n f", near=NEAR, far=FAR),
    "weighed by the query": design("q[n h] near[h n m] + far[h n m] -> h n m", near=NEAR, far=FAR),
    "read beside another": design(BLEND, "A[h n m] V[m h e] Wo[h e f] - x[n f] -> n f", near=NEAR, far=FAR),
}
OTHERS = {
    "a box that sees less than its maps": design(BLEND, near=NEAR, far=FAR, mask=["band(1)"]),
    "a term that is no map": design("near[h n m] + 0.5 -> h n m", near=NEAR),
    "a map whose scores must be made": design(
        "near[h n m] + far[h n m] -> h n m", near=NEAR, far={"keep": "m", "of": {"map": "sigmoid", "of": SCORES}}
    ),
}


def ordered(source: dict[str, Any], causal: bool) -> dict[str, Any]:
    """The maps before the blend; causal or not."""
    steps = source["diagram"]
    first = {name: step for name, step in steps.items() if name not in ("A", "y")}
    used = first | {name: steps[name] for name in ("A", "y")}
    return source | {"diagram": used, "causal": causal}


def hold(source: dict[str, Any]) -> None:
    ours, oracle = modules(source, False)
    for (n, m), batch in zip([*SHAPES, (70, 70)], itertools.cycle([(2,), ()]), strict=False):
        inputs, keys = [draw(*batch, n, 4), draw(*batch, m, 4, seed=1)], draw(*batch, m, seed=2) > 0.5
        same_outcome(ours, oracle, inputs)
        same_outcome(ours, oracle, inputs, key_mask=keys)
        same_outcome(ours, oracle, inputs, mask=draw(*batch, 3, n, m, seed=3) > 0, key_mask=keys)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", BLENDS)
def test_no_map_of_a_normalized_blend_is_made(name: str, causal: bool) -> None:
    source = ordered(BLENDS[name], causal)
    plan = ta.compile(source, linear_memory=True, device_costs="generic").plan
    told = {region.chosen.partition(":")[0] for region in plan.regions}
    if name == "two softmaxes":  # blocks of queries, too, make no map, and cost less
        assert "blockwise" in told
    else:
        assert "banded attention" in told
        assert "blockwise" not in told
    hold(source)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", OTHERS)
def test_other_blends_stay(name: str, causal: bool) -> None:
    source = ordered(OTHERS[name], causal)
    assert (
        "near.copy" not in ta.compile(source, linear_memory=True, device_costs="generic").explain()
    )  # which reads ones instead of values
    hold(source)


def test_multiply_adds_of_normalized_rows_are_linear_in_the_length() -> None:
    short, long = (ta.cost("fmm1_rows", n=n).best.total.macs for n in (2048, 4096))
    assert long / short == pytest.approx(2, rel=1e-3)
