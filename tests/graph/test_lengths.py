"""Where the lengths of the sequence legs come from."""

from __future__ import annotations

import torch

import tensornet_attn as ta

NORMALISED_ONCE = {
    "tensornet": 1,
    "name": "normalised_once",
    "legs": {"n": "query", "m": "key", "f": 8},
    "inputs": {"x": "n f"},
    "diagram": {
        "z": {"layernorm": "f", "of": "x"},
        "A": {"softmax": "m", "of": "z[n f] z[m f] -> n m"},
        "y": "A[n m] z[m f] -> n f",
    },
    "output": "y",
}


def test_a_step_used_on_the_other_leg_gives_its_length() -> None:
    assert ta.check(NORMALISED_ONCE) == []
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    for causal in (False, True):
        module, reference = ta.compile(NORMALISED_ONCE, causal=causal), ta.reference(NORMALISED_ONCE, causal=causal)
        torch.testing.assert_close(module(x), reference(x))


def test_a_leg_that_nothing_measures_is_refused() -> None:
    steps = {"y": "x[n f] w[m] w[m] -> n f"}
    design = NORMALISED_ONCE | {"diagram": steps, "constants": {"w": {"legs": "m", "value": "ones"}}}
    (problem,) = ta.check(design)
    assert problem.message == "no input has the leg 'm', so its length is unknown."
