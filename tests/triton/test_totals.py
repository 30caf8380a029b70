"""Sums of tensors, each times a weight or not, in one pass: values and gradients of the plain sum."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tensornet_attn as ta
from tensornet_attn.runtime.products import weighted_total
from tensornet_attn.runtime.triton.kernels.totals import fits_totals, triton_weighted_total
from tests.triton.agreement import agree, drawn

F64 = torch.float64


def given(shape: tuple[int, ...], weights: list[tuple[int, ...] | None]) -> tuple[list[Tensor], list[Tensor | None]]:
    values = [drawn(*shape, dtype=F64) for _ in weights]
    return values, [None if own is None else drawn(1, *own, dtype=F64)[0].detach().requires_grad_() for own in weights]


@pytest.mark.parametrize(
    ("shape", "weights"),
    [
        ((2, 5, 3, 4), [(3, 1), None, (3, 1)]),
        ((5, 3, 4), [(3, 1), (3, 4)]),
        ((2, 700, 3, 4), [(4,), None, (1, 3, 1), (3, 4)]),
        ((2, 3, 700), [None, (700,)]),
        ((1, 9), [(1,), (9,)]),
        ((300, 3), [(), None]),
    ],
)
def test_totals_and_their_gradients(shape, weights) -> None:
    values, scales = given(shape, weights)
    assert fits_totals(values, scales)
    operands = [x for x in (*values, *scales) if x is not None]
    agree(triton_weighted_total(values, scales), weighted_total(values, scales), operands)


def test_weights_alone_and_values_alone() -> None:
    for frozen in (0, 1):
        values, scales = given((4, 3, 5), [(3, 1), (3, 1)])
        for x in scales if frozen else values:
            x.requires_grad_(False)
        agree(triton_weighted_total(values, scales), weighted_total(values, scales), values if frozen else scales)


def test_what_kernels_do_not_compute_is_computed_by_torch() -> None:
    values, scales = given((4, 3, 5), [(3, 1), (3, 1)])
    assert not fits_totals([values[0], values[1].float()], scales)
    assert not fits_totals(values * 3, scales * 3)
    assert not fits_totals(values, [drawn(4, 1, 1, dtype=F64), torch.zeros(3, 2, dtype=F64)[:, :1]])
    agree(triton_weighted_total(values * 3, scales * 3), weighted_total(values * 3, scales * 3), [*values, *scales])


def test_second_derivatives() -> None:
    values, scales = given((4, 3, 5), [(3, 1), None])
    assert torch.autograd.gradgradcheck(
        lambda a, b, w: triton_weighted_total([a, b], [w, None]), (*values, scales[0]), raise_exception=True
    )


def test_second_derivatives_of_values_in_another_memory_order() -> None:
    a, b = (drawn(3, 4, 5, dtype=F64) for _ in "ab")
    w = drawn(3, 1, dtype=F64)

    def total(function):  # type: ignore[no-untyped-def]
        y = function([a.transpose(0, 1), b.transpose(0, 1)], [w, None])
        (found,) = torch.autograd.grad(y.square().sum(), [w], create_graph=True)
        return [y, *torch.autograd.grad(found.sum(), [a, b, w])]

    for found, wanted in zip(total(triton_weighted_total), total(weighted_total), strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_blend_of_maps_is_one_pass() -> None:
    design = ta.load("fmm2", legs={"f": 8, "h": 2})
    layer = ta.compile(design, "triton", dtype=F64)
    assert layer.source.count("[None, blend2[:, None], blend2[:, None]]") == 0  # blend1 is not multiplied with V
    assert layer.source.count("triton_weighted_total(\n") == 1
    plain = ta.reference(design, dtype=F64)
    plain.load_state_dict(layer.state_dict())
    x = torch.randn(2, 9, 8, dtype=F64, requires_grad=True)
    agree(layer(x), plain(x), [x])
