"""Hand-written layers of all designs against the reference, in float64: values and gradients, causal and not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import tensornet_attn as ta
from tensornet_attn.bench.baselines import LAYERS, layer_of
from tensornet_attn.bench.baselines.attend import attention_map, eager, sdpa
from tests.designs.case import N
from tests.designs.cases import CASES, compiled, inputs_of, normal, same

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
    assert sorted(LAYERS) == ta.list_designs()


@pytest.mark.rotated
@pytest.mark.parametrize(("name", "causal"), EACH)
def test_a_layer_equals_the_reference(name: str, causal: bool | None) -> None:
    reference = compiled(name, "reference", causal)
    agree(by_hand(name, causal, reference.state_dict()), reference, inputs_of(name))


@pytest.mark.parametrize(("name", "causal"), ONE_CALL)
def test_a_layer_by_sdpa_equals_the_reference(name: str, causal: bool | None) -> None:
    reference = compiled(name, "reference", causal)
    agree(by_hand(name, causal, reference.state_dict(), sdpa), reference, inputs_of(name))


@pytest.mark.parametrize("attend", [eager, sdpa])
def test_a_longer_context(attend: Callable) -> None:
    reference, (x, context) = compiled("transformer_xl", "reference", True), [*inputs_of("transformer_xl", batch=2)] * 2
    layer = by_hand("transformer_xl", True, reference.state_dict(), attend)
    agree(layer, reference, [x[:, : N - 2], context])


@pytest.mark.parametrize("name", NOISY)
def test_noise_stands_where_the_design_has_it(name: str) -> None:
    reference, (x,) = compiled(name, "reference", False), inputs_of(name)
    count = CASES[name].legs["k" if name == "gfish" else "h"]
    noise = {"eps": normal(torch.Generator().manual_seed(2), len(x), count, N, N)}
    layer = by_hand(name, False, reference.state_dict())
    agree(layer, reference, [x], noise=noise)
    assert torch.equal(layer(x), layer(x))
    layer.train()
    assert not torch.equal(layer(x), layer(x))
    torch.manual_seed(3)
    drawn = torch.randn(len(x), count, N, N, dtype=torch.float64)
    torch.manual_seed(3)
    same(layer(x), layer(x, noise={"eps": drawn}), "output with noise drawn")


@pytest.mark.parametrize("causal", [False, True])
def test_the_prior_of_a_training_call(causal: bool) -> None:
    reference, (x,) = compiled("mgk_em", "reference", causal).train(), inputs_of("mgk_em")
    layer = by_hand("mgk_em", causal, reference.state_dict()).train()
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
