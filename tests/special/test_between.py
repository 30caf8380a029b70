"""Designs without their projections: with these around them they are the designs that they were."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tensornet_attn as ta
from tensornet_attn.errors import InputError
from tensornet_attn.special.between import between
from tests.designs.cases import CASES, compiled, inputs_of
from tests.refusals import refusal

INNER = (
    "alibi band cross gaussian gqa gqa_rope linear linear2 linear3 linear3_shifted mhsa mhsa_poly mhsa_rope mqa"
).split()


MODERN = "based gemma2 gemma2_local l2_attention laser llama mistral moonshine mpt nemotron sigmoid_attention".split()
MODERN += ["stick_breaking"]


def test_the_shipped_designs_that_weigh_values_and_no_more() -> None:
    found = []
    for name in ta.list_designs():
        try:
            found.append(between(ta.load(name)).graph.name)
        except InputError:
            continue
    assert set(found) == {*INNER, *MODERN}


@pytest.mark.parametrize("name", INNER)
def test_with_projections_it_is_the_whole_design(name: str) -> None:
    whole, xs = compiled(name, "torch"), [x.requires_grad_() for x in inputs_of(name)]
    made = between(ta.load(name, legs=CASES[name].legs, settings=CASES[name].settings))
    inner = ta.compile(made.design, "torch", dtype=torch.float64)
    weights = {key: value.detach() for key, value in whole.named_parameters()}
    given = [
        torch.tensordot(x, weights[key], 1) for key, x in (("Wq", xs[0]), ("Wk", xs[-1]), ("Wv", xs[-1]))
    ]  # batch, positions, heads, d
    y = torch.tensordot(inner(*given).flatten(2), weights["Wo"].flatten(0, -2), 1)
    wanted = whole(*xs)
    torch.testing.assert_close(y, wanted)
    pair = [torch.autograd.grad(one.square().sum(), xs) for one in (y, wanted)]
    torch.testing.assert_close(pair[0], pair[1])


def test_what_is_left_reads_as_a_design() -> None:
    made = between(ta.load("gqa", legs={"f": 32, "g": 2, "j": 2}))
    assert made.rows == (("n", "g", "j", "d"), ("m", "g", "d"), ("m", "g", "d"))
    assert made.heads == (("g", "j"), ("g",), ("g",))
    assert made.width == ("d", "d", "d")
    assert made.design.as_dict()["legs"] == {"n": "query", "m": "key", "g": "head 2", "j": "head 2", "d": 8}
    assert made.design.as_dict()["diagram"]["y"] == "A[g j n m] V[m g d] -> n g j d"
    assert made.sized({"g": 3, "d": 5}).legs["g"] == 3


def given(**more: Any) -> dict[str, Any]:
    return {
        "tensornet": 1,
        "name": "own",
        "legs": {"n": "query", "m": "key", "h": "head 2", "d": 4},
        "inputs": {"q": "n h d", "k": "m h d", "v": "m h d"},
        "diagram": {"A": {"softmax": "m", "of": "q[n h d] k[m h d] -> h n m"}, "y": "A[h n m] v[m h d] -> n h d"},
        "output": "y",
    } | more


def test_a_design_of_queries_keys_and_values_is_taken_as_it_is() -> None:
    design = ta.load(given())
    assert between(design).design is design


@pytest.mark.parametrize(
    ("design", "message"),
    [
        (
            given(inputs={"v": "m h d", "q": "n h d", "k": "m h d"}),
            "own: it does not weigh its last input by scores of the other two.",
        ),
        (
            given(diagram={**given()["diagram"], "y": "A[h n m] v[m h d] -> n d"}),
            "own: its output is [n d]; it must have the heads of the queries and the width of the values.",
        ),
        ("mhsa_core", "mhsa_core: without its projections it is not a valid design: there is no leg or setting 'f'."),
    ],
)
def test_designs_that_are_refused(design: Any, message: str) -> None:
    assert refusal(between, ta.load(design)) == message
