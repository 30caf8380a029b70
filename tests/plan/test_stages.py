"""Stages of a step: which values one call gives, and that they are those of the parts."""

from __future__ import annotations

import pytest

from tensornet_attn import build, load
from tensornet_attn.plan.decoding import decoding_of
from tensornet_attn.plan.stages import merged, single


@pytest.mark.parametrize(
    ("name", "stages"),
    [
        ("mhsa", [("V", "K"), ("y",)]),
        ("mla", [("C",), ("y",)]),
        ("linear", [("y", "A.state1", "A.state2")]),
        ("fast_weight1", [("y", "far.state1", "far.state2")]),
    ],
)
def test_values_of_a_call(name: str, stages: list[tuple[str, ...]]) -> None:
    decoding = decoding_of(build(load(name), causal=True))
    assert [stage.values for stage in merged(decoding, False)] == stages
    assert [stage.values for stage in single(decoding)] == [(part.value_name,) for part in decoding.parts]


def test_what_reads_states_stands_apart() -> None:
    decoding = decoding_of(build(load("linear"), causal=True))
    for stage in merged(decoding, True):
        assert stage.wide == any("past" in tensor.name for tensor in stage.graph.of_role("input"))
        hidden = {one.value_name for one in stage.inputs if one.hides}
        assert not hidden & {*stage.values}


def test_a_diagram_with_several_outputs_is_its_text() -> None:
    (stage,) = merged(decoding_of(build(load("linear"), causal=True)), False)
    text = stage.graph.to_text()
    assert text.endswith("\noutput y A.state1 A.state2\n")


def test_keys_of_one_position_are_that_position() -> None:
    (stage,) = merged(decoding_of(build(load("linear"), causal=True)), False)
    assert "keep" not in stage.graph.to_text()
    assert all(stage.graph.key not in step.legs for step in stage.graph.steps)
