"""Recurrences number by number: the loop's values and gradients, in parts of any length, and behind a state."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from tensornet_attn.runtime import running
from tensornet_attn.runtime.running import faded_sums, scan_state, scan_sums
from tests.agreement import agree

SHAPES = [((4,), (4,)), ((2, 3), (2, 1)), ((2, 3), (1, 3)), ((), ())]  # of what is summed, and of the decays


def loop(x: Tensor, decay: Tensor, dims: int, past: Tensor | None, key_mask: Tensor | None, n: int) -> Tensor:
    """Key by key."""
    m, place = x.shape[-dims - 1], -dims - 1
    h = torch.zeros_like((x + decay).select(place, 0)) if m else x.sum(place)
    h, reads = h if past is None else h + past, []
    for t in range(min(0, m - n), m):
        if t >= 0:
            new = decay.select(place, t).exp() * h + x.select(place, t)
            h = new if key_mask is None else torch.where(key_mask[..., t][(..., *[None] * dims)], new, h)
        if t >= m - n:
            reads.append(h)
    return torch.stack(reads, place)


def drawn(batch: tuple[int, ...], m: int, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> tuple[Tensor, Tensor]:
    x, decay = (torch.randn(*batch, m, *shape, dtype=torch.float64) for shape in shapes)
    return x.requires_grad_(), (-3 * decay.abs()).requires_grad_()


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("batch", [(), (2, 3)])
@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 7), (9, 9), (70, 70), (5, 40), (40, 5)])
def test_values_and_gradients(n: int, m: int, batch: tuple[int, ...], shapes: tuple[tuple[int, ...], ...]) -> None:
    torch.manual_seed(0)
    x, decay = drawn(batch, m, shapes)  # type: ignore[arg-type]
    for key_mask in (None, torch.rand(*batch, m) < 0.6):
        given = x, decay, len(shapes[0]), None, key_mask, n
        agree(scan_sums(*given), loop(*given), [x, decay])


def test_behind_what_came_before() -> None:
    torch.manual_seed(0)
    x, decay = drawn((2,), 20, ((3,), (3,)))
    keep = torch.rand(2, 20) < 0.7
    for key_mask in (None, keep):
        masks = [None if key_mask is None else key_mask[:, part] for part in (slice(9), slice(9, None))]
        state = scan_state(x[:, :9], decay[:, :9], 1, torch.zeros(2, 3, dtype=torch.float64), masks[0])
        wanted = scan_sums(x, decay, 1, None, key_mask, 11)
        given = x[:, 9:], decay[:, 9:], 1, state, masks[1], 11
        agree(scan_sums(*given), loop(*given), [x, decay])
        torch.testing.assert_close(scan_sums(*given), wanted)
    assert state.is_contiguous(), "a cache holds this position alone"
    torch.testing.assert_close(scan_state(x[:, :0], decay[:, :0], 1, state, None), state)
    wrong = "scan_sums: 4 queries for 3 keys after a state; give no more queries than keys."
    with pytest.raises(ValueError, match=re.escape(wrong)):
        scan_sums(x[:, :3], decay[:, :3], 1, state, None, 4)


def test_what_a_key_mask_hides_may_be_anything() -> None:
    torch.manual_seed(0)
    x, decay = drawn((), 12, ((3,), (3,)))
    keep = torch.rand(12) < 0.6
    wanted = torch.autograd.grad(scan_sums(x, decay, 1, None, keep, 12).sum(), [x, decay])
    with torch.no_grad():
        decay[~keep], x[~keep] = -torch.inf, torch.nan
    found = torch.autograd.grad(scan_sums(x, decay, 1, None, keep, 12).sum(), [x, decay])
    torch.testing.assert_close(found, wanted)


def test_decays_of_zero_forget() -> None:
    x, decay = drawn((), 30, ((3,), (3,)))
    with torch.no_grad():
        decay[::4] = -torch.inf
    found = scan_sums(x, decay, 1, None, None, 30)
    torch.testing.assert_close(found[::4], x[::4])
    assert all(g.isfinite().all() for g in torch.autograd.grad(found.sum(), [x, decay]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("strong", [1e-3, 1.0, 50.0])
def test_long_sequences_in_low_precision(strong: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, decay = torch.randn(3000, 4).to(dtype), (-strong * torch.rand(3000, 4)).to(dtype)
    wanted = loop(x.double(), decay.double(), 1, None, None, 3000)
    found = scan_sums(x, decay, 1, None, None, 3000)
    assert found.dtype == dtype
    eps = 1e-5 if dtype == torch.float32 else 1e-2
    torch.testing.assert_close(found.double(), wanted, rtol=0, atol=eps * float(wanted.abs().max()))


@pytest.mark.parametrize("shapes", SHAPES)
def test_gradients_against_differences(shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    torch.manual_seed(0)
    given = drawn((), 10, shapes)

    def function(x: Tensor, decay: Tensor) -> Tensor:
        return scan_sums(x, decay, len(shapes[0]), None, None, 10)

    assert torch.autograd.gradcheck(function, given, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, given, fast_mode=True)


def test_the_operation_as_torch_checks_it() -> None:
    x, decay = drawn((2,), 9, ((3,), (1,)))
    for reverse in (False, True):
        torch.library.opcheck(faded_sums, (x, decay, 1, reverse))


def test_vmap_and_grad_of_functions() -> None:
    x, decay = (one.detach() for one in drawn((3,), 11, ((2,), (2,))))

    def total(x: Tensor, decay: Tensor) -> Tensor:
        return scan_sums(x, decay, 1, None, None, 11).square().sum()

    torch.testing.assert_close(vmap(grad(total))(x, decay), grad(total)(x, decay))
    assert vmap(total, in_dims=(0, None))(x, decay[0]).shape == (3,)


def test_traced_for_any_length() -> None:
    traced = torch.compile(scan_sums, backend="aot_eager", dynamic=True, fullgraph=True)
    for length in (9, 70, 130):
        x, decay = drawn((2,), length, ((3,), (3,)))
        agree(traced(x, decay, 1, None, None, length), scan_sums(x, decay, 1, None, None, length), [x, decay])


def test_a_batch_of_none() -> None:
    x, decay = drawn((0,), 9, ((3,), (3,)))
    found = scan_sums(x, decay, 1, None, None, 9)
    assert found.shape == (0, 9, 3)
    assert all(not g.numel() for g in torch.autograd.grad(found.sum(), [x, decay]))


def test_two_scans_with_one_decay_in_inductor() -> None:
    """The second one reads the first: a backward needs the decay of both."""

    def chained(keys: Tensor, values: Tensor, decay: Tensor) -> Tensor:
        decay = decay.sigmoid().log()
        first = scan_sums(keys[..., None, :], decay[..., None], 2, None, None, 24).sum(-1)
        return scan_sums(values[..., None], decay[..., None, :], 2, None, None, 24) @ first[..., None]

    given = [torch.randn(2, 24, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    agree(torch.compile(chained)(*given), chained(*given), given)


@pytest.mark.parametrize("reverse", [False, True])
def test_long_rows_follow_each_other(reverse: bool) -> None:
    x, decay = torch.randn(7, running.LONG_ROW, dtype=torch.float64), -torch.rand(7, 1, dtype=torch.float64)
    shifted = torch.cat((decay[1:], decay[:1])) if reverse else decay
    h, rows = torch.zeros_like(x[0]), torch.empty_like(x)
    for t in reversed(range(7)) if reverse else range(7):
        h = rows[t] = shifted[t].exp() * h + x[t]
    torch.testing.assert_close(running.faded_sums(x, decay, 1, reverse), rows)
