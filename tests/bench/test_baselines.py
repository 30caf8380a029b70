"""Hand-written layers of all designs against the reference, in float64: values and gradients, causal and not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tensornet_attn.bench.baselines import LAYERS, layer_of
from tensornet_attn.bench.baselines.layer import attention_map, eager, sdpa
from tensornet_attn.bench.baselines.lfish import CHUNK
from tensornet_attn.spec.library import family_of
from tests.designs import cases
from tests.designs.case import N
from tests.designs.cases import compiled, inputs_of, normal, same

CASES = {name: case for name, case in cases.CASES.items() if name in LAYERS}
EACH = [(name, causal) for name, case in CASES.items() for causal in case.causal]
ONE_CALL = [(name, causal) for name, causal in EACH if not LAYERS[name][0].mixed]
NOISY = [name for name in CASES if LAYERS[name][1].get("noise")]


def by_hand(name: str, causal: bool | None, weights: dict[str, Tensor], attend: Callable = eager) -> nn.Module:
    case = CASES[name]
    design = ta.load(name, legs=case.legs, settings=case.settings)
    layer = layer_of(name, {**design.legs, **design.settings}, bool(causal), attend).double()
    layer.load_state_dict(weights)
    return layer.eval()


def outcome(module: nn.Module, inputs: list[Tensor], **options: object) -> dict[str, Tensor]:
    """Output, and gradients of a random projection of it, by name."""
    xs = [x.clone().requires_grad_() for x in inputs]
    y = module(*xs, **options)
    (y * normal(torch.Generator().manual_seed(7), *y.shape)).sum().backward()
    leaves = {f"gradient of input {place}": x for place, x in enumerate(xs)}
    leaves |= {f"gradient of {key}": value for key, value in module.named_parameters()}
    return {"output": y} | {key: torch.zeros_like(x) if x.grad is None else x.grad for key, x in leaves.items()}


def agree(mine: nn.Module, reference: nn.Module, inputs: list[Tensor], **options: object) -> None:
    got, want = outcome(mine, inputs, **options), outcome(reference, inputs, **options)
    assert got.keys() == want.keys()
    for key, value in want.items():
        same(got[key], value, key)


def test_every_shipped_design_has_a_hand_written_layer() -> None:
    """Or, in the family of today's layers, one that somebody else wrote: tests/parity."""
    steps_too = {"gated_deltanet"}  # whose step is compared
    assert sorted(LAYERS) == [name for name in ta.list_designs() if family_of(name) != "modern" or name in steps_too]


@pytest.mark.parametrize(("name", "causal"), EACH)
def test_a_layer_equals_the_reference(name: str, causal: bool | None) -> None:
    reference = compiled(name, "reference", causal)
    agree(by_hand(name, causal, reference.state_dict()), reference, inputs_of(name))


@pytest.mark.parametrize(("name", "causal"), ONE_CALL)
def test_a_layer_by_sdpa_equals_the_reference(name: str, causal: bool | None) -> None:
    reference = compiled(name, "reference", causal)
    agree(by_hand(name, causal, reference.state_dict(), sdpa), reference, inputs_of(name))


@pytest.mark.parametrize(("name", "attend"), [("transformer_xl", eager), ("transformer_xl", sdpa), ("thsa_xl", eager)])
def test_a_longer_context(name: str, attend: Callable) -> None:
    reference, (x, context) = compiled(name, "reference", True), [*inputs_of(name, batch=2)] * 2
    layer = by_hand(name, True, reference.state_dict(), attend)
    agree(layer, reference, [x[:, : N - 2], context])


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", NOISY)
def test_noise_stands_where_the_design_has_it(name: str, causal: bool) -> None:
    reference, (x,) = compiled(name, "reference", causal), inputs_of(name)
    design = ta.load(name, legs=CASES[name].legs)
    sizes = {**design.legs, "n": N, "m": N}
    shapes = {key: [len(x), *(sizes[leg] for leg in drawn.legs.split())] for key, drawn in design.noise.items()}
    generator = torch.Generator().manual_seed(2)
    layer = by_hand(name, causal, reference.state_dict())
    agree(layer, reference, [x], noise={key: normal(generator, *shape) for key, shape in shapes.items()})
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    torch.manual_seed(3)
    noise = {key: torch.randn(shape, dtype=torch.float64) for key, shape in shapes.items()}
    torch.manual_seed(3)
    same(layer(x), layer(x, noise=noise), "output with noise drawn")


LONG = [("mhsa_poly", False), *((name, causal) for name in ("hard_lfish", "hard_glfish") for causal in (False, True))]


@pytest.mark.parametrize(("name", "causal"), LONG)
def test_more_positions_than_a_chunk_or_features(name: str, causal: bool) -> None:
    reference = compiled(name, "reference", causal)
    x = normal(torch.Generator().manual_seed(1), 1, CHUNK + 3, CASES[name].legs["f"])
    agree(by_hand(name, causal, reference.state_dict()), reference, [x])


@pytest.mark.parametrize("name", ["mgk_em", "smgk_em"])
@pytest.mark.parametrize("causal", [False, True])
def test_the_prior_of_a_training_call(causal: bool, name: str) -> None:
    reference, (x,) = compiled(name, "reference", causal).train(), inputs_of(name)
    layer = by_hand(name, causal, reference.state_dict()).train()
    same(layer(x), reference(x), "output")
    same(layer.pi, reference.pi, "prior")


def test_a_map_sees_what_it_may_see() -> None:
    maps = attention_map(torch.zeros(4, 6), True, (2, 1))
    assert (maps > 0).int().tolist() == [
        [1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0],
        [0, 0, 1, 1, 1, 0],
        [0, 0, 0, 1, 1, 1],
    ]
