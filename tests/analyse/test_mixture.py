"""Weights of blended maps and priors of key components, against the formulas of the designs."""

from __future__ import annotations

import pytest
import torch

import tensornet_attn as ta
from tests.designs.cases import drawn

SIZES = {"f": 12, "h": 3}


def layer(name: str) -> torch.nn.Module:
    return drawn(ta.compile(ta.load(name, legs=SIZES), dtype=torch.float64))


@pytest.mark.parametrize("name", ["fmm1", "fmm2", "fmm1_causal", "linear2"])
def test_a_blended_map_is_the_sum_of_its_maps_times_their_weights(name: str) -> None:
    module, x = layer(name), torch.randn(2, 5, 12, dtype=torch.float64)
    maps, weights = ta.attention_maps(module, x), ta.mixture_weights(module)
    blend = maps.pop("A")
    parts = [
        found.values * (weights[f"{step} in A"].values[:, None, None] if weights else 1) for step, found in maps.items()
    ]
    torch.testing.assert_close(sum(parts), blend.values)
    torch.testing.assert_close(blend.values, module.capture(x, "A"))


def test_a_normalised_blend_has_weights_and_one_map() -> None:
    module = layer("fmm1_rows")
    assert list(ta.attention_maps(module, torch.randn(1, 5, 12).double())) == ["near", "far1", "A"]
    weights = ta.mixture_weights(module)
    torch.testing.assert_close(weights["far1 in A"].values, module.w2.detach().sigmoid())


def test_maps_that_are_mixed_over_heads() -> None:
    module, x = layer("talking_heads"), torch.randn(1, 5, 12).double()
    maps, (weights,) = ta.attention_maps(module, x), ta.mixture_weights(module).values()
    assert weights.legs == ("h", "e")
    mixed = torch.einsum("he,bhnm->benm", weights.values, maps["A"].values)
    torch.testing.assert_close(mixed, maps["U"].values)


@pytest.mark.parametrize("name", ["mgk", "smgk", "mgk_mqa", "softmax_mgk"])
def test_a_learned_prior(name: str) -> None:
    module = layer(name)
    (prior,) = ta.mixture_weights(module).values()
    assert prior.legs == ("h", "r")
    torch.testing.assert_close(prior.values, module.logpi.detach().softmax(-1))


def test_a_prior_that_a_state_holds() -> None:
    module = layer("mgk_em")
    torch.testing.assert_close(ta.mixture_weights(module)["prior of S"].values, module.state_dict()["pi"])


def test_weights_that_depend_on_the_inputs_and_designs_without_any() -> None:
    assert ta.mixture_weights(layer("mhsa")) == {}
    assert ta.mixture_weights(ta.compile(ta.load("mgk_hard", legs=SIZES))) == {}
