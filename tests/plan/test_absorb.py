"""Absorbed weights: where they are taken, by which figures, and that every plan is the same function."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.cost.devices import DEVICES
from tensornet_attn.cost.target import WORKLOADS, Target
from tensornet_attn.graph import build
from tensornet_attn.graph.graph import Kernel
from tensornet_attn.nn.module import CompiledDesign
from tensornet_attn.plan.absorb import ABSORBED
from tensornet_attn.plan.make import make_plan
from tensornet_attn.plan.plan import Plan
from tensornet_attn.rewrite.fused import FusedAttention
from tests.agreement import same_outcome
from tests.designs.cases import drawn, normal

TWO = {"x": "n f", "memory": "m f"}
LATENT = "memory[m f] Wc[f c] -> m c"
ROTARY: dict[str, Any] = {
    "tensornet": 1, "name": "rotary", "extends": "mla", "inputs": TWO, "legs": {"r": "head 32"},
    "weights": {"Wqr": "f h r", "Wkr": "f r"},
    "diagram": {
        "C": LATENT,
        "R": {"rope": "n", "along": "r", "of": "x[n f] Wqr[f h r] -> n h r"},
        "P": {"rope": "m", "along": "r", "of": "memory[m f] Wkr[f r] -> m r"},
        "A": {"softmax": "m", "scale": "(d + r) ** -0.5", "of": "Q[n h d] K[m h d] + R[n h r] P[m r] -> h n m"},
        "y": "A[h n m] V[m h d] Wo[h d f] -> n f",
    },
}  # fmt: skip
RANKS: dict[str, Any] = {
    "tensornet": 1, "name": "ranks", "extends": "cross", "legs": {"a": 16, "b": 48},
    "weights": {"Wk": None, "Wv": None, "Wa": "f a", "Wb": "f b", "Uk": "a h d", "Uv": "b h d", "g": "h"},
    "diagram": {
        "Ka": "memory[m f] Wa[f a] -> m a",
        "Vb": "memory[m f] Wb[f b] -> m b",
        "K": "0.5 * g[h] Uk[a h d] Ka[m a] -> h d m",
        "V": "Vb[m b] Uv[b h d] -> m h d",
        "A": {"softmax": "m", "scale": "d ** -0.5", "of": "Q[n h d] K[h d m] -> n h m"},
        "y": "A[n h m] V[m h d] Wo[h d f] -> n f",
    },
}  # fmt: skip
GATED = {"tensornet": 1, "name": "gated", "extends": "cross", "weights": {"Wg": "f h"}, "diagram": {
    "g": {"map": "sigmoid", "of": "memory[m f] Wg[f h] -> m h"},
    "K": "memory[m f] Wk[f h d] -> m h d",
    "V": "g[m h] memory[m f] Wv[f h d] -> m h d",
}}  # fmt: skip
MLA = {"tensornet": 1, "name": "two", "extends": "mla", "inputs": TWO, "diagram": {"C": LATENT}}
DESIGNS: dict[str, Any] = {"mla": MLA, "rotary": ROTARY, "ranks": RANKS, "gated": GATED, "cross": "cross"}
SMALL = {"mla": {}, "rotary": {"r": 2}, "ranks": {"a": 2, "b": 3}, "gated": {}, "cross": {}}


def plan(source: Any, backend: str = "torch", legs: dict[str, Any] | None = None, **target: Any) -> Plan:
    return make_plan(build(ta.load(source, legs=legs)), backend, Target(**target))


def absorbed(made: Plan) -> list[str]:
    return [region.name for region in made.regions if region.chosen.startswith(ABSORBED)]


def refused(made: Plan, name: str) -> str:
    (region,) = (region for region in made.regions if region.name == name)
    (reason,) = (reason for low in region.refused if low.name == ABSORBED for reason in low.against)
    return reason


def attention(made: Plan) -> FusedAttention:
    (form,) = (step.form for step in made.schedule.steps if isinstance(step.form, FusedAttention))
    return form


def test_mla_at_decoding_attends_to_its_latent() -> None:
    made = plan("mla", workload="decoding")
    op = attention(made)
    assert absorbed(made) == ["K", "V"]
    assert (op.query.legs, op.key.name, op.value.name) == (("n", "h", "c"), "C", "C")
    assert not {"K", "V"} & made.schedule.step.keys()
    assert "K: absorbed weights: with 'Wuk' on the query side and 'C' as keys" in made.explain()
    assert "V: absorbed weights: with 'Wuv' after the map and 'C' as values" in made.explain()
    assert made.region_of("A.q") == "A.q"


@pytest.mark.parametrize("workload", ["training", "prefill"])
@pytest.mark.parametrize("device", DEVICES)
def test_mla_is_as_written_where_there_are_many_queries(workload: str, device: str) -> None:
    made = plan("mla", workload=workload, device=DEVICES[device])
    assert absorbed(made) == []
    assert (attention(made).key.name, attention(made).value.name) == ("K", "V")
    assert refused(made, "K").startswith("with 'Wuk' on the query side and 'C' as keys, the whole plan would take ")
    assert refused(made, "V").startswith("with 'Wuv' after the map and 'C' as values, the whole plan would take ")


def test_a_rotary_part_stands_beside_the_latent() -> None:
    made = plan(ROTARY, workload="decoding")
    op = attention(made)
    assert absorbed(made) == ["K", "V"]
    join = made.schedule.step[op.key.name].op
    assert isinstance(join, Kernel)
    assert (join.kind, [use.name for use in join.uses], op.value.name) == ("join", ["C", "P"], "C")
    assert absorbed(plan(ROTARY)) == []


def test_keys_and_values_of_low_rank() -> None:
    """At decoding what is left is the input; in training keys of rank 16 instead of 64 make the scores cheaper."""
    made = plan(RANKS, workload="decoding")
    assert {"K", "V"} <= {*absorbed(made)}
    narrow = plan(RANKS, legs={"b": 16}, workload="training")
    assert absorbed(narrow) == ["K", "V", "Q"]
    assert {"Ka", "Vb"} == {attention(narrow).key.name, attention(narrow).value.name}
    wide = plan(RANKS, legs={"a": 256, "b": 256}, workload="training")
    assert absorbed(wide) == []


def test_the_input_itself_as_keys_is_priced_like_any_other() -> None:
    """Q' is as wide as the input for every head: cheap for a few queries, dear for many."""
    few = plan("cross", workload="decoding")
    assert (absorbed(few), attention(few).key.name, attention(few).value.name) == (["K", "V"], "memory", "memory")
    many = plan("cross", workload="decoding", n=256, m=1024)
    assert absorbed(many) == []
    assert "the whole plan would take " in refused(many, "K")
    assert absorbed(plan("mhsa", workload="decoding")) == ["K", "V"]
    assert absorbed(plan("mhsa")) == []


def test_a_box_stays_and_another_width_is_paid_for() -> None:
    made = plan("mhsa_rope", workload="decoding")
    assert absorbed(made) == []
    assert refused(made, "V").startswith("with 'Wv' after the map and 'memory' as values, the whole plan would take ")
    kept = {
        **MLA,
        "diagram": {"C": LATENT, "A2": {"map": "tanh", "of": "K[m h d]"}, "y": "A[h n m] A2[m h d] Wo[h d f] -> n f"},
    }
    kept["weights"] = {"Wuv": None}
    kept["diagram"]["V"] = None
    made = plan(kept, workload="decoding")
    assert absorbed(made) == []  # K is read twice
    assert "'Wuk'" not in made.explain()


def test_scores_that_are_fused_stay_fused() -> None:
    """A leg that keys have and nobody sums: the weights meet, but then nothing is contracted between query and key."""
    own = {
        "tensornet": 1, "name": "own", "legs": {"n": "query", "m": "key", "h": "head 2", "d": 5, "e": 3},
        "inputs": {"x": "n h"}, "weights": {"Wq": "h d", "Wk": "h d", "Wv": "h e"}, "output": "y",
        "diagram": {
            "Q": "x[n h] Wq[h d] -> n h d", "K": "x[m h] Wk[h d] -> m h d", "V": "x[m h] Wv[h e] -> m h e",
            "A": {"softmax": "m", "of": "Q[n h d] K[m h d] -> h n m"}, "y": "A[h n m] V[m h e] -> n h e",
        },
    }  # fmt: skip
    made = plan(own)
    assert "K" not in absorbed(made)
    assert refused(made, "K").endswith("its scores would no longer be fused")


def test_a_limit_of_memory_may_leave_keys_as_written() -> None:
    made = plan("cross", workload="decoding", memory=2**40)
    assert absorbed(made) == ["K", "V"]
    assert "not keys and values as written, " in made.explain()


def modules(title: str, workload: str, causal: bool, device: str) -> list[CompiledDesign]:
    """The plan of the small design and its reference, with the same weights."""
    design = ta.load(DESIGNS[title], legs={"f": 12, "h": 3, **SMALL[title]})
    oracle = drawn(ta.reference(design, causal, dtype=torch.float64))
    module = ta.compile(design, "torch", causal, dtype=torch.float64, workload=workload, device_costs=device).eval()
    assert list(module.state_dict()) == list(oracle.state_dict())
    module.load_state_dict(oracle.state_dict())
    return [module, oracle]  # type: ignore[list-item]


def masks_of(kind: str, n: int, m: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    if kind == "mask":
        keep = torch.rand(2, n, m, generator=generator) < 0.6
        keep[0, 0] = False  # a row that sees nothing
        return {"mask": keep}
    if kind == "bias":
        return {"mask": normal(generator, n, m)}
    return {"key_mask": torch.rand(2, m, generator=generator) < 0.7} if kind == "key mask" else {}


@pytest.mark.parametrize("masks", ["none", "mask", "bias", "key mask"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("title", DESIGNS)
def test_every_plan_is_the_same_function(title: str, workload: str, causal: bool, masks: str) -> None:
    for device in ("generic", "flops"):
        pair = modules(title, workload, causal, device)
        assert workload != "decoding" or title == "gated" or absorbed(pair[0].plan)
        for n, m in ((1, 7), (5, 5), (3, 8), (6, 4)):
            generator = torch.Generator().manual_seed(1)
            inputs = [normal(generator, 2, length, 12) for length in (n, m)]
            same_outcome(*pair, inputs, **masks_of(masks, n, m))
