"""Blocks of queries: values and gradients of the plain code, for every form of operand; what is drawn; derivatives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import tensornet_attn as ta
from tensornet_attn.runtime.blockwise import (
    Block,
    Call,
    OperandLegs,
    Piece,
    Rows,
    among_zeros,
    block_function,
    blockwise,
    keys_seen,
    pieces_of,
    seen,
)
from tests.runtime.blockwise_cases import (
    BATCHES,
    LENGTHS,
    drawn,
    hidden,
    known_to_torch,
    mixed,
    mixed_operands,
    mixed_plain,
    mixed_rows,
    relative,
    relative_operands,
    relative_plain,
    same,
    some,
)

pytestmark = pytest.mark.usefixtures("in_blocks")

NO_LATER = (None, 0, 0)  # how far a row sees before and after itself
BLOCKS = [(1, 1), (2, 1), (3, 1), (4, 1), (16, 1), (1, 30), (1, 1000), (2, 30, 100)]


@pytest.mark.parametrize(("n", "m"), LENGTHS)
@pytest.mark.parametrize("block", BLOCKS)
def test_values_and_gradients_in_blocks_that_need_not_divide_n(n: int, m: int, block: tuple[int, ...]) -> None:
    given, pair = mixed_operands(n, m), relative_operands(n, m)
    same(mixed(*given, block=block), mixed_plain(*given), given)
    same(relative(*pair, block=block), relative_plain(*pair), pair)


@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize(("n", "m"), [(1, 7), (7, 7), (5, 3)])
def test_any_number_of_batch_dimensions(batch: tuple[int, ...], n: int, m: int) -> None:
    given, pair = mixed_operands(n, m, batch), relative_operands(n, m, batch)
    same(mixed(*given), mixed_plain(*given), given)
    same(relative(*pair), relative_plain(*pair), pair)


def test_no_rows_and_no_keys() -> None:
    for n, m in [(0, 3), (3, 0), (0, 0)]:
        given = mixed_operands(n, m)
        same(mixed(*given), mixed_plain(*given), given)


def test_operands_broadcast() -> None:
    P, q, k, v = some(2, 3), some(4, 1, 2, 7, 4), some(3, 1, 6, 4), some(3, 6, 5)
    same(mixed(P, q, k, v, batch=(4, 3)), mixed_plain(P, q, k, v), [P, q, k, v])


def test_one_entry_of_an_operand_stands_for_all_rows() -> None:
    P, _, k, v = mixed_operands(1, 6)
    q, mask = some(2, 2, 1, 4), torch.ones(1, 6, dtype=torch.bool)
    for given in (None, mask, torch.zeros(5, 6)):
        found = blockwise(mixed_rows, [P, q, k, v, given, None], 5, 6, (2,), (2, 1))
        wanted = mixed_plain(P, q, k, v).expand(-1, -1, 5, -1)
        same(found, wanted, [P, q, k, v])


@pytest.mark.parametrize("rows", [4, 6])
def test_an_operand_with_another_number_of_rows_is_refused(rows: int) -> None:
    given, mask = mixed_operands(5, 6), torch.ones(rows, 6, dtype=torch.bool)
    with pytest.raises(ValueError) as caught:
        mixed(*given, mask=mask)
    message = f"'mixed_rows': an operand has shape [{rows}, 6]; it must have 1 or 5 rows in dimension -2."
    assert str(caught.value) == message


@pytest.mark.parametrize("place", range(4))
def test_operands_that_want_no_gradient(place: int) -> None:
    given = [x.detach().requires_grad_(i == place) for i, x in enumerate(mixed_operands(5, 6))]
    same(mixed(*given), mixed_plain(*given), given)
    given = [x.detach().requires_grad_(i != place) for i, x in enumerate(given)]
    same(mixed(*given), mixed_plain(*given), given)
    assert not mixed(*(x.detach() for x in given)).requires_grad


@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
@pytest.mark.parametrize("keys", ["none", "some", "no"])
def test_masks_of_the_call(leading: tuple[int, ...], keys: str) -> None:
    given, drawn_mask = mixed_operands(5, 6), some(*leading, 5, 6, seed=9)
    key_mask = {"none": None, "some": some(2, 6) < 0.5, "no": torch.zeros(2, 6, dtype=torch.bool)}[keys]
    for form in (lambda x: None, lambda x: x < 0.5, lambda x: x, hidden):
        found = mixed(*given, mask=form(drawn_mask), key_mask=key_mask)
        same(found, mixed_plain(*given, form(drawn_mask), key_mask), [*given, drawn_mask])


def test_layouts_of_operands_do_not_matter() -> None:
    P, q, k, v = (some(*reversed(x.shape), seed=4) for x in mixed_operands(5, 6))
    turned = [x.permute(*reversed(range(x.ndim))) for x in (P, q, k, v)]
    same(mixed(*turned), mixed_plain(*turned), [P, q, k, v])
    spread = [P.T, *(x[:1].expand(2, *x.shape[1:]) for x in turned[1:])]
    same(mixed(*spread), mixed_plain(*spread), [P, q, k, v])


def call_of(n: int, m: int, batch: list[int], block: tuple[int, ...] = (1, 1)) -> Call:
    return Call([], n, m, batch, list(block), False, [], None)


def rows_of(dims: int) -> OperandLegs:
    """Those of an operand with so many dimensions that are not of the batch, rows but last."""
    return OperandLegs(-2, 0, 0, NO_LATER, dims)


@pytest.mark.parametrize(
    ("legs", "shape"),
    [
        ((0, 0, 0, 0), (2, 3)),
        ((-2, 0, 0, 0), (9, 3)),
        ((0, -1, 0, 0), (2, 14)),
        ((-2, -1, 0, 0), (9, 14)),
        ((-2, -1, 0, 2), (5, 9, 14)),
        ((-2, 0, 0, 2), (1, 9, 3)),
        ((-2, 0, 0, 2), (9, 3)),
        ((0, 0, 0, 1), (5, 3)),
        ((-2, 0, -1, 2), (9, 6)),
        ((0, 0, -1, 2), (5, 2, 6)),
    ],
)
def test_what_a_block_gives_stands_where_the_block_sees(legs: tuple[int, ...], shape: tuple[int, ...]) -> None:
    row, span, key, dims = legs
    leg, piece, call = OperandLegs(row, span, key, NO_LATER, dims), Piece(1, 2, 4, 3), call_of(9, 6, [5])
    where = leg, Block(piece, keys_seen([leg], piece, call), call)
    x = some(*shape).detach()
    part = seen(x, *where)
    assert part.shape[-2] == (3 if legs[0] and shape[-2] > 1 else 2 if shape == (5, 3) else shape[-2])
    assert part.shape[-1] == (4 if legs[2] else 8 if legs[1] else shape[-1])
    assert part.shape[0] == (2 if shape[0] == 5 else part.shape[0])
    whole = among_zeros(part, x, *where)
    assert whole.shape == x.shape
    assert torch.equal(seen(whole, *where), part)
    torch.testing.assert_close(whole.sum(), part.sum())


def test_rows_that_see_no_later_key_have_no_later_relative_position() -> None:
    x = torch.arange(14)  # of 9 queries and 6 keys: from the first query at the last key, -5, to 8
    legs = [OperandLegs(0, -1, 0, NO_LATER, 0), OperandLegs(0, 0, -2, NO_LATER, 0)]
    piece, call = Piece(0, 1, 4, 3), call_of(9, 6, [1])
    assert seen(x, legs[0], Block(piece, keys_seen(legs, piece, call), call)).tolist() == list(range(6, 12))


@pytest.mark.parametrize(
    ("reach", "piece", "wanted"),  # of 9 queries and 12 keys, so that the first query stands at the fourth key
    [
        ((None, 0, 0), (0, 1, 4, 3), (0, 0, 10)),
        ((2, 0, 0), (0, 1, 4, 3), (0, 5, 5)),
        ((2, 4, 0), (0, 1, 4, 3), (0, 5, 7)),
        ((2, -1, 0), (0, 1, 4, 3), (0, 5, 4)),
        ((9, 0, 0), (0, 1, 0, 2), (0, 0, 5)),
        ((-20, 30, 0), (0, 1, 4, 3), (0, 11, 1)),
        ((None, None, 0), (0, 1, 4, 3), (0, 0, 12)),
        ((2, 0, 3), (0, 1, 4, 3), (3, 5, 5)),
        ((2, 0, 5), (0, 1, 4, 3), (0, 0, 10)),
        ((2, 0, 11), (0, 1, 4, 3), (0, 0, 11)),
    ],
)
def test_a_piece_has_the_keys_that_its_rows_reach(
    reach: tuple[int | None, int | None, int], piece: tuple[int, int, int, int], wanted: tuple[int, int, int]
) -> None:
    assert keys_seen([OperandLegs(0, 0, -2, reach, 0)], Piece(*piece), call_of(9, 12, [1])) == wanted


@pytest.mark.parametrize(
    ("n", "m", "batch", "pairs", "wanted"),
    [
        (9, 4, [3], 16, [(i, 1, first, min(4, 9 - first)) for i in range(3) for first in (0, 4, 8)]),
        (9, 4, [3], 72, [(0, 2, 0, 9), (2, 1, 0, 9)]),
        (9, 4, [3, 2], 72, [(0, 1, 0, 9), (1, 1, 0, 9), (2, 1, 0, 9)]),
        (9, 4, [], 16, [(0, 1, 0, 4), (0, 1, 4, 4), (0, 1, 8, 1)]),
        (9, 4, [0], 16, [(0, 0, 0, 4), (0, 0, 4, 4), (0, 0, 8, 1)]),
        (0, 4, [3], 16, [(0, 3, 0, 0)]),
    ],
)
def test_pieces_have_rows_of_one_element_where_they_can(
    n: int, m: int, batch: list[int], pairs: int, wanted: list[tuple[int, ...]]
) -> None:
    x, call = torch.zeros(*batch, n, 2), call_of(n, m, batch, (2, pairs))
    assert pieces_of([x], [rows_of(2)], call) == wanted
    if len(batch) == 1 and batch[0]:  # nothing is told of the batch, or nothing has one: it is not taken apart
        alone = {(0, batch[0])}
        assert {piece[:2] for piece in pieces_of([x], [rows_of(0)], call)} == alone
        assert {piece[:2] for piece in pieces_of([x[0]], [rows_of(2)], call)} == alone


def test_pieces_within_a_band_have_as_many_rows_at_any_length() -> None:
    x, block = torch.zeros(3, 9, 2), (4, 16, 1, 4)
    for m in (1, 4, 100):
        found = pieces_of([x], [rows_of(2)], call_of(9, m, [3], block))
        assert {(first, count) for _, _, first, count in found} == {(0, 4), (4, 4), (8, 1)}
    assert pieces_of([x], [rows_of(2)], call_of(9, 2, [3], block))[0] == (0, 2, 0, 4)  # 2 elements x 4 rows x 2 keys


def test_noise_and_dropout_are_drawn_alike_in_the_backward() -> None:
    q, k = some(2, 5, 3), some(2, 6, 3, seed=1)

    def fixed(q: Tensor, k: Tensor) -> Tensor:
        torch.manual_seed(3)
        return drawn(q, k)

    assert torch.equal(fixed(q, k), fixed(q, k))
    assert not torch.equal(fixed(q, k), drawn(q, k))
    assert gradcheck(fixed, (q, k))
    assert gradgradcheck(fixed, (q, k))


def test_each_block_and_each_call_draws_anew() -> None:
    torch.manual_seed(0)
    q, k = torch.zeros(1, 64, 1), torch.ones(1, 400, 1)
    first, second = drawn(q, k), drawn(q, k)
    assert len(set(first.flatten().tolist()) | set(second.flatten().tolist())) > 100


@pytest.mark.parametrize("quarters", [0, 1, 4])
def test_dropout_drops_as_often_as_asked(quarters: int) -> None:
    torch.manual_seed(0)
    q, k = torch.zeros(50, 50, dtype=torch.float64), torch.eye(50, dtype=torch.float64).requires_grad_()
    found = drawn(q, k, torch.zeros(50, 50, dtype=torch.float64), quarters)
    kept = found * 50 * (1 - quarters / 4) if quarters < 4 else found
    assert set(kept.detach().round(decimals=9).unique().tolist()) <= {0.0, 1.0}
    assert abs((found == 0).double().mean().item() - quarters / 4) < 0.03
    assert torch.autograd.grad(found.sum(), k)[0].isfinite().all()


def test_nothing_is_drawn_in_evaluation_and_noise_may_be_given() -> None:
    q, k, noise = some(2, 5, 3), some(2, 6, 3, seed=1), some(2, 5, 6, seed=2)
    same(drawn(q, k, training=False), (q @ k.mT).softmax(-1) @ k, [q, k])
    same(drawn(q, k, noise, training=False), (q @ k.mT + noise).softmax(-1) @ k, [q, k, noise])
    same(drawn(q, k, noise, quarters=0), (q @ k.mT + noise).softmax(-1) @ k, [q, k, noise])


def test_gradients_against_differences() -> None:
    assert gradcheck(mixed, tuple(mixed_operands(3, 4, (1,))))
    assert gradcheck(relative, tuple(relative_operands(3, 4, (1,))))


def test_second_derivatives() -> None:
    assert gradgradcheck(mixed, tuple(mixed_operands(3, 4, (1,))))
    assert gradgradcheck(relative, tuple(relative_operands(3, 4, (1,))))
    P, q, k, v = mixed_operands(3, 4, (1,))
    assert gradgradcheck(mixed, (P.detach(), q, k.detach(), v))


def test_third_derivatives() -> None:
    given = mixed_operands(3, 2, ())

    def curvature(function: object, *given: Tensor) -> Tensor:
        first = torch.autograd.grad(function(*given).sin().sum(), given, create_graph=True)  # type: ignore[operator]
        second = torch.autograd.grad(sum(x.square().sum() for x in first), given, create_graph=True)
        return sum(x.square().sum() for x in second)  # type: ignore[return-value]

    found = torch.autograd.grad(curvature(mixed, *given), given)
    torch.testing.assert_close(found, torch.autograd.grad(curvature(mixed_plain, *given), given), rtol=1e-9, atol=1e-9)


def test_a_result_without_the_query_is_the_same_for_all_rows() -> None:
    @known_to_torch
    @block_function(rows=(0,), out=-2)
    def mean_rows(rows: Rows, k: Tensor) -> Tensor:
        return k.softmax(-2).sum(-2, keepdim=True)

    k = some(2, 4, 3)
    same(blockwise(mean_rows, [k], 5, 4, (2,), (2, 1)), k.softmax(-2).sum(-2, keepdim=True).expand(2, 5, 3), [k])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision(dtype: torch.dtype) -> None:
    given = mixed_operands(19, 21, dtype=dtype)
    plain = [x.detach().to(torch.float64).requires_grad_() for x in given]
    found, wanted = mixed(*given), mixed_plain(*plain)
    assert found.dtype == dtype
    eager = mixed_plain(*given)
    by = torch.randn(found.shape, dtype=dtype, generator=torch.Generator().manual_seed(0))
    ours, theirs = (torch.autograd.grad(y, given, by) for y in (found, eager))
    exact = torch.autograd.grad(wanted, plain, by.double())
    for mine, other, true in zip((found, *ours), (eager, *theirs), (wanted, *exact), strict=True):
        assert mine.dtype == dtype
        allowed = 2 * ((other - true).abs().max() + torch.finfo(dtype).eps * true.abs().max())
        assert (mine - true).abs().max() <= allowed


def test_autocast_in_one_graph() -> None:
    """It reaches the einsums of a block, of weights in float32."""
    torch._dynamo.reset()
    module = ta.compile(ta.load("talking_heads", legs={"f": 32}), backend="torch", device_costs="generic")
    x = torch.randn(2, 40, 32)
    assert "A_scores = torch.einsum(" in module.source
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = torch.compile(module, backend="aot_eager", fullgraph=True)(x), module(x)
    torch.testing.assert_close(found, wanted)
    ours, theirs = (torch.autograd.grad(y.float().square().sum(), [*module.parameters()]) for y in (found, wanted))
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


def test_autocast_acts_in_forward_and_backward() -> None:
    given = mixed_operands(9, 11, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found, wanted = mixed(*given), mixed_plain(*given)
    assert found.dtype == wanted.dtype == torch.bfloat16
    torch.testing.assert_close(found, wanted, rtol=0.02, atol=0.02)
    ours, theirs = (torch.autograd.grad(y.float().sum(), given) for y in (found, wanted))
    assert all(x.dtype == torch.float32 for x in ours)
    torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)
