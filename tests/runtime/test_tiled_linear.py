"""Linear attention in tiles against the same by plain operations: values and gradients in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from tensornet_attn.runtime import maps, tiled_linear
from tensornet_attn.runtime.linear import Term, linear_attention, linear_attentions
from tensornet_attn.runtime.tiled_linear import LinearKernel
from tests.agreement import agree

ELU1, NEGATIVE, TANH = (maps.elu1, maps.elu1, 0.0), (maps.elu1_neg, maps.elu1_neg, 0.5), (torch.tanh, torch.tanh, None)
OTHER = (torch.exp, None, 0.25)  # a map whose slope autograd finds, and none
KERNELS = [(ELU1,), (TANH,), (OTHER,), (ELU1, NEGATIVE, TANH), (TANH, OTHER)]
SHAPES = [(2, 3, 7, 5, 4, 3), (1, 1, 1, 1, 1, 1), (2, 2, 130, 131, 3, 5), (1, 5, 65, 3, 2, 2)]  # batch h n m d e


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled_linear, "LINEAR_TILE", 64)
    monkeypatch.setattr(tiled_linear, "LINEAR_ROWS", 2)
    monkeypatch.setattr(tiled_linear, "LINEAR_LEAST", 0)


def drawn(batch: int, h: int, n: int, m: int, d: int, e: int) -> list[Tensor]:
    """q, k and v as views of rows with their heads side by side."""
    made = [torch.randn(batch, rows, h, width, dtype=torch.float64) for rows, width in ((n, d), (m, d), (m, e))]
    return [x.requires_grad_().transpose(1, 2) for x in made]


def plain(kernels: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
    """All scores."""
    total: Any = 0
    for query, key, eps in kernels:
        scores = (q if query is None else query(q)) @ (k if key is None else key(k)).mT
        scores = scores if keep is None else torch.where(keep[:, None, None], scores, 0)
        total = total + (scores if eps is None else maps.divided(scores, scores.sum(-1, keepdim=True) + eps)) @ v
    return total


def called(kernels: Any, q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None = None) -> Tensor:
    return linear_attentions([LinearKernel(q, k, *kernel) for kernel in kernels], v, None, keep, 1, 1)


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_all_scores(kernels: Any, shape: Any) -> None:
    torch.manual_seed(0)
    given = drawn(*shape)
    for keep in (None, torch.rand(shape[0], shape[3]) < 0.6):
        assert tiled_linear.tiled_takes(None, *given)
        agree(called(kernels, *given, keep), plain(kernels, *given, keep), given)
        with torch.no_grad():
            torch.testing.assert_close(called(kernels, *given, keep), plain(kernels, *given, keep))


def test_the_same_queries_in_two_kernels_with_other_keys() -> None:
    torch.manual_seed(0)
    q, k, v = drawn(2, 3, 7, 5, 4, 3)
    other = torch.randn_like(k).requires_grad_()
    found = linear_attentions([LinearKernel(q, k, *ELU1), LinearKernel(q, other, *NEGATIVE)], v, None, None, 1, 1)
    agree(found, plain([ELU1], q, k, v) + plain([NEGATIVE], q, other, v), [q, k, other, v])
    found = linear_attention([Term(k, k)], v, None, None, 1, 1, maps=(maps.elu1, torch.exp))
    agree(found, plain([(maps.elu1, torch.exp, 0.0)], k, k, v), [k, v])


def test_second_derivatives() -> None:
    torch.manual_seed(0)
    given = [x.detach().requires_grad_() for x in drawn(1, 2, 3, 4, 2, 2)]
    keep = torch.tensor([[True, False, True, True]])
    kernels = (ELU1, TANH)
    assert torch.autograd.gradgradcheck(lambda *x: called(kernels, *x, keep), given)


def test_many_gradients_at_once() -> None:
    given = [x.detach().requires_grad_() for x in drawn(1, 2, 3, 4, 2, 2)]
    y, g = called([ELU1, TANH], *given), torch.randn(5, 1, 2, 3, 2, dtype=torch.float64)
    found = torch.autograd.grad(y, given, g, is_grads_batched=True, retain_graph=True)
    for i, one in enumerate(g):
        torch.testing.assert_close([x[i] for x in found], [*torch.autograd.grad(y, given, one, retain_graph=True)])


def test_only_wanted_gradients() -> None:
    q, k, v = (x.detach() for x in drawn(1, 2, 3, 4, 2, 2))
    v.requires_grad_()
    (found,) = torch.autograd.grad(called([ELU1], q, k, v).sum(), [v])
    (wanted,) = torch.autograd.grad(plain([ELU1], q, k, v).sum(), [v])
    torch.testing.assert_close(found, wanted)


def test_hidden_keys_reach_no_gradient() -> None:
    q, k, v = (x.detach().clone() for x in drawn(1, 2, 3, 4, 2, 2))
    keep = torch.tensor([[True, False, True, True]])
    k[..., 1, :] = math.nan
    leaves = [x.requires_grad_() for x in (q, k, v)]
    found = torch.autograd.grad(called([ELU1, TANH], *leaves, keep).sum(), leaves)
    assert all(x.isfinite().all() for x in found)
    assert not found[1][..., 1, :].any()
    assert not found[2][..., 1, :].any()


def test_rows_whose_sum_is_zero_are_zero() -> None:
    q, k, v = drawn(1, 2, 3, 4, 2, 2)
    y = called([ELU1], q, k, v, torch.zeros(1, 4, dtype=torch.bool))
    found = torch.autograd.grad(y.sum(), [q, k, v])
    assert not any(x.any() for x in (y, *found))


def test_other_numbers_of_dimensions() -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 2, 2, rows, 3, dtype=torch.float64, requires_grad=True) for rows in (5, 4, 4))
    for batch in (0, 1, 2, 3, 4):
        found = linear_attentions([LinearKernel(q, k, *ELU1)], v, None, None, batch, 4 - batch)
        agree(found, plain([ELU1], q, k, v), [q, k, v])
    flat = [x[0, 0, 0, 0].detach().requires_grad_() for x in (q, k, v)]
    agree(linear_attentions([LinearKernel(*flat[:2], *ELU1)], flat[2]), plain([ELU1], *flat), flat)


def test_transforms_take_plain_operations() -> None:
    given = [x.detach() for x in drawn(2, 2, 3, 4, 2, 2)]
    found = torch.func.vmap(lambda *x: called([ELU1], *x))(*(x[:, None] for x in given))
    torch.testing.assert_close(found[:, 0], plain([ELU1], *given))
    tangents = [torch.randn_like(x) for x in given]
    pair = [torch.func.jvp(lambda *x, f=f: f([ELU1], *x), tuple(given), tuple(tangents))[1] for f in (called, plain)]
    torch.testing.assert_close(*pair)
