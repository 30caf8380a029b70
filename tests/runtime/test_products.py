"""Products with weights by oneDNN against the same in float64, and the calls that keep the plain product."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

import tensornet_attn as ta
from tensornet_attn.runtime import products
from tensornet_attn.runtime.products import (
    PROJECTED,
    onednn_takes,
    projected,
    projected_by_each,
    weighted_sum,
    wide_products,
)
from tests.runtime.test_band import Live

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch without oneDNN")
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a processor on which oneDNN is faster, and for small products too."""
    monkeypatch.setattr(products, "onednn_from", lambda: 1)
    monkeypatch.setattr(products, "NARROW_PARTS", 40 / torch.get_num_threads())


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize(
    ("lead", "shape"),
    [((7,), (40, 33)), ((2, 5), (40, 48)), ((2, 3, 23), (129, 140)), ((1, 1), (40, 33)), ((2,), (530, 40))],
)
def test_product_and_gradients(lead: tuple[int, ...], shape: tuple[int, int], exact: bool) -> None:
    given = drawn((*lead, shape[0]), shape)
    assert onednn_takes(*given, exact)
    wide = [x.detach().double().requires_grad_() for x in given]
    y, wanted = projected(*given, exact), wide[0] @ wide[1]
    torch.testing.assert_close(y.double(), wanted, **CLOSE)
    g = torch.randn_like(wanted)
    found = torch.autograd.grad(y, given, g.float())
    for one, other in zip(found, torch.autograd.grad(wanted, wide, g), strict=True):
        torch.testing.assert_close(one.double(), other, **CLOSE)
    with torch.no_grad():
        torch.testing.assert_close(projected(*given, exact), y)


@pytest.mark.parametrize("length", [512, 513])
def test_sums_in_parts_are_rounded_less(length: int) -> None:
    """As exact products, and those of more than 512 numbers, are."""
    x, weight = drawn((64, length), (length, 64))
    with torch.no_grad():
        wanted, whole = (
            x.double() @ weight.double(),
            torch.ops.mkldnn._linear_pointwise(x, weight.mT, None, "none", [], ""),
        )
        errors = [(y - wanted).norm() for y in (projected(x, weight, length == 512), whole)]
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("turned", [False, True])
def test_wide_products(batch: int, turned: bool) -> None:
    """Of matrices one after another; the gradient of a single one is laid out as it is."""
    given = drawn((batch, 130, 44) if turned else (batch, 44, 130), (batch, 130, 50))
    wide = [x.detach().double().requires_grad_() for x in given]
    y, wanted = (wide_products(x.mT if turned else x, y) for x, y in (given, wide))
    torch.testing.assert_close(y.double(), wanted, **CLOSE)
    g = torch.randn(wanted.shape, dtype=torch.float64)
    found = torch.autograd.grad(y, given, g.float())
    for one, other in zip(found, torch.autograd.grad(wanted, wide, g), strict=True):
        torch.testing.assert_close(one.double(), other, **CLOSE)
        assert batch > 1 or one.is_contiguous()


def test_weights_of_experts_are_not_copied() -> None:
    x, weights = drawn((2, 3, 64), (5, 64, 32))
    with torch.no_grad(), Live() as live:
        y = projected_by_each(x, weights)
    assert live.most < weights.untyped_storage().nbytes()
    torch.testing.assert_close(y, torch.einsum("bnf,efl->bnel", x, weights).detach(), **CLOSE)


@pytest.mark.parametrize("wanted", [0, 1])
def test_gradient_of_one_operand(wanted: int) -> None:
    given = drawn((6, 40), (40, 33))
    given[1 - wanted].requires_grad_(False)
    y = projected(*given)
    (found,) = torch.autograd.grad(y, given[wanted], torch.ones_like(y))
    (other,) = torch.autograd.grad(given[0] @ given[1], given[wanted], torch.ones_like(y))
    torch.testing.assert_close(found, other, **CLOSE)


def test_second_derivatives_and_batches_of_gradients() -> None:
    x, weight = drawn((6, 40), (40, 33))

    def penalty(product: Any) -> Tensor:
        (first,) = torch.autograd.grad(product(x, weight).square().sum(), x, create_graph=True)
        return first.square().sum()

    pair = [torch.autograd.grad(penalty(f), (x, weight)) for f in (projected, torch.matmul)]
    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-3)
    y = projected(x, weight.detach())
    (first,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), x)
    assert second.shape == x.shape
    many = torch.randn(3, 6, 33)
    pair = [
        torch.autograd.grad(f(x, weight), (x, weight), many, is_grads_batched=True) for f in (projected, torch.matmul)
    ]
    torch.testing.assert_close(*pair, **CLOSE)


def test_second_derivatives_of_a_weight_that_is_used_twice() -> None:
    x, weight = drawn((6, 40), (40, 40))

    def penalty(product: Any) -> Tensor:
        y = product(torch.tanh(product(x, weight)), weight)
        (first,) = torch.autograd.grad(y.square().sum(), weight, create_graph=True)
        return first.square().sum()

    pair = [torch.autograd.grad(penalty(f), (x, weight)) for f in (projected, torch.matmul)]
    torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-1)


def test_a_row_that_is_not_a_number_stays_alone() -> None:
    x, weight = drawn((6, 40), (40, 33))
    bad = x.detach().clone()
    bad[2] = float("nan")
    found = projected(bad, weight.detach())
    assert found[2].isnan().all()
    rest = [0, 1, 3, 4, 5]
    torch.testing.assert_close(found[rest], (x @ weight).detach()[rest], **CLOSE)


def test_calls_of_the_plain_product(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight = drawn((6, 40), (40, 33))
    assert onednn_takes(x, weight)
    assert not onednn_takes(x.double(), weight.double())
    assert not onednn_takes(x.bfloat16(), weight)
    assert not onednn_takes(x.expand(2, 6, 40), weight)
    assert not onednn_takes(x, weight[:, :8])
    assert not onednn_takes(x, weight.expand(2, 40, 33))
    assert not onednn_takes(x.to("meta"), weight.to("meta"))
    assert onednn_takes(x, weight, exact=True)
    monkeypatch.setattr(products, "onednn_from", lambda: PROJECTED)  # parts save nothing
    assert onednn_takes(x, weight)
    assert not onednn_takes(x, weight, exact=True)
    assert not onednn_takes(*drawn((6, 513), (513, 33)))
    monkeypatch.undo()
    with torch.autocast("cpu", torch.bfloat16):
        assert not onednn_takes(x, weight)
        assert projected(x, weight).dtype == torch.bfloat16
    with FlopCounterMode(display=False) as counter:
        projected(x, weight)
    assert counter.get_total_flops() == 2 * 6 * 40 * 33
    torch.testing.assert_close(torch.func.vmap(projected, (0, None))(x[:, None], weight)[:, 0], x @ weight, **CLOSE)
    tangent = torch.func.jvp(lambda x: projected(x, weight), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(tangent, torch.ones_like(x) @ weight, **CLOSE)


@pytest.mark.parametrize("name", ["linear", "mhsa", "thsa_elu"])
def test_a_layer(name: str) -> None:
    """A layer whose products oneDNN computes, with a mask of keys, against the reference in float64."""
    design = ta.load(name, legs={"f": 64, "h": 2})
    layer, oracle = ta.compile(design, "torch"), ta.compile(design, "reference", dtype=torch.float64)
    layer.load_state_dict(oracle.state_dict())
    x = torch.randn(2, 43, 64)
    keep = torch.rand(2, 43) < 0.7
    found, wanted = layer(x, key_mask=keep), oracle(x.double(), key_mask=keep)
    torch.testing.assert_close(found.double(), wanted, **CLOSE)
    g = torch.randn_like(wanted)
    pair = [torch.autograd.grad(y, [*m.parameters()], g.to(y.dtype)) for y, m in ((found, layer), (wanted, oracle))]
    for one, other in zip(*pair, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dim", [-3, -2])
@pytest.mark.parametrize("lead", [(700,), (5, 131)])
def test_weighted_sum(dim: int, lead: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Part by part, with a part that is shorter than the others, against the whole product."""
    monkeypatch.setattr(products, "SMALL_CALL", 1)
    monkeypatch.setattr(products, "MAP_PART", 200)
    x, weight = drawn((*lead, 2, 3, 5), (2, 3, 1), dtype=torch.float64)

    def penalty(made: Any) -> Tensor:
        y = made(x, weight)
        (first,) = torch.autograd.grad(y.square().sum(), weight, create_graph=True)
        return first.square().sum()

    def whole(x: Tensor, weight: Tensor) -> Tensor:
        return (x * weight).sum(dim)

    def found(x: Tensor, weight: Tensor) -> Tensor:
        return weighted_sum(x, weight, dim)

    torch.testing.assert_close(found(x, weight), whole(x, weight))
    g = torch.randn_like(whole(x, weight))
    pair = [torch.autograd.grad(f(x, weight), (x, weight), g) for f in (found, whole)]
    torch.testing.assert_close(*pair)
    pair = [torch.autograd.grad(penalty(f), (x, weight)) for f in (found, whole)]
    torch.testing.assert_close(*pair)
    pair = [torch.autograd.grad(f(x, weight), weight, g[None], is_grads_batched=True) for f in (found, whole)]
    torch.testing.assert_close(*pair)
    torch.testing.assert_close(torch.func.vmap(found, (0, None))(x, weight), whole(x, weight))
    with torch.no_grad():
        torch.testing.assert_close(found(x.float(), weight.float()), whole(x, weight).float())
        half = found(x.bfloat16(), weight.bfloat16())
        torch.testing.assert_close(half, whole(x, weight).bfloat16(), rtol=2e-2, atol=2e-2)
