"""Chunked linear attention by kernels in the interpreter: values and gradients of the plain one, at every option."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tensornet_attn.runtime.linear import Term, linear_attention
from tensornet_attn.runtime.triton.kernels.linear import triton_linear, triton_linear_attention, triton_linear_gradients
from tensornet_attn.runtime.triton.kernels.masked import triton_masked_linear
from tests.triton.agreement import SIZES, agree, drawn

LENGTHS = [(1, 1), (17, 17), (64, 64), (130, 130), (5, 40), (40, 5)]
SHAPES = [(17, 17, 3, 16), (64, 64, 16, 1), (130, 130, 1, 3), (5, 40, 16, 40), (40, 5, 64, 3)]  # n, m, widths


def plain(n: int, m: int, d: int, e: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    """Queries, keys and values; scores are positive, as feature maps make them."""
    q, k = (drawn(1, 1, length, d, dtype=dtype, positive=True) for length in (n, m))
    return [q, k, drawn(1, 1, m, e, dtype=dtype)]


def both(operands: list[Tensor], *options: Any, **more: Any) -> None:
    """The same values and gradients from kernels and tensor code."""
    q, k, v = operands
    found, wanted = (f([Term(q, k)], v, *options, **more) for f in (triton_linear_attention, linear_attention))
    agree(found, wanted, operands)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("n", "m", "d", "e"), SHAPES)
def test_values_and_gradients(n: int, m: int, d: int, e: int, causal: bool) -> None:
    both(plain(n, m, d, e), eps=0.25, causal=causal)
    both(plain(n, m, d, e), normalize=False, causal=causal)


@pytest.mark.parametrize("shape", [(1, 12), (9, 1), (1, 1, 12)])
def test_a_mask_with_one_row_or_one_column(shape: tuple[int, ...]) -> None:
    mask = torch.rand(*shape, generator=torch.Generator().manual_seed(0)) < 0.6
    both(plain(9, 12, 3, 5), mask, None, 1, 1, 0.25)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize(("n", "d", "e"), SIZES)
def test_every_size(n: int, d: int, e: int, dtype: torch.dtype) -> None:
    both(plain(n, n, d, e, dtype), eps=0.25, causal=bool((d + e + n) % 2))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("causal", [False, True])
def test_lower_precision(causal: bool, dtype: torch.dtype) -> None:
    both(plain(40, 40, 16, 3, dtype), causal=causal)
    both(plain(40, 40, 16, 3, dtype), causal=causal, normalize=False)


@pytest.mark.parametrize("causal", [False, True])
def test_a_key_mask(causal: bool) -> None:
    keep = torch.rand(1, 20, generator=torch.Generator().manual_seed(0)) < 0.6
    for mask in (keep, torch.zeros_like(keep)):
        both(plain(20, 20, 3, 3), key_mask=mask, batch=1, heads=1, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize(("n", "m", "d", "e"), [(9, 9, 3, 3), (5, 70, 16, 3), (70, 5, 3, 17)])
def test_masks(n: int, m: int, d: int, e: int, shape: tuple[int, ...], causal: bool) -> None:
    """Of booleans and of numbers, beside masks of keys; the first query sees nothing."""
    q, k, v = (drawn(2, 3, length, width, positive=True) for length, width in ((n, d), (m, d), (m, e)))
    draw = torch.Generator().manual_seed(n)
    mask, keys = torch.rand(*shape, n, m, generator=draw) < 0.5, torch.rand(2, m, generator=draw) < 0.8
    mask[..., :1, :] = False
    if shape:
        mask = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    for eps, normalize in ((0.25, True), (0.0, False)):
        both([q, k, v], mask, None if shape else keys, 1, 1, eps, normalize, causal)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_mask_in_lower_precision(dtype: torch.dtype) -> None:
    mask = torch.rand(40, 40, generator=torch.Generator().manual_seed(0)) < 0.5
    both(plain(40, 40, 16, 3, dtype), mask, None, 1, 1)


def test_the_operations_of_masks_as_torch_checks_them() -> None:
    q, k, v = plain(6, 6, 3, 2, torch.float32)
    mask = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
    for normalize in (True, False):
        torch.library.opcheck(triton_masked_linear, (q, k, v, mask, True, normalize, 0.5))


@pytest.mark.slow
def test_gradients_of_masks_against_differences() -> None:
    operands, mask = [drawn(2, 2, positive=True), drawn(3, 2, positive=True), drawn(3, 1)], torch.eye(2, 3) == 0

    def function(*given: Tensor) -> Tensor:
        return triton_linear_attention([Term(*given[:2])], given[2], mask, eps=0.5)

    assert torch.autograd.gradcheck(function, operands, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, operands, fast_mode=True)


@pytest.mark.parametrize("causal", [False, True])
def test_cores_that_mix_heads_and_several_terms(causal: bool) -> None:
    n, groups, heads, width = 20, 2, 3, 4
    mask = None if causal else torch.rand(n, n, generator=torch.Generator().manual_seed(0)) < 0.5
    features = [drawn(2, n, groups * width, positive=True), drawn(2, n, groups * width, positive=True)]
    core, ones = drawn(groups, heads, positive=True), [drawn(n, 1, positive=True), drawn(n, 1, positive=True)]
    one, shared = drawn(1, heads, positive=True), [drawn(2, n, width, positive=True) for _ in range(2)]
    v, terms = drawn(2, n, heads * 5), [Term(*features, core=core), Term(*ones, core=one), Term(*shared)]
    found, wanted = (
        f(terms, v, mask, None, 1, 0, 0.25, True, causal) for f in (triton_linear_attention, linear_attention)
    )
    agree(found, wanted, [*features, core, *ones, one, *shared, v])


@pytest.mark.parametrize("batch", [(), (0,), (2, 1, 2)])
def test_any_number_of_batch_dimensions(batch: tuple[int, ...]) -> None:
    operands = [drawn(*batch, 7, 3, positive=True), drawn(*batch, 7, 3, positive=True), drawn(*batch, 7, 2)]
    both(operands, causal=True)


def test_an_operand_may_be_shared() -> None:
    q, k, v = plain(9, 9, 3, 3)
    both([q.detach().expand(2, 3, -1, -1).clone().requires_grad_(), k, v[0, 0].detach().requires_grad_()], causal=True)


def test_rows_whose_scores_sum_to_zero_read_zeros() -> None:
    q, k, v = plain(5, 5, 2, 3)
    with torch.no_grad():
        q[..., 2, :] = 0
    both([q, k, v])
    both([q, k, v], causal=True)


def test_operands_in_any_layout() -> None:
    q, k, v = (x.detach().mT.contiguous().mT.requires_grad_() for x in plain(9, 9, 3, 3))
    both([q, k, v], causal=True)


@pytest.mark.slow
@pytest.mark.parametrize(("causal", "normalize"), [(False, True), (True, True), (True, False)])
def test_gradients_against_differences(causal: bool, normalize: bool) -> None:
    operands = [drawn(2, 2, positive=True), drawn(3, 2, positive=True), drawn(3, 1)]

    def function(*given: Tensor) -> Tensor:
        return triton_linear_attention([Term(*given[:2])], given[2], eps=0.5, normalize=normalize, causal=causal)

    assert torch.autograd.gradcheck(function, operands, fast_mode=True)
    if causal and normalize:
        assert torch.autograd.gradgradcheck(function, operands, fast_mode=True)


def test_the_operations_as_torch_checks_them() -> None:
    q, k, v = plain(6, 6, 3, 2, torch.float32)
    some = torch.arange(6)[None, None] % 4 > 0
    for causal, normalize, seen in ((True, True, None), (True, False, None), (True, True, some), (False, True, some)):
        options = (causal, normalize, 0.5, "", "")
        torch.library.opcheck(triton_linear, (q, k, v, seen, *options))
        plain_operands = [*(x.detach() for x in (q, k, v)), seen]
        out, *kept = triton_linear(*plain_operands, *options)
        given = [torch.rand_like(out), *plain_operands, out, *kept, *options]
        torch.library.opcheck(triton_linear_gradients, given, test_utils=("test_schema", "test_faketensor"))


def test_vmap() -> None:
    q, k, v = (drawn(3, 2, 9, width, positive=True).detach() for width in (3, 3, 2))

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return triton_linear_attention([Term(q, k)], v, causal=True)

    for k_dim in (0, None):
        given = q, k if k_dim == 0 else k[0], v
        found = torch.vmap(function, (0, k_dim, 0))(*given)
        torch.testing.assert_close(found, function(*given))


def test_one_graph_for_all_lengths() -> None:
    torch._dynamo.reset()

    def function(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return triton_linear_attention([Term(q, k)], v, causal=True)

    compiled = torch.compile(function, fullgraph=True, dynamic=True, backend="aot_eager")
    for length, stance in ((7, "default"), (9, "default"), (17, "fail_on_recompile")):
        q, k, v = operands = plain(length, length, 3, 2)
        with torch.compiler.set_stance(stance):
            agree(compiled(q, k, v), function(q, k, v), operands)
