"""Calls of regions that need more than plain tensors: saved-tensor hooks, views with a negative bit, meta, no batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import tensornet_attn as ta
from tensornet_attn.runtime.operations import is_plain
from tests.triton.regions import F64, draw

LEGS = {"f": 16, "h": 2}


def layers() -> tuple[nn.Module, nn.Module]:
    """The same layer by kernels and by torch."""
    design = ta.load("mhsa", legs=LEGS)
    ours, torchs = ta.compile(design, "triton", dtype=F64), ta.compile(design, "torch", dtype=F64)
    torchs.load_state_dict(ours.state_dict())
    return ours, torchs


def gradients(layer: nn.Module, x: Tensor) -> list[Tensor]:
    return [*torch.autograd.grad(layer(x).square().sum(), [x, *layer.parameters()])]


def test_activation_checkpointing() -> None:
    ours, torchs = layers()
    x = draw(2, 9, 16, seed=0).requires_grad_()
    y = checkpoint(ours, x, use_reentrant=False)
    found = torch.autograd.grad(y.square().sum(), [x, *ours.parameters()])
    for one, other in zip(found, gradients(torchs, x), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", ["mhsa", "epa", "sigma_moe"])
def test_several_gradients_at_once(name: str) -> None:
    ours = ta.compile(ta.load(name, legs={"f": 16} | ({} if name == "sigma_moe" else {"h": 2})), "triton", dtype=F64)
    x = draw(2, 9, 16, seed=0).requires_grad_()
    y, leaves = ours(x), [x, *ours.parameters()]
    many = draw(3, 2, 9, 16, seed=1)
    one_by_one = zip(*(torch.autograd.grad(y, leaves, one, retain_graph=True) for one in many), strict=True)
    for found, wanted in zip(torch.autograd.grad(y, leaves, many, is_grads_batched=True), one_by_one, strict=True):
        torch.testing.assert_close(found, torch.stack(wanted), rtol=0, atol=1e-12)


BY_FUNC = ("linear", "linear, masked", "retnet", "fast_weight2", "gated_deltanet")  # kernels of a kind each


@pytest.mark.parametrize("name", ["epa", "sigma_moe", *BY_FUNC])
def test_gradients_by_torch_func(name: str) -> None:
    name, _, masked = name.partition(", ")
    legs = {"f": 16} | ({"h": 2} if "h" in ta.load(name).legs else {})
    ours = ta.compile(ta.load(name, legs=legs), "triton", dtype=F64)
    x, weights = draw(1, 5, 16, seed=0), {key: p for key, p in ours.named_parameters() if p.requires_grad}
    options = {"mask": draw(5, 5, seed=1) > 0} if masked else {}

    def loss(own: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(ours, own, (x,), options).square().sum()

    found, many = torch.func.grad(loss)(weights, x), torch.func.vmap(torch.func.grad(loss), (None, 0))(weights, x[None])
    wanted = torch.autograd.grad(ours(x, **options).square().sum(), [*weights.values()])
    for one, another, other in zip(found.values(), many.values(), wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-12)
        torch.testing.assert_close(another[0], other, rtol=0, atol=1e-12)


def test_hooks_unpack_each_tensor_once() -> None:
    ours, _ = layers()
    seen: list[int] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: seen.append(id(x)) or x):  # type: ignore[func-returns-value]
        y = ours(draw(2, 9, 16, seed=0).requires_grad_())
    y.sum().backward()
    assert seen
    assert len(seen) == len({*seen})


def test_tensors_without_their_own_values_are_not_plain() -> None:
    z = torch.complex(draw(2, 9, 16, seed=0), draw(2, 9, 16, seed=1))
    negative = z.conj().imag
    assert negative.is_neg()
    assert [is_plain([x]) for x in (z.imag, negative, torch.empty(2, device="meta"))] == [True, False, False]
    ours, torchs = layers()
    torch.testing.assert_close(ours(negative), torchs(negative), rtol=0, atol=1e-12)


def test_shapes_on_meta() -> None:
    ours, _ = layers()
    assert ours.to("meta")(torch.empty(2, 9, 16, dtype=F64, device="meta")).shape == (2, 9, 16)


def test_no_sequence_with_a_mask_of_keys() -> None:
    ours, _ = layers()
    assert ours(draw(0, 9, 16, seed=0), key_mask=torch.ones(0, 9, dtype=torch.bool)).shape == (0, 9, 16)


def test_a_mask_whose_rows_are_far_apart() -> None:
    ours, torchs = layers()
    mask = torch.empty(40, 2**26, dtype=torch.bool)[:, :40]  # the last row begins after 2^31 elements
    mask.copy_(torch.ones(40, 40).tril() > 0)
    x = draw(1, 40, 16, seed=0)
    torch.testing.assert_close(ours(x, mask=mask), torchs(x, mask=mask), rtol=0, atol=1e-12)
